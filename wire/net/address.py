"""Addresses to listen on, and the networks that may connect to them. No I/O."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from dataclasses import dataclass

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class AddressError(ValueError):
    """The text is no address; the message names the fault and the right form."""


@dataclass(frozen=True, slots=True)
class HostPort:
    """A host (a name or an IP address without brackets) and a TCP port; port 0 means any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect here. A name other than localhost does not count."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> HostPort:
    """Read ``HOST:PORT``; an IPv6 host is written in brackets, as in ``[::1]:5555``.

    Raises :exc:`AddressError` for anything else.
    """
    host, colon, port = text.strip().rpartition(":")
    if not colon or "]" in port:
        raise AddressError(f"{text!r} has no port: write HOST:PORT, for example 127.0.0.1:5555")
    return HostPort(_parse_host(host, text), _parse_port(port, text))


def _parse_host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError as error:
            raise AddressError(f"{text!r}: the text in brackets is no IPv6 address ({error})") from None
        return host[1:-1]
    if not host:
        raise AddressError(f"{text!r} has no host: write 0.0.0.0 or [::] before it to listen everywhere")
    if ":" in host:
        raise AddressError(f"{text!r}: write an IPv6 address in brackets, for example [::1]:5555")
    if any(c.isspace() or c in "[]/@" for c in host):
        raise AddressError(f"{text!r}: {host!r} is no host name or IP address")
    return host


def _parse_port(port: str, text: str) -> int:
    # str.isdigit() alone also accepts digits such as "²", which int() refuses.
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise AddressError(f"{text!r}: the port must be a number from 0 to 65535, not {port!r}")
    return int(port)


def ip_address(text: str) -> IPAddress:
    """Parse an IP address; an IPv4 client seen through an IPv6 socket (``::ffff:1.2.3.4``) becomes IPv4."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def is_allowed(ip: str, networks: Collection[Network]) -> bool:
    """Whether ``ip`` lies in one of ``networks``. Without networks every address is allowed."""
    return not networks or any(ip_address(ip) in network for network in networks)
