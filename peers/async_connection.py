"""A peer's connection on the running event loop, made again whenever it is lost: the transport of `AsyncPeerClient`.

One task owns the connection: it reads, and connects again. Other tasks put frames into the core, push them, and wait
for a condition, which is looked at whenever something has changed.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from peers.codec.envelope import MAX_FRAME
from peers.connection import LINGER, PeerConnection
from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, again


@dataclass(eq=False)
class AsyncConnection(PeerConnection):
    """Carries frames for a core, for any number of tasks."""

    _socket: ClientConnection | None = None
    _runner: asyncio.Task[None] | None = None
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unsent: asyncio.Event = field(default_factory=asyncio.Event)

    async def connect(self) -> None:
        """Connect and register. Raises OSError, Rejected, ConnectionLost, ReplyTimeout, ProtocolViolation."""
        await self._open()
        self.life.connected(self.core.unconfirmed)
        self._runner = asyncio.create_task(self._run())

    async def push(self) -> None:
        """Send the core's outgoing frames, if there is a connection, and wait while the broker takes no more."""
        self.check()
        self.tell()  # the reader goes on when an answer is awaited
        async with self._turn:
            await self._send()

    async def until(self, happened: Callable[[], object], timeout: float | None) -> bool:
        """Return True when this has happened, False when the time is over. Raises the error that ended the client."""
        try:
            async with asyncio.timeout(timeout) as scope:
                while not happened():
                    self.check()
                    await self._news.wait()
        except TimeoutError:
            if not scope.expired():
                raise
            return False
        return True

    def tell(self) -> None:
        """Wake all tasks in `until`: something has changed."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def check(self) -> None:
        """Raise the error that ended the client, or ConnectionLost if it is closed."""
        if self.core.error is not None:
            raise again(self.core.error)
        if self._runner is None or self._runner.done():
            raise ConnectionLost("not connected")

    async def close(self) -> None:
        """Disconnect for good."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])
        await self._drop(None)
        self.life.closed()
        self.tell()

    async def _open(self) -> None:
        options: dict[str, Any] = {} if self.tls is None else {"ssl": self.tls}
        try:
            self._socket = await connect(
                self.url, compression=None, max_size=MAX_FRAME, open_timeout=self.timeout, close_timeout=LINGER,
                **options,
            )  # fmt: skip
        except WebSocketException as error:
            raise ProtocolViolation(f"no WebSocket there: {error}") from error
        try:
            async with asyncio.timeout(self.timeout):
                await self._register(self._socket)
        except TimeoutError:
            await self._drop(None)
            raise ReplyTimeout(f"no answer to the register for {self.timeout} s") from None
        except BaseException:
            await self._drop(None)
            raise

    async def _register(self, socket: ClientConnection) -> None:
        self.core.connected()
        try:
            await socket.send(self.core.outgoing.popleft(), text=True)
            while not self.core.established:
                self._take(await socket.recv())
        except ConnectionClosed as closed:
            raise await self._drop(closed) or ConnectionLost(str(closed)) from closed

    async def _run(self) -> None:
        sender = asyncio.create_task(self._send_replies())
        try:
            while True:
                lost = await self._pump()
                if self.core.error is None:
                    await self._reconnect(ConnectionLost(str(lost)))
                if self.core.error is not None:
                    return
        finally:
            sender.cancel()
            self.tell()

    async def _pump(self) -> ConnectionClosed:
        """Read until the connection is lost; how."""
        socket = self._socket
        assert socket is not None
        self._unsent.set()
        try:
            while True:
                self._take(await socket.recv())
                self.tell()
                self._unsent.set()
                await self.until(self._has_room, None)
        except ConnectionClosed as closed:
            await self._drop(closed)
            self.tell()
            return closed

    def _has_room(self) -> bool:
        # An answer may be behind messages that the host does not take.
        return len(self.core.inbox) < self.prefetch or self.core.awaits_answer

    async def _send_replies(self) -> None:
        """In a task of its own: a reader that waited for the broker to read would deadlock with a broker doing so."""
        while True:
            await self._unsent.wait()
            self._unsent.clear()
            if self.core.outgoing:
                async with self._turn:
                    await self._send()

    async def _send(self) -> None:
        outgoing = self.core.outgoing
        with contextlib.suppress(ConnectionClosed):  # the reader sees it too, and connects again
            while outgoing and self._socket is not None:
                await self._socket.send(outgoing.popleft(), text=True)

    async def _reconnect(self, error: Exception) -> None:
        while True:
            await asyncio.sleep(self.life.delay_after(error))
            try:
                await self._open()
            except (OSError, ClientError) as failure:
                error = failure
                if self.core.error is not None:
                    return
            else:
                self.life.connected(self.core.unconfirmed)
                self.tell()
                return

    async def _drop(self, closed: ConnectionClosed | None) -> Exception | None:
        """Forget the connection, which has ended; return the broker's rejection, if it was one."""
        socket, self._socket = self._socket, None
        rejection = self._disconnected(closed)
        if socket is not None:
            await socket.close()
        return rejection
