"""Listening sockets: from an address to what a process accepts connections on."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
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
    found = await _resolve(name, address)
    sockets: list[socket.socket] = []
    port = address.port
    failure: OSError | None = None
    for family, sockaddr in found:
        try:
            sockets.append(_open(family, (sockaddr[0], port, *sockaddr[2:]), reuse_port))
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
    raise _listen_error(name, address, failure) from failure


async def _resolve(name: str, address: HostPort) -> list[tuple[int, tuple[Any, ...]]]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of the name is too long or empty
        raise _listen_error(name, address, error) from error
    return list(dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found))


def _open(family: int, sockaddr: tuple[Any, ...], reuse_port: bool) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        for level, option, value in SOCKET_OPTIONS:
            sock.setsockopt(level, option, value)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            # [::] means everywhere, over IPv4 too; any other IPv6 address means just itself.
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, sockaddr[0] != "::")
        sock.bind(sockaddr)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_error(name: str, address: HostPort, error: OSError | UnicodeError | None) -> ListenError:
    reason = getattr(error, "strerror", None) or str(error)
    return ListenError(f"{name} can't listen on {address}: {reason}")
