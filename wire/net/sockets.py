"""Listening sockets: from an address to what a process accepts connections on."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
from collections.abc import Iterable
from typing import Any

from queues.errors import BrokerError
from wire.net.address import HostPort

BACKLOG = 1024

# Accepted sockets inherit these. Keep-alive finds consumers that vanished while they wait in silence.
SOCKET_OPTIONS = [
    (socket.SOL_SOCKET, socket.SO_REUSEADDR, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
]
if sys.platform == "linux":
    SOCKET_OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    ]


class ListenError(BrokerError):
    """The listener can't listen on its address; the message names listener, address and reason."""


async def open_sockets(name: str, address: HostPort, reuse_port: bool) -> list[socket.socket]:
    """Listen on every IP address that ``address`` stands for, all on the same port.

    ``name`` is for the message of :exc:`ListenError`.
    """
    options = [*SOCKET_OPTIONS, (socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)] if reuse_port else SOCKET_OPTIONS
    try:
        return await bind_all(address, socket.SOCK_STREAM, options)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long or empty
        reason = getattr(error, "strerror", None) or str(error)
        raise ListenError(f"{name} can't listen on {address}: {reason}") from error


async def bind_all(
    address: HostPort, kind: socket.SocketKind, options: Iterable[tuple[int, int, int]] = ()
) -> list[socket.socket]:
    """Bind a socket of this kind to every IP address that ``address`` stands for, all to the same port; streams listen.

    Raises OSError, UnicodeError.
    """
    sockets: list[socket.socket] = []
    port = address.port
    failure: OSError | None = None
    for family, sockaddr in await resolve(address, kind, socket.AI_PASSIVE):
        try:
            sockets.append(_bound(family, kind, (sockaddr[0], port, *sockaddr[2:]), options))
            port = sockets[0].getsockname()[1]
        except OSError as error:
            failure = error
            # A name such as localhost may stand for an IPv6 address on a machine without IPv6.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
    else:
        if sockets:
            return sockets
    for sock in sockets:
        sock.close()
    assert failure is not None
    raise failure


async def resolve(address: HostPort, kind: socket.SocketKind, flags: int = 0) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the families and addresses of sockets that ``address`` stands for. Raises OSError, UnicodeError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=kind, flags=flags)
    return list(dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found))


def _bound(
    family: int, kind: socket.SocketKind, sockaddr: tuple[Any, ...], options: Iterable[tuple[int, int, int]]
) -> socket.socket:
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        for level, option, value in options:
            sock.setsockopt(level, option, value)
        if family == socket.AF_INET6:
            # [::] means everywhere, over IPv4 too; any other IPv6 address means just itself.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, sockaddr[0] != "::")
        sock.bind(sockaddr)
        if kind is socket.SOCK_STREAM:
            sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock
