"""A peer's connection on the running event loop, made again whenever it is lost. What `AsyncPeerClient` stands on.

One task has the connection: it reads, and connects again. Others put frames into the core, push them, and wait for
news: whenever something has changed, all who wait look whether it is what they wait for.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from peers.backoff import Backoff
from peers.client_core import ClientCore
from peers.codec.envelope import MAX_FRAME
from peers.connection import LINGER, check_url, close_of
from peers.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, again


class AsyncConnection:
    """Carries out what a core wants, for any number of tasks."""

    def __init__(
        self,
        core: ClientCore,
        url: str,
        *,
        timeout: float,
        prefetch: int,
        tls: ssl.SSLContext | None,
        backoff: Backoff,
    ) -> None:
        """Nothing happens yet: `connect`. Raises ValueError for a URL that is none."""
        check_url(url)
        self._core = core
        self._url = url
        self._timeout = timeout
        self._prefetch = prefetch
        self._tls = tls
        self._backoff = backoff
        self._socket: ClientConnection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()
        self._unsent = asyncio.Event()

    async def connect(self) -> None:
        """Connect and register. Raises OSError, Rejected, ConnectionLost, ReplyTimeout, ProtocolViolation."""
        await self._open()
        self._runner = asyncio.create_task(self._run())

    async def push(self) -> None:
        """Send what is to be sent, if there is a connection, and wait while the broker takes no more."""
        self.check()
        self.tell()  # whoever reads goes on when there is something to be answered
        async with self._turn:
            await self._send()

    async def until(self, happened: Callable[[], object]) -> None:
        """Return when something has happened. Raises what ended the client."""
        while not happened():
            self.check()
            await self._news.wait()

    def tell(self) -> None:
        """Something has changed: whoever waits may look."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    def check(self) -> None:
        """Raise what ended the client, or ConnectionLost if it is closed."""
        if self._core.error is not None:
            raise again(self._core.error)
        if self._runner is None or self._runner.done():
            raise ConnectionLost("not connected")

    async def close(self) -> None:
        """Disconnect for good."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            await asyncio.wait([runner])
        await self._drop(None)
        self.tell()

    async def _open(self) -> None:
        options: dict[str, Any] = {} if self._tls is None else {"ssl": self._tls}
        try:
            self._socket = await connect(
                self._url, compression=None, max_size=MAX_FRAME, open_timeout=self._timeout, close_timeout=LINGER,
                **options,
            )  # fmt: skip
        except WebSocketException as error:
            raise ProtocolViolation(f"no WebSocket there: {error}") from error
        try:
            async with asyncio.timeout(self._timeout):
                await self._register(self._socket)
        except TimeoutError:
            await self._drop(None)
            raise ReplyTimeout(f"no answer to the register for {self._timeout} s") from None
        except BaseException:
            await self._drop(None)
            raise

    async def _register(self, socket: ClientConnection) -> None:
        self._core.connected()
        try:
            await socket.send(self._core.outgoing.popleft(), text=True)
            while not self._core.established:
                self._take(await socket.recv())
        except ConnectionClosed as closed:
            raise await self._drop(closed) or ConnectionLost(str(closed)) from closed

    async def _run(self) -> None:
        sender = asyncio.create_task(self._send_what_reading_brings())
        try:
            while True:
                await self._pump()
                if self._core.error is None:
                    await self._reconnect()
                if self._core.error is not None:
                    return
        finally:
            sender.cancel()
            self.tell()

    async def _pump(self) -> None:
        """Read until the connection is lost."""
        socket = self._socket
        assert socket is not None
        self._unsent.set()
        try:
            while True:
                self._take(await socket.recv())
                self.tell()
                self._unsent.set()
                await self.until(self._has_room)
        except ConnectionClosed as closed:
            await self._drop(closed)
            self.tell()

    def _has_room(self) -> bool:
        # An answer may be behind messages that nobody takes.
        return len(self._core.inbox) < self._prefetch or self._core.awaits_answer

    async def _send_what_reading_brings(self) -> None:
        """In a task of its own: if who reads waited until the broker takes more, and it until we do, none would."""
        while True:
            await self._unsent.wait()
            self._unsent.clear()
            if self._core.outgoing:
                async with self._turn:
                    await self._send()

    async def _send(self) -> None:
        outgoing = self._core.outgoing
        with contextlib.suppress(ConnectionClosed):  # who reads hears of it too, and connects again
            while outgoing and self._socket is not None:
                await self._socket.send(outgoing.popleft(), text=True)

    async def _reconnect(self) -> None:
        for delay in self._backoff.delays():
            await asyncio.sleep(delay)
            try:
                await self._open()
            except (OSError, ClientError):
                if self._core.error is not None:
                    return
            else:
                self.tell()
                return

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, str):  # a binary message means nothing
            self._core.received(message.encode())

    async def _drop(self, closed: ConnectionClosed | None) -> Exception | None:
        """There is no connection any more; return how we were rejected, if we were."""
        socket, self._socket = self._socket, None
        rejection = self._core.disconnected(*(close_of(closed) if closed else (None, "")))
        if socket is not None:
            await socket.close()
        return rejection
