"""The addresses of nodes (docs/protocols/hydra.md, "Transports"). No I/O.

    HOST:PORT, tcp://HOST:PORT    TCP; default port 6174
    udp://HOST:PORT               datagrams; default port 6174
    fifo:///DIRECTORY/NAME        two named pipes, /DIRECTORY/NAME.in and /DIRECTORY/NAME.out
    irc://SERVER:PORT/NICK        private messages to NICK on an IRC server; default port 6667

IPv6 addresses are written in brackets. `str()` of an address gives its canonical form.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from hydra.irc.settings import IrcSettingsError, check_nick

DEFAULT_PORT: Final = 6174
DEFAULT_IRC_PORT: Final = 6667

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
#: The longest suffix of a pipe's name.
_SUFFIX: Final = ".out"


class NodeAddressError(ValueError):
    """The text is no address; the message names the fault, and the right form."""


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host (a name, or an IP address without brackets) and a TCP port; port 0: any free one to listen on."""

    host: str
    port: int

    def __str__(self) -> str:
        return _join(self.host, self.port)


@dataclass(frozen=True, slots=True)
class UdpAddress:
    """A host and a UDP port, as for TCP."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"udp://{_join(self.host, self.port)}"


@dataclass(frozen=True, slots=True)
class FifoAddress:
    """Two named pipes in a directory."""

    path: PurePosixPath
    """Absolute, without the suffix of a pipe's name."""

    def __str__(self) -> str:
        return f"fifo://{self.path}"

    @property
    def inward(self) -> str:
        """The pipe that the listener reads."""
        return f"{self.path}.in"

    @property
    def outward(self) -> str:
        """The pipe that the listener writes."""
        return f"{self.path}.out"


@dataclass(frozen=True, slots=True)
class IrcAddress:
    """A nick on an IRC server."""

    host: str
    port: int
    nick: str

    def __str__(self) -> str:
        return f"irc://{_join(self.host, self.port)}/{self.nick}"


NodeAddress = TcpAddress | UdpAddress | FifoAddress | IrcAddress


def parse_node_address(text: str) -> NodeAddress:
    """Read an address. Raises NodeAddressError."""
    text = text.strip()
    scheme, mark, rest = text.partition("://")
    if not mark:
        return TcpAddress(*_host_and_port(text, text, DEFAULT_PORT))
    match scheme.lower():
        case "tcp":
            return TcpAddress(*_host_and_port(rest, text, DEFAULT_PORT))
        case "udp":
            return UdpAddress(*_host_and_port(rest, text, DEFAULT_PORT))
        case "fifo":
            return FifoAddress(_path(rest, text))
        case "irc":
            return _irc(rest, text)
        case _:
            raise NodeAddressError(f"{text!r} begins with {scheme}://: write tcp://, udp://, fifo:// or irc://")


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(text: str, whole: str, default: int) -> tuple[str, int]:
    if not text:
        raise NodeAddressError(f"{whole!r} has no host: write HOST:PORT, for example 127.0.0.1:{default}")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise NodeAddressError(f"{whole!r}: write an IPv6 address and its port like [::1]:{default}")
        return _ipv6(host, whole), _port(rest.removeprefix(":"), whole) if rest else default
    host, colon, port = text.partition(":")
    if ":" in port:
        raise NodeAddressError(f"{whole!r}: write an IPv6 address in brackets, for example [::1]:{default}")
    return _host(host, whole), _port(port, whole) if colon else default


def _ipv6(text: str, whole: str) -> str:
    try:
        return str(ipaddress.IPv6Address(text))
    except ValueError as error:
        raise NodeAddressError(f"{whole!r}: the text in brackets is no IPv6 address ({error})") from None


def _host(text: str, whole: str) -> str:
    if not text:
        raise NodeAddressError(f"{whole!r} has no host: write 0.0.0.0 or [::] before the port to listen everywhere")
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise NodeAddressError(f"{whole!r}: {text!r} is no host name or IP address")
    # No top-level domain is a number: this must be an IPv4 address.
    if labels[-1].isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise NodeAddressError(f"{whole!r}: {text!r} is no IPv4 address ({error})") from None
    return host


def _port(text: str, whole: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 65535:
        raise NodeAddressError(f"{whole!r}: the port must be a number from 0 to 65535, not {text!r}")
    return int(text)


def _path(text: str, whole: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not text.startswith("/") or not path.name or text.endswith("/") or path.name == "..":
        raise NodeAddressError(f"{whole!r} names no pipes: write fifo:///DIRECTORY/NAME, with three slashes")
    if not text.isprintable():
        raise NodeAddressError(f"{whole!r}: a path must not have control characters in it")
    if len(path.name.encode(errors="replace")) + len(_SUFFIX) > 255:
        raise NodeAddressError(f"{whole!r}: the name of a pipe must not have more than 251 bytes")
    return path


def _irc(text: str, whole: str) -> IrcAddress:
    server, slash, nick = text.partition("/")
    if not slash or not nick:
        raise NodeAddressError(f"{whole!r} has no nick: write irc://SERVER:PORT/NICK")
    try:
        check_nick(nick)
    except IrcSettingsError as error:
        raise NodeAddressError(f"{whole!r}: {error}") from None
    return IrcAddress(*_host_and_port(server, whole, DEFAULT_IRC_PORT), nick)
