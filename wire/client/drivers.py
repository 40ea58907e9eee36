"""The two ways a client moves bytes, for any protocol core of `wire.client.protocol`: a blocking socket and asyncio.

`ClientDriver` and `AsyncClientDriver` carry a core's operations out: they send its bytes, wait as long as it says,
and hand over what arrives. TLS is a core around a core, so neither driver knows of reads that wait for writes.
"""

import asyncio
import contextlib
import selectors
import socket
from collections.abc import Callable
from typing import Final, cast

from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, TlsFailed
from wire.client.protocol import READ_SIZE, ClientProtocol, Steps, T, TlsCore

#: Seconds a closing client waits for the broker to close too.
LINGER: Final = 5.0


#: Options of a socket whose other side may be cut off: after 15 s of silence, and then every 5 s, it is asked.
KEEP_ALIVE: Final = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))


def watch(connection: socket.socket | None) -> None:
    """Send small packets at once, and let the system end the connection when the other side does not answer it."""
    if connection is None:  # of a transport that is no socket
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE:
        if hasattr(socket, name):  # not on every system
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _ended(core: ClientProtocol, why: str) -> ConnectionLost:
    """Return the error that the end of this connection is for the client."""
    return core.ended(why) if isinstance(core, TlsCore) else ConnectionLost(why)


class ClientDriver:
    """A blocking connection, for one thread at a time."""

    def __init__(self, core: ClientProtocol, timeout: float) -> None:
        """`timeout` in seconds is for connecting and for each send."""
        self._core = core
        self._timeout = timeout
        self._open = False
        self._socket: socket.socket  # these two from `connect` on
        self._selector: selectors.BaseSelector
        self._lost: ConnectionLost | None = None
        self._arrived = False

    def connect(self, host: str, port: int, handshake: Steps[T] | None = None) -> T | None:
        """Connect, agree on TLS if the core is a TlsCore, carry the protocol's own handshake out; return its result.

        Raises OSError (TimeoutError and TlsFailed are such), and what the handshake raises. Nothing is open then.
        """
        self._socket = socket.create_connection((host, port), self._timeout)
        watch(self._socket)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._open = True
        try:
            if isinstance(self._core, TlsCore):
                self.run(self._core.handshake(self._timeout))
                self.send()
            result = None if handshake is None else self.run(handshake)
            self.send()
        except BaseException:
            self.abort()
            raise
        return result

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
        """Send end of stream and wait for the broker's, so that nothing sent is lost to a reset.

        Raises TlsFailed if the broker has refused the connection only now, and so everything that was sent.
        """
        if self._open:
            try:
                self._end_of_stream()
                while self._lost is None and self._receive(LINGER):
                    pass
            except TlsFailed:
                raise
            except (OSError, ProtocolViolation):
                pass  # the connection is over, as intended
            finally:
                self.abort()

    def abort(self) -> None:
        """Close at once."""
        if self._open:
            self._open = False
            self._selector.close()
            self._socket.close()

    def _end_of_stream(self) -> None:
        if isinstance(self._core, TlsCore):
            self._core.finish()
            self._send()
        else:
            self._socket.shutdown(socket.SHUT_WR)

    def _send(self) -> None:
        if not self._open:
            raise ConnectionLost("the connection is closed")
        # Checked here only: an operation that has its answer succeeds, however the connection ended.
        if self._lost is not None:
            raise self._lost
        out = self._core.outgoing
        while out:
            try:
                sent = self._socket.send(out)
            except BlockingIOError:
                self._wait_for_room()
            except OSError as error:
                self._hear_out()
                raise _ended(self._core, str(error)) from error
            else:
                del out[:sent]

    def _hear_out(self) -> None:
        """Raise TlsFailed if the broker has refused TLS before it closed the connection."""
        try:
            while isinstance(self._core, TlsCore):
                self._read()
        except TlsFailed:
            raise
        except (ConnectionLost, ProtocolViolation):
            pass  # all is read

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
        # Data may have come while sending.
        if not self._arrived:
            if not self._selector.select(wait):
                return False
            self._read()
        self._arrived = False
        return True

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_SIZE)
        except OSError as error:
            raise _ended(self._core, str(error)) from error
        if not data:
            raise _ended(self._core, "the broker closed the connection")
        self._arrived = True
        try:
            self._core.receive_data(data)
        except TlsFailed:
            with contextlib.suppress(OSError):  # tell the broker why
                self._socket.send(self._core.outgoing)
            raise
        except ConnectionLost as error:
            self._lost = error


