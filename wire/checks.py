"""Warnings about listeners that any host can reach."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.checks import CheckMessage, Warning

from wire.net.address import HostPort


def check_unguarded(
    name: str, addresses: Iterable[HostPort], *, allow_list: bool, client_certificates: bool
) -> list[CheckMessage]:
    """wire.W001 for each address of a protocol without authentication that others can reach and nothing guards."""
    if allow_list or client_certificates:
        return []
    return [
        Warning(
            f"{name} listens on {address} without authentication: every client that reaches it may send and receive.",
            hint="Set BROKER_ALLOW to the networks that may connect, or BROKER_TLS_CLIENT_CA to ask for certificates.",
            id="wire.W001",
        )
        for address in addresses
        if not address.is_loopback
    ]


def check_unencrypted(name: str, addresses: Iterable[HostPort], *, tls: bool) -> list[CheckMessage]:
    """wire.W002 for each address that others can reach on which everything can be read on the way."""
    return [] if tls else [
        Warning(
            f"{name} listens on {address} without TLS: keys and messages can be read on the way.",
            hint="Set BROKER_TLS_CERT and BROKER_TLS_KEY.",
            id="wire.W002",
        )
        for address in addresses
        if not address.is_loopback
    ]  # fmt: skip
