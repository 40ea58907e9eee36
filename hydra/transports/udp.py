"""Links over UDP: one socket for all that are accepted, and for those that are dialled (docs/protocols/hydra.md).

A link is open when it is dialled, or when a datagram whose first line is a message comes from a new address. It ends
after `idle` seconds of silence, or when the other side's machine reports that no process listens there.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

from hydra.transports.address import UdpAddress
from hydra.transports.base import Accept, LinkListener, TransportError, TransportOptions
from hydra.transports.error_texts import reason
from hydra.transports.icmp import ask_for_refusals
from hydra.transports.udpsocket import UdpSocket
from wire.net.address import HostPort
from wire.net.sockets import bind_all, resolve


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
    try:
        found = await resolve(HostPort(address.host, address.port), socket.SOCK_DGRAM)
        ways = [(sock, remote) for family, remote in found for sock in sockets if sock.reaches(family, remote)]
        if not ways:
            family, remote = found[0]
            ways = [(await _serve(socket.socket(family, socket.SOCK_DGRAM), options, None), remote)]
            ways[0][0].close_when_unused()
    except (OSError, UnicodeError) as error:
        raise TransportError(f"{address}: {reason(error)}") from error
    sock, remote = ways[0]
    sock.open(remote, opened)


async def listen_udp(address: UdpAddress, options: TransportOptions, accept: Accept) -> UdpListener:
    """Listen on all IP addresses of the host, on one port. Raises TransportError."""
    check_udp(address, options)
    try:
        bound = await bind_all(HostPort(address.host, address.port), socket.SOCK_DGRAM)
        sockets = [await _serve(sock, options, accept) for sock in bound]
    except (OSError, UnicodeError) as error:
        raise TransportError(f"{address}: {reason(error)}") from error
    return UdpListener(UdpAddress(address.host, sockets[0].port), sockets)


async def _serve(sock: socket.socket, options: TransportOptions, accept: Accept | None) -> UdpSocket:
    sock.setblocking(False)
    ask_for_refusals(sock)
    _, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: UdpSocket(sock, options, accept), sock=sock
    )
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
