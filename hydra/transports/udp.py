"""Links over UDP: one socket for all that are accepted, and for those that are dialled (docs/protocols/hydra.md).

A link is open when it is dialled, or when a datagram whose first line is a message comes from a new address. It ends
after `idle` seconds of silence, or when the other side's machine reports that no process listens there.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Any, Final

from hydra.transports.address import UdpAddress
from hydra.transports.base import Accept, LinkListener, TransportError, TransportOptions
from hydra.transports.error_texts import reason
from hydra.transports.icmp import ask_for_refusals
from hydra.transports.udpsocket import UdpSocket

#: Errors of an IPv6 address of `localhost` on a machine without IPv6.
_NOT_HERE: Final = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


def check_udp(address: UdpAddress, options: TransportOptions) -> None:
    """Raise TransportError if the options have a secret, which UDP cannot prove."""
    if options.secret:
        raise TransportError(
            f"{address}: a shared secret cannot protect datagrams, whose sender can be forged: use TCP"
        )


async def dial_udp(
    address: UdpAddress, options: TransportOptions, opened: Accept, *, listeners: Sequence[LinkListener] = ()
) -> None:
    """Open a link, from the socket of one of these listeners if it can reach the address. Raises TransportError.

    Only a received datagram shows whether a node is there.
    """
    check_udp(address, options)
    sockets = [sock for listener in listeners if isinstance(listener, UdpListener) for sock in listener.sockets]
    found = await _resolve(address)
    for family, remote in found:
        for shared in sockets:
            if shared.reaches(family, remote):
                shared.open(remote, opened)
                return
    family, remote = found[0]
    try:
        own = await _open_socket(family, None, options, None)
    except OSError as error:
        raise TransportError(f"{address}: {reason(error)}") from error
    own.close_when_unused()
    own.open(remote, opened)


async def listen_udp(address: UdpAddress, options: TransportOptions, accept: Accept) -> UdpListener:
    """Listen on all IP addresses of the host, on one port. Raises TransportError."""
    check_udp(address, options)
    sockets: list[UdpSocket] = []
    port = address.port
    failure: OSError | None = None
    for family, (host, _, *rest) in await _resolve(address, socket.AI_PASSIVE):
        try:
            sockets.append(await _open_socket(family, (host, port, *rest), options, accept))
        except OSError as error:
            failure = error
            if error.errno not in _NOT_HERE:
                break
        else:
            port = sockets[0].port
    else:
        if sockets:
            return UdpListener(UdpAddress(address.host, port), sockets)
    for each in sockets:
        each.close_when_unused()
    raise TransportError(f"{address}: {reason(failure)}") from failure


async def _resolve(address: UdpAddress, flags: int = 0) -> list[tuple[int, Any]]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM, flags=flags)
    except OSError as error:
        raise TransportError(f"{address}: {reason(error)}") from error
    return list(dict.fromkeys((family, sockaddr) for family, _, _, _, sockaddr in found))


async def _open_socket(family: int, local: Any, options: TransportOptions, accept: Accept | None) -> UdpSocket:
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        ask_for_refusals(sock)
        if local is not None:
            if family == socket.AF_INET6:
                # [::] includes IPv4; any other IPv6 address is itself alone.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, local[0] != "::")
            sock.bind(local)
        _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: UdpSocket(sock, options, accept), sock=sock
        )
    except BaseException:
        sock.close()
        raise
    return protocol


class UdpListener:
    """Accepts links over UDP."""

    def __init__(self, address: UdpAddress, sockets: list[UdpSocket]) -> None:
        self._address = address
        self.sockets = sockets
        """One for each IP address of the host."""

    @property
    def address(self) -> str:
        """The address that other nodes dial."""
        return str(self._address)

    async def close(self) -> None:
        """Accept no more links; a socket closes with its last link."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            sock.close_when_unused()
