"""The two ways a client moves bytes: a blocking socket and asyncio, for any protocol core without I/O.

A core (`ClientCore`) puts what is to be sent into `outgoing` and takes what arrives through `receive_data`.
Its operations are generators: one yields how many seconds it can wait for something to arrive (None: without
limit), after everything in `outgoing` has been sent, and is resumed with True when something has arrived,
False when the time is over. What it returns is the operation's result. `Link` and `AsyncLink` drive them.
"""

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Generator
from typing import Final, Protocol, TypeVar, cast

T = TypeVar("T")
Steps = Generator[float | None, bool, T]

READ_SIZE: Final = 256 * 1024
LINGER: Final = 5.0
"""Seconds a closing client waits for the broker to close too."""


class ClientError(Exception):
    """Anything a client of a wire protocol raises by itself."""


class ConnectionLost(ClientError, ConnectionError):
    """The connection is gone: connect again. What was not confirmed may or may not have been taken."""


class ReplyTimeout(ClientError, TimeoutError):
    """The broker said nothing for too long. The connection has been closed: connect again."""


class ProtocolViolation(ClientError):
    """The other side does not speak this protocol. The connection has been closed."""


class ClientCore(Protocol):
    """A protocol's client side without I/O."""

    outgoing: bytearray

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived; raise ProtocolViolation if they cannot be."""


class Link:
    """A blocking connection. Not for use by two threads at once."""

    def __init__(self, core: ClientCore, host: str, port: int, timeout: float) -> None:
        """Connect, or raise OSError; `timeout` in seconds is for connecting and for each send."""
        self._core = core
        self._timeout = timeout
        self._socket = socket.create_connection((host, port), timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._open = True

    def run(self, steps: Steps[T]) -> T:
        """Carry an operation out; ConnectionLost, ReplyTimeout and ProtocolViolation close the connection."""
        try:
            wait = next(steps)
            while True:
                self._send()
                wait = steps.send(self._receive(wait))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except (ConnectionLost, ReplyTimeout, ProtocolViolation):
            self.abort()
            raise

    def send(self) -> None:
        """Send everything in the core's `outgoing`; raises as `run` does."""
        try:
            self._send()
        except (ConnectionLost, ReplyTimeout, ProtocolViolation):
            self.abort()
            raise

    def close(self) -> None:
        """Send end of stream and wait for the broker's, so that nothing sent is lost to a reset."""
        if self._open:
            # Whatever goes wrong here, the connection is over, which is all that was asked for.
            with contextlib.suppress(OSError, ProtocolViolation):
                self._socket.shutdown(socket.SHUT_WR)
                while self._receive(LINGER):
                    pass
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._open:
            self._open = False
            self._selector.close()
            self._socket.close()

    def _send(self) -> None:
        if not self._open:
            raise ConnectionLost("the connection is closed")
        out = self._core.outgoing
        while out:
            try:
                sent = self._socket.send(out)
            except BlockingIOError:
                self._wait_for_room()
            except OSError as error:
                raise ConnectionLost(str(error)) from error
            else:
                del out[:sent]

    def _wait_for_room(self) -> None:
        """Read while waiting to write: a broker that is itself stuck writing to us would never read on."""
        self._selector.modify(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE)
        try:
            events = self._selector.select(self._timeout)
        finally:
            self._selector.modify(self._socket, selectors.EVENT_READ)
        if not events:
            raise ReplyTimeout(f"the broker took nothing for {self._timeout} s")
        if events[0][1] & selectors.EVENT_READ:
            self._read()

    def _receive(self, wait: float | None) -> bool:
        if not self._selector.select(wait):
            return False
        self._read()
        return True

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError as error:
            raise ConnectionLost(str(error)) from error
        if not data:
            raise ConnectionLost("the broker closed the connection")
        self._core.receive_data(data)


class AsyncLink(asyncio.Protocol):
    """A connection on the running event loop. Operations of several tasks are carried out one by one."""

    _transport: asyncio.Transport

    def __init__(self, core: ClientCore, timeout: float) -> None:
        """`timeout` in seconds is for connecting and for each send."""
        self._core = core
        self._timeout = timeout
        self._error: ClientError | None = ConnectionLost("not connected")
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()
        self._turn = asyncio.Lock()

    async def connect(self, host: str, port: int) -> None:
        """Connect, or raise OSError (TimeoutError is one)."""
        async with asyncio.timeout(self._timeout):
            await asyncio.get_running_loop().create_connection(lambda: self, host, port)

    async def run(self, steps: Steps[T]) -> T:
        """Carry an operation out; ConnectionLost, ReplyTimeout and ProtocolViolation close the connection."""
        async with self._turn:
            try:
                wait = next(steps)
                while True:
                    await self._send()
                    wait = steps.send(await self._receive(wait))
            except StopIteration as finished:
                result: T = finished.value
                return result
            except (ConnectionLost, ReplyTimeout, ProtocolViolation):
                self.abort()
                raise

    async def send(self) -> None:
        """Send everything in the core's `outgoing`; raises as `run` does."""
        try:
            await self._send()
        except (ConnectionLost, ReplyTimeout, ProtocolViolation):
            self.abort()
            raise

    async def close(self) -> None:
        """Send end of stream and wait for the broker's, so that nothing sent is lost to a reset."""
        if self._error is None:
            self._transport.write_eof()
            await self._happens(self._closed, LINGER)
        self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._error is None:
            self._error = ConnectionLost("the connection is closed")
            self._transport.abort()

    async def _send(self) -> None:
        # Asked here only: an operation that has its answer does not care how the connection ended.
        if self._error is not None:
            raise self._error
        if self._core.outgoing:
            self._transport.write(bytes(self._core.outgoing))
            self._core.outgoing.clear()
        if not await self._happens(self._writable, self._timeout):
            raise ReplyTimeout(f"the broker took nothing for {self._timeout} s")

    async def _receive(self, wait: float | None) -> bool:
        happened = await self._happens(self._arrived, wait)
        self._arrived.clear()
        return happened

    @staticmethod
    async def _happens(event: asyncio.Event, wait: float | None) -> bool:
        """Wait for an event; False when the time is over."""
        if not event.is_set():
            try:
                async with asyncio.timeout(wait):
                    await event.wait()
            except TimeoutError:
                return False
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._error = None
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        try:
            self._core.receive_data(data)
        except ProtocolViolation as error:
            self._error = error
            self._transport.abort()
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._error = ConnectionLost(str(exc) if exc else "the connection is closed")
        for event in (self._arrived, self._writable, self._closed):
            event.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