class AsyncClientDriver(asyncio.Protocol):
    """A connection on the running event loop, for one operation at a time; `send` may be called beside it."""

    def __init__(self, core: ClientProtocol, timeout: float) -> None:
        """`timeout` in seconds is for connecting and for each send."""
        self._core = core
        self._timeout = timeout
        self._transport: asyncio.Transport | None = None
        self._error: ClientError | None = ConnectionLost("not connected")
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._closed = asyncio.Event()
        #: Called once when the connection ends otherwise than by `close` or `abort`, before any operation hears of it.
        self.on_lost: Callable[[ClientError], object] | None = None

    async def connect(self, host: str, port: int, handshake: Steps[T] | None = None) -> T | None:
        """Connect, agree on TLS if the core is a TlsCore, carry the protocol's own handshake out; return its result.

        Raises OSError (TimeoutError and TlsFailed are such), and what the handshake raises. Nothing is open then.
        """
        async with asyncio.timeout(self._timeout):
            await asyncio.get_running_loop().create_connection(lambda: self, host, port)
        try:
            if isinstance(self._core, TlsCore):
                await self.run(self._core.handshake(self._timeout))
                await self.send()
            result = None if handshake is None else await self.run(handshake)
            await self.send()
        except BaseException:
            self.abort()
            raise
        return result

    async def run(self, steps: Steps[T]) -> T:
        """Carry an operation out; ConnectionLost, ReplyTimeout and ProtocolViolation close the connection."""
        try:
            wait = next(steps)
            while True:
                await self._send()
                wait = steps.send(await self._receive(wait))
        except StopIteration as finished:
            result: T = finished.value
            return result
        except (ConnectionLost, ReplyTimeout, ProtocolViolation) as error:
            self.lose(error)
            raise

    async def send(self) -> None:
        """Send everything in the core's `outgoing`; raises as `run` does."""
        try:
            await self._send()
        except (ConnectionLost, ReplyTimeout, ProtocolViolation) as error:
            self.lose(error)
            raise

    def write(self) -> None:
        """Send everything in the core's `outgoing`, unless the connection has ended, however much is under way."""
        if self._error is None:
            self._write()

    async def close(self) -> None:
        """Send end of stream and wait for the broker's, so that nothing sent is lost to a reset.

        Raises TlsFailed if the broker has refused the connection only now, and so everything that was sent.
        """
        self.on_lost = None
        if self._error is None:
            self._end_of_stream()
            await self._happens(self._closed, LINGER)
        error = self._error
        self.abort()
        if isinstance(error, TlsFailed):
            raise error

    def abort(self) -> None:
        """Close at once."""
        self.on_lost = None
        self._error = ConnectionLost("the connection is closed")
        if self._transport is not None:
            self._transport.abort()

    def lose(self, error: ClientError) -> None:
        """End the connection because of an error."""
        self._ended(error)
        self.abort()

    @property
    def writable(self) -> bool:
        """Whether the broker takes more."""
        return self._writable.is_set()

    def _ended(self, error: ClientError) -> None:
        on_lost, self.on_lost = self.on_lost, None
        self._error = error
        if on_lost is not None:
            on_lost(error)

    def _end_of_stream(self) -> None:
        assert self._transport is not None
        if isinstance(self._core, TlsCore):
            self._core.finish()
            self._write()
        else:
            self._transport.write_eof()

    def _write(self) -> None:
        assert self._transport is not None
        if out := self._core.outgoing:
            self._transport.write(bytes(out))
            out.clear()

    async def _send(self) -> None:
        # Checked here only: an operation that has its answer succeeds, however the connection ended.
        if self._error is not None:
            raise self._error
        self._write()
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
        watch(transport.get_extra_info("socket"))
        self._error = None
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._core.receive_data(data)
        except TlsFailed as error:
            self._write()  # tell the broker why
            self._transport.close()
            self._ended(error)
        except (ConnectionLost, ProtocolViolation) as error:
            self._transport.abort()
            self._ended(error)
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._error is None:
            self._ended(_ended(self._core, str(exc) if exc else "the broker closed the connection"))
        for event in (self._arrived, self._writable, self._closed):
            event.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
