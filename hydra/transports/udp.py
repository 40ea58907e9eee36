"""Links over UDP: one socket for all that are accepted, and for those that are dialled (docs/protocols/hydra.md).

A link is open when it is dialled, or when a datagram whose first line is a message comes from a new address. It ends
after `idle` seconds of silence, or when the other side's machine reports that no process listens there.

Nothing is queued: a datagram that the kernel does not take at once is lost, as it may be on its way.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Sequence
from typing import Any, Final

from hydra import clock
from hydra.transports.address import UdpAddress
from hydra.transports.base import Accept, LinkListener, TransportError, TransportOptions
from hydra.transports.datagrams import begins_with_message, packed, whole_lines
from hydra.transports.error_texts import reason
from hydra.transports.icmp import ask_for_refusals, take_refusals
from hydra.transports.stream import StreamLink
from queues.log_throttle import LogThrottle
from wire.net.address import ip_address
from wire.net.sockets import bind_all, resolve

logger = logging.getLogger(__name__)

#: Links that one socket accepts: forged addresses must not take up all links of a node.
MAX_ACCEPTED: Final = 64
#: Attempts to send a datagram: the kernel may report an earlier one's refusal instead.
ATTEMPTS: Final = 4


async def dial_udp(
    address: UdpAddress, options: TransportOptions, opened: Accept, *, listeners: Sequence[LinkListener] = ()
) -> None:
    """Open a link, from the socket of one of these listeners if it can reach the address. Raises TransportError.

    Only a received datagram shows whether a node is there.
    """
    sockets = [sock for listener in listeners if isinstance(listener, UdpListener) for sock in listener.sockets]
    try:
        found = await resolve(address, socket.SOCK_DGRAM)
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
    try:
        bound = await bind_all(address, socket.SOCK_DGRAM)
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
        self.address = str(address)
        self.sockets = sockets
        """One for each IP address of the host."""

    async def close(self) -> None:
        """Accept no more links; a socket closes with its last link."""
        sockets, self.sockets = self.sockets, []
        for sock in sockets:
            sock.close_when_unused()


class UdpSocket(asyncio.DatagramProtocol):
    """A socket, and its links by their remote addresses."""

    def __init__(self, sock: socket.socket, options: TransportOptions, accept: Accept | None) -> None:
        self._sock = sock
        self._options = options
        self._accept = accept
        self._links: dict[Any, UdpCarrier] = {}
        self._transport: asyncio.BaseTransport | None = None
        self._loop = asyncio.get_running_loop()
        self._throttle = LogThrottle()
        self._wanted = True

    @property
    def port(self) -> int:
        """Its local port."""
        port: int = self._sock.getsockname()[1]
        return port

    def reaches(self, family: int, remote: Any) -> bool:
        """Whether an address can be reached from the local one."""
        if family != self._sock.family:
            return False
        bound, there = (ip_address(each[0].partition("%")[0]) for each in (self._sock.getsockname(), remote))
        return bound.is_unspecified or bound.is_loopback == there.is_loopback

    def open(self, remote: Any, opened: Accept) -> None:
        """Open a link to an address; it replaces one accepted from there."""
        before = self._links.get(remote)
        if before is not None:
            if before.dialled:
                raise TransportError(f"{UdpAddress(remote[0], remote[1])}: there is a link already")
            before.end("this node has dialled the same address")
        self._add(remote, opened, dialled=True)

    def close_when_unused(self) -> None:
        """Accept no more links, and close with the last one."""
        self._accept = None
        self._wanted = False
        self._loop.call_soon(self._close_if_unused)

    def send(self, link: UdpCarrier, datagram: bytes) -> None:
        """Send a datagram, or lose it."""
        for _ in range(ATTEMPTS):
            try:
                self._sock.sendto(datagram, link.remote)
            except BlockingIOError:
                return
            except ConnectionRefusedError:
                self._note_refusals()
            except OSError as error:
                link.end(reason(error))
                return
            else:
                return

    def forget(self, link: UdpCarrier) -> None:
        """A link has ended."""
        if self._links.get(link.remote) is link:
            del self._links[link.remote]
        if not self._wanted:
            self._loop.call_soon(self._close_if_unused)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, remote: Any) -> None:
        try:
            self._take(data, remote)
        except Exception as error:
            self._options.fault(f"datagram from {remote[0]}", error)

    def _take(self, data: bytes, remote: Any) -> None:
        link = self._links.get(remote)
        if link is None and self._accept is not None and begins_with_message(data):
            link = self._admit(remote, self._accept)
        if link is not None:
            link.datagram_received(data)

    def error_received(self, error: Exception) -> None:
        self._note_refusals()

    # Links.

    def _admit(self, remote: Any, accept: Accept) -> UdpCarrier | None:
        accepted = sum(not link.dialled for link in self._links.values())
        if accepted < MAX_ACCEPTED:
            return self._add(remote, accept, dialled=False)
        if count := self._throttle.admit("full", clock.now()):
            logger.warning("UDP port %d refused %d link(s): %d are open already", self.port, count, accepted)
        return None

    def _add(self, remote: Any, opened: Accept, *, dialled: bool) -> UdpCarrier:
        carrier = self._links[remote] = UdpCarrier(self, remote, self._options, opened, dialled=dialled)
        carrier.link.start()
        return carrier

    def _note_refusals(self) -> None:
        for remote in take_refusals(self._sock):
            link = self._links.get(remote)
            if link is not None:
                link.end("refused")

    def _close_if_unused(self) -> None:
        if not self._links and self._transport is not None:
            self._transport.close()
            self._transport = None


class UdpCarrier:
    """Carries one link's lines in datagrams (`hydra.transports.stream.ByteCarrier`)."""

    def __init__(
        self, socket: UdpSocket, remote: Any, options: TransportOptions, opened: Accept, *, dialled: bool
    ) -> None:
        self.remote = remote
        self.dialled = dialled
        self.link = StreamLink(self, str(ip_address(remote[0])), options, opened, dialled=dialled)
        self._socket = socket
        self._idle = options.idle
        self._is_open = True
        self._waiting = b""
        self._loop = asyncio.get_running_loop()
        self._heard = clock.now()
        self._timer = self._loop.call_later(self._idle, self._look)
        self._flush_soon: asyncio.Handle | None = None

    def write(self, data: bytes) -> None:
        """Send lines; those of one turn of the event loop share datagrams."""
        if not self._is_open:
            return
        self._waiting += data
        if self._flush_soon is None:
            self._flush_soon = self._loop.call_soon(self._flush)

    def get_write_buffer_size(self) -> int:
        """Nothing is queued."""
        return 0

    def close(self) -> None:
        """Send what was written in this turn, then close."""
        self._flush()
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._is_open:
            self._is_open = False
            self._timer.cancel()
            if self._flush_soon is not None:
                self._flush_soon.cancel()
            self._socket.forget(self)

    def datagram_received(self, data: bytes) -> None:
        """Take a datagram."""
        self._heard = clock.now()
        self.link.take(whole_lines(data))

    def end(self, reason: str) -> None:
        """End the link; the handler is called later."""
        self.abort()
        self._loop.call_soon(self.link.lost, reason)

    def _flush(self) -> None:
        self._flush_soon = None
        waiting, self._waiting = self._waiting, b""
        for datagram in packed(waiting):
            if self._is_open:  # sending may end it
                self._socket.send(self, datagram)

    def _look(self) -> None:
        silent_at = self._heard + self._idle
        if clock.now() >= silent_at:
            self.end(f"silent for {self._idle:g} s")
        else:
            self._timer = clock.call_at(self._loop, silent_at, self._look)
