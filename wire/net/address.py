"""Addresses to listen on, and the networks that may connect to them. No I/O."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)


class AddressError(ValueError):
    """The text is no address; the message names the fault and the right form."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host (a name or an IP address without brackets) and a port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect here. Names other than those of localhost may be anywhere."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost" or self.host.endswith(".localhost")


def parse_address(text: str, default: int | None = None, whole: str | None = None) -> HostPort:
    """Read ``HOST:PORT``; an IPv6 host is written in brackets, as in ``[::1]:5555``.

    With a `default` the port may be left out. `whole` is the text that the errors name, if this is a part of it.
    Raises :exc:`AddressError`.
    """
    text = text.strip()
    shown, example = repr(text if whole is None else whole), default or 5555
    if text.startswith("["):
        inner, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise AddressError(f"{shown}: write an IPv6 address and its port like [::1]:{example}, in brackets")
        host, colon, port = _ipv6(inner, shown), rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
        if ":" in port:
            raise AddressError(f"{shown}: write an IPv6 address in brackets, for example [::1]:{example}")
    if not colon and default is None:
        raise AddressError(f"{shown} has no port: write HOST:PORT, for example 127.0.0.1:{example}")
    if not host:
        raise AddressError(
            f"{shown} has no host: write HOST:PORT, for example 127.0.0.1:{example}; "
            "write 0.0.0.0 or [::] before the port to listen everywhere"
        )
    if not colon and default is not None:
        port = str(default)
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise AddressError(f"{shown}: the port must be a number from 0 to 65535, not {port!r}")
    return HostPort(host if text.startswith("[") else _name(host, shown), int(port))


def _ipv6(text: str, shown: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise AddressError(f"{shown}: the text in brackets is no IPv6 address ({error})") from None


def _name(text: str, shown: str) -> str:
    """A host's name, or an IPv4 address."""
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        raise AddressError(f"{shown}: {text!r} is no host name or IP address")
    # No top-level domain is a number: this must be an IPv4 address.
    if labels[-1].isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise AddressError(f"{shown}: {text!r} is no IPv4 address ({error})") from None
    return host


def ip_address(text: str) -> IPAddress:
    """Parse an IP address; an IPv4 client seen through an IPv6 socket (``::ffff:1.2.3.4``) becomes IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_allowed(ip: str, networks: Collection[Network]) -> bool:
    """Whether ``ip`` lies in one of ``networks``. Without networks every address is allowed."""
    return not networks or any(ip_address(ip) in network for network in networks)
