"""Links over TCP, with TLS and a shared secret if there are any (docs/protocols/hydra.md, "Transports").

Connections are accepted here and not by asyncio's server, so that those whose TLS handshake or proof is not over can be
counted, and why one of them failed can be said.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import socket
from typing import Any, Final, cast

from hydra import clock
from hydra.transports.address import TcpAddress
from hydra.transports.base import Accept, TransportError, TransportOptions
from hydra.transports.stream import StreamLink
from hydra.transports.words import CLOSED, reason
from wire.accepting import Acceptor
from wire.address import Address, ip_address
from wire.limits import LogThrottle
from wire.sockets import ListenError, open_sockets

logger = logging.getLogger(__name__)

MAX_STRANGERS: Final = 64
"""Accepted connections whose handshake or proof is not over; one more ends that which has taken longest so far."""
READ: Final = 8192
"""Bytes read at a time: a neighbour that floods has the event loop no longer than these take, and TCP slows it down."""
TLS_SHUTDOWN: Final = 1.0
"""Seconds in which the other side has to agree to the end of TLS."""


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
    """Listen on every IP address that the host stands for. Raises TransportError."""
    try:
        sockets = await open_sockets("hydra", Address(address.host, address.port), reuse_port=False)
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
        self._address = TcpAddress(address.host, self._acceptor.port)

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(self._address)

    async def close(self) -> None:
        """Accept nothing more, nor those who have not proved who they are."""
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
        # Those who know the secret are through in a moment: so they are let in under a flood, too.
        for task, connection in self._strangers.items():
            if not connection.is_open:
                task.cancel()
                del self._strangers[task]
                self._refused(connection.origin, f"more than {MAX_STRANGERS} wait to prove who they are")
                return

    async def _introduce(self, sock: socket.socket, connection: _Connection) -> None:
        """Give the socket to the event loop, and wait for the end of the TLS handshake and the proof."""
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
        if isinstance(error, OSError | TransportError):
            self._refused(connection.origin, reason(error))
        elif error is not None:
            logger.error("%s: a link could not be set up", self._address, exc_info=error)

    def _refused(self, origin: str, why: str) -> None:
        if count := self._throttle.admit("refused", clock.now()):
            logger.warning("%s refused %d link(s), the last from %s: %s", self._address, count, origin, why)


class _Connection(asyncio.BufferedProtocol):
    """One TCP connection."""

    def __init__(self, origin: str, options: TransportOptions, opened: Accept, *, dialled: bool) -> None:
        self.origin = origin
        self._options = options
        self._opened = opened
        self._dialled = dialled
        self._link: StreamLink | None = None
        self._buffer = bytearray(READ)

    async def opened(self) -> None:
        """Return when the link is open. Raises TransportError."""
        assert self._link is not None  # the loop has called connection_made
        await self._link.outcome

    @property
    def is_open(self) -> bool:
        """Whether its link has been opened; then it goes its own way."""
        return self._link is not None and self._link.outcome.done()

    def give_up(self, reason: str) -> None:
        """Close the connection; uvloop, interrupted in connecting, may not report the end of one that is made."""
        if self._link is not None:
            self._link.give_up(reason)
            self._link.lost(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        origin = str(ip_address(peer[0])) if peer else self.origin  # none: it is gone again
        self._link = StreamLink(transport, origin, self._options, self._opened, dialled=self._dialled)
        self._link.start()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._link is not None:
            self._link.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> None:
        # Who sends nothing more is no neighbour, even if it still reads.
        if self._link is not None:
            self._link.lost(CLOSED)

    def connection_lost(self, error: Exception | None) -> None:
        if self._link is not None:
            self._link.lost(reason(error))
