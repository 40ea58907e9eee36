"""The addresses of nodes (docs/protocols/hydra.md, "Transports"). No I/O.

    HOST:PORT, tcp://HOST:PORT    TCP; default port 6174
    udp://HOST:PORT               datagrams; default port 6174
    fifo:///DIRECTORY/NAME        two named pipes, /DIRECTORY/NAME.in and /DIRECTORY/NAME.out
    irc://SERVER:PORT/NICK        private messages to NICK on an IRC server; default port 6667

IPv6 addresses are written in brackets. `str()` of an address gives its canonical form.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from hydra.irc.settings import IrcSettingsError, check_nick
from wire.net.address import AddressError, HostPort, parse_address

DEFAULT_PORT: Final = 6174
DEFAULT_IRC_PORT: Final = 6667

#: The longest suffix of a pipe's name.
_SUFFIX: Final = ".out"


@dataclass(frozen=True, slots=True)
class TcpAddress(HostPort):
    """A host (a name, or an IP address without brackets) and a TCP port; port 0: any free one to listen on."""


@dataclass(frozen=True, slots=True)
class UdpAddress(HostPort):
    """A host and a UDP port, as for TCP."""

    def __str__(self) -> str:
        return f"udp://{HostPort.__str__(self)}"


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
class IrcAddress(HostPort):
    """A nick on an IRC server."""

    nick: str

    def __str__(self) -> str:
        return f"irc://{HostPort.__str__(self)}/{self.nick}"


NodeAddress = TcpAddress | UdpAddress | FifoAddress | IrcAddress


def parse_node_address(text: str) -> NodeAddress:
    """Read an address. Raises AddressError."""
    text = text.strip()
    scheme, mark, rest = text.partition("://")
    match scheme.lower() if mark else "":
        case "":
            return TcpAddress(*_host_and_port(text, text))
        case "tcp":
            return TcpAddress(*_host_and_port(rest, text))
        case "udp":
            return UdpAddress(*_host_and_port(rest, text))
        case "fifo":
            return FifoAddress(_path(rest, text))
        case "irc":
            return _irc(rest, text)
        case _:
            raise AddressError(f"{text!r} begins with {scheme}://: write tcp://, udp://, fifo:// or irc://")


def _host_and_port(text: str, whole: str, default: int = DEFAULT_PORT) -> tuple[str, int]:
    where = parse_address(text, default, whole)
    return where.host, where.port


def _path(text: str, whole: str) -> PurePosixPath:
    path = PurePosixPath(text)
    if not text.startswith("/") or not path.name or text.endswith("/") or path.name == "..":
        raise AddressError(f"{whole!r} names no pipes: write fifo:///DIRECTORY/NAME, with three slashes")
    if not text.isprintable():
        raise AddressError(f"{whole!r}: a path must not have control characters in it")
    if len(path.name.encode(errors="replace")) + len(_SUFFIX) > 255:
        raise AddressError(f"{whole!r}: the name of a pipe must not have more than 251 bytes")
    return path


def _irc(text: str, whole: str) -> IrcAddress:
    server, slash, nick = text.partition("/")
    if not slash or not nick:
        raise AddressError(f"{whole!r} has no nick: write irc://SERVER:PORT/NICK")
    try:
        check_nick(nick)
    except IrcSettingsError as error:
        raise AddressError(f"{whole!r}: {error}") from None
    return IrcAddress(*_host_and_port(server, whole, DEFAULT_IRC_PORT), nick)
