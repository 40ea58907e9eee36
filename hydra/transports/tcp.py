"""Links over TCP, with TLS and a shared secret if there are any (docs/protocols/hydra.md, "Transports").

Connections are accepted here and not by asyncio's server, so that those in their TLS handshake or proof are counted,
and a failed one is logged with its reason.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from typing import Any, Final, cast

from hydra import clock
from hydra.transports.address import TcpAddress
from hydra.transports.base import Accept, NothingSent, TransportError, TransportOptions
from hydra.transports.error_texts import CLOSED, reason
from hydra.transports.stream import StreamLink
from queues.log_throttle import LogThrottle
from wire.net.acceptor import Acceptor
from wire.net.address import ip_address
from wire.net.sockets import ListenError, open_sockets

logger = logging.getLogger(__name__)

#: Accepted connections in their handshake or proof; one more ends the oldest of them.
MAX_STRANGERS: Final = 64
#: Bytes read at a time: they bound a flooding neighbour's share of the event loop, and TCP slows it down.
READ: Final = 8192
#: Seconds for the other side's part in the end of TLS.
TLS_SHUTDOWN: Final = 1.0


async def dial_tcp(address: TcpAddress, options: TransportOptions, opened: Accept) -> None:
    """Connect. Raises TransportError."""
    loop = asyncio.get_running_loop()
    connection = _Connection(address.host, options, opened, dialled=True)
    tls: dict[str, Any] = {}
    if options.client_tls is not None:
        tls = {"ssl": options.client_tls, "server_hostname": address.host, "ssl_shutdown_timeout": TLS_SHUTDOWN}
    try:
        async with asyncio.timeout(options.connect_timeout):
            await loop.create_connection(lambda: connection, address.host, address.port, **tls)
        await connection.opened()
    except BaseException as error:
        connection.give_up("no longer wanted")
        if isinstance(error, TimeoutError):
            raise TransportError(f"{address}: no answer within {options.connect_timeout:g} s") from error
        if isinstance(error, OSError | TransportError):
            raise TransportError(f"{address}: {reason(error)}") from error
        raise


async def listen_tcp(address: TcpAddress, options: TransportOptions, accept: Accept) -> TcpListener:
    """Listen on all IP addresses of the host. Raises TransportError."""
    try:
        sockets = await open_sockets("hydra", address, reuse_port=False)
    except ListenError as error:
        raise TransportError(str(error)) from error
    for sock in sockets:
        # Accepted sockets inherit this. The protocol has heartbeats of its own.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    return TcpListener(address, options, accept, sockets)


class TcpListener:
    """Accepts links over TCP."""

    def __init__(
        self, address: TcpAddress, options: TransportOptions, accept: Accept, sockets: list[socket.socket]
    ) -> None:
        self._options = options
        self._accept = accept
        self._loop = asyncio.get_running_loop()
        self._strangers: dict[asyncio.Task[None], _Connection] = {}
        self._throttle = LogThrottle()
        self._acceptor = Acceptor(f"hydra {address}", sockets, self._admit)
        self.address = str(TcpAddress(address.host, self._acceptor.port))

    async def close(self) -> None:
        """Accept no more links, and end those in their handshake or proof."""
        self._acceptor.close()
        strangers = dict(self._strangers)
        for task, connection in strangers.items():
            if not connection.is_open:
                task.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)

    def _admit(self, sock: socket.socket, origin: str, port: int) -> None:
        if len(self._strangers) >= MAX_STRANGERS:
            self._make_room()
        connection = _Connection(origin, self._options, self._accept, dialled=False)
        task = self._loop.create_task(self._introduce(sock, connection), name=f"hydra accepts {origin}")
        self._strangers[task] = connection
        task.add_done_callback(functools.partial(self._introduced, sock, connection))

    def _make_room(self) -> None:
        # Neighbours with the secret prove it in a moment, so they succeed under a flood, too.
        for task, connection in self._strangers.items():
            if not connection.is_open:
                task.cancel()
                del self._strangers[task]
                self._refused(connection.origin, f"more than {MAX_STRANGERS} are in their handshake or proof")
                return

    async def _introduce(self, sock: socket.socket, connection: _Connection) -> None:
        """Complete the TLS handshake and the proof on an accepted socket."""
        tls: dict[str, Any] = {}
        if self._options.server_tls is not None:
            tls = {"ssl": self._options.server_tls, "ssl_shutdown_timeout": TLS_SHUTDOWN}
            tls["ssl_handshake_timeout"] = self._options.connect_timeout
        await self._loop.connect_accepted_socket(lambda: connection, sock, **tls)
        await connection.opened()

    def _introduced(self, sock: socket.socket, connection: _Connection, task: asyncio.Task[None]) -> None:
        self._strangers.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        connection.give_up("no longer waited for")
        sock.close()
        if isinstance(error, NothingSent):
            logger.debug("%s: %s connected and sent nothing", self.address, connection.origin)
        elif isinstance(error, OSError | TransportError):
            self._refused(connection.origin, reason(error))
        elif error is not None:
            logger.error("%s: a link could not be set up", self.address, exc_info=error)

    def _refused(self, origin: str, why: str) -> None:
        if count := self._throttle.admit("refused", clock.now()):
            logger.warning("%s refused %d link(s), the last from %s: %s", self.address, count, origin, why)


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection, which carries its link's lines (`hydra.transports.stream.ByteCarrier`).

    While the system takes no more, lines are gathered here: asyncio's transports go through all that was written to
    them at each write, from Python 3.12 on, and lines are short.
    """

    def __init__(self, origin: str, options: TransportOptions, opened: Accept, *, dialled: bool) -> None:
        self.origin = origin
        self._options = options
        self._opened = opened
        self._dialled = dialled
        self._link: StreamLink | None = None
        self._transport: asyncio.Transport
        self._buffer = bytearray(READ)
        self._paused = False
        self._waiting = bytearray()

    async def opened(self) -> None:
        """Return when the link is open. Raises TransportError."""
        assert self._link is not None  # the loop has called connection_made
        await self._link.outcome

    @property
    def is_open(self) -> bool:
        """Whether its link was opened."""
        return self._link is not None and self._link.outcome.done()

    def give_up(self, reason: str) -> None:
        """Close the connection; uvloop may not report its end after an interrupted connect."""
        if self._link is not None:
            self._link.give_up(reason)
            self._link.lost(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(1)  # with 0, TLS would be paused for ever
        peer = transport.get_extra_info("peername")
        origin = str(ip_address(peer[0])) if peer else self.origin  # None: it is gone again
        self._link = StreamLink(self, origin, self._options, self._opened, dialled=self._dialled)
        self._link.start()

    def write(self, data: bytes) -> None:
        """Send without waiting, or queue. What is written to a connection that has failed is dropped."""
        if self._paused:
            self._waiting += data
        elif not self._transport.is_closing():
            self._transport.write(data)

    def get_write_buffer_size(self) -> int:
        """Bytes in the queue."""
        return self._transport.get_write_buffer_size() + len(self._waiting)

    def close(self) -> None:
        """Close. A link with bytes in its queue is aborted instead."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._waiting.clear()
        self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        waiting, self._waiting = bytes(self._waiting), bytearray()
        if waiting:
            self.write(waiting)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._link is not None:
            self._link.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        # A side that sends nothing more is no neighbour, even if it still reads.
        if self._link is not None:
            self._link.lost(CLOSED)

    def connection_lost(self, error: Exception | None) -> None:
        if self._link is not None:
            self._link.lost(reason(error))
