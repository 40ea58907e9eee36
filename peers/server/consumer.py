"""The Channels consumer of peerbus, for any ASGI server: each WebSocket is a session over a transport.

Channels delivers one event at a time and waits for its handler, so a session that pauses reading lets the handler wait.
What a session sends is queued, and one task sends it in order: where the server's `send` is slow, the client is. ASGI
does not reach the socket beyond what the server has buffered, nor answers pings while reading is paused, and leaves the
close code to a server that stops. Under daphne the connect event carries a transport without these limits, which takes
the connection over (`peers.server.daphne`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from channels.generic.websocket import AsyncWebsocketConsumer

from peers.codec.envelope import MAX_FRAME
from peers.codec.frames import GOING_AWAY, TOO_BIG, Rejection
from peers.server import transport
from peers.server.transport import ServedTransport, SessionFactory, SessionReceiver, Transport
from peers.server.websocket_frames import fitting_reason

logger = logging.getLogger("peers")

#: Key of the connect event under which `peers.server.daphne` gives its transport.
TRANSPORT: Final = "fivewire.transport"


class PeerbusConsumer(AsyncWebsocketConsumer):
    """Serves one connection: `PeerbusConsumer.as_asgi(make_session=…)`."""

    def __init__(self, *, make_session: SessionFactory) -> None:
        super().__init__()
        self._make_session = make_session
        self._transport: ServedTransport
        self._deadline = asyncio.timeout(None)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve the connection until it has ended. Cancelled, as servers do that stop, it closes with 1001."""
        self._transport = ChannelsTransport(self)
        try:
            async with self._deadline:
                try:
                    await super().__call__(scope, receive, send)
                except asyncio.CancelledError:
                    if not self._deadline.expired():
                        await self._say_goodbye()
                    raise
        except TimeoutError:
            if not self._deadline.expired():
                raise
        finally:
            self._transport.end()

    async def _say_goodbye(self) -> None:
        self._transport.close(*GOING_AWAY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(transport.GOODBYE):
                await self._transport.closed()

    def end_in(self, seconds: float) -> None:
        """Stop serving after so many seconds, even if the server has reported no disconnect by then."""
        self._deadline.reschedule(asyncio.get_running_loop().time() + seconds)

    async def dispatch(self, message: Any) -> None:
        """Handle an event. Channels closes old ORM connections before each, in a thread; peerbus has none."""
        if message["type"] == "websocket.receive":
            await self.websocket_receive(message)
        else:
            await super().dispatch(message)

    async def websocket_connect(self, message: Any) -> None:
        """Choose the transport, then accept the connection."""
        self._transport = message.get(TRANSPORT) or self._transport
        await super().websocket_connect(message)

    async def connect(self) -> None:
        """Accept every connection: peerbus refuses with a close frame."""
        await self.accept()
        self._transport.open(lambda served: self._make_session(served, self.scope))

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Give the session a message, once it reads."""
        assert isinstance(self._transport, ChannelsTransport)
        await self._transport.received(text_data, bytes_data)

    async def disconnect(self, code: int) -> None:
        """Tell the session of the end."""
        self._transport.end()


class ChannelsTransport(ServedTransport):
    """The transport over a consumer's `send` and `close`."""

    def __init__(self, consumer: PeerbusConsumer) -> None:
        super().__init__()
        self._consumer = consumer
        self._queue: deque[bytes] = deque()
        self._unsent = 0
        self._is_pushed_back = False
        self._is_broken = False
        self._closing: Rejection | None = None
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._writer: asyncio.Task[None] | None = None

    @property
    def unsent(self) -> int:
        return self._unsent

    def send(self, texts: Sequence[bytes]) -> None:
        if self._closing is None and not self._is_broken:
            self._queue.extend(texts)
            self._unsent += sum(map(len, texts))
            self._news.set()

    def close(self, code: int, reason: str) -> None:
        if self._closing is not None:
            return
        self._closing = Rejection(code, fitting_reason(reason))
        if self._is_pushed_back:
            self._queue.clear()  # a slow client reads the close frame next
        self._news.set()
        self._reading.set()  # or the disconnect event would wait behind a message
        asyncio.get_running_loop().call_soon(super().end)
        self._consumer.end_in(transport.LINGER)

    def pause_reading(self) -> None:
        if self._closing is None and not self._is_broken:
            self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    # Called by the consumer

    def open(self, make_receiver: Callable[[Transport], SessionReceiver]) -> None:
        self._writer = asyncio.create_task(self._write(), name="peerbus writer")
        super().open(make_receiver)

    def end(self) -> None:
        super().end()
        if self._writer is not None:
            self._writer.cancel()

    async def closed(self) -> None:
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def received(self, text: str | None, binary: bytes | None) -> None:
        """Give the receiver a message, once it reads."""
        await self._reading.wait()
        if self._closing is not None:
            return
        message = (binary or b"") if text is None else text.encode()
        if len(message) > MAX_FRAME:
            self.close(*TOO_BIG)
        elif text is None:
            self._tell("binary_received")
        else:
            self._tell("texts_received", [message])

    async def _write(self) -> None:
        """Send what is queued; return when the close frame is sent, or the server refuses to send."""
        while True:
            some = bool(self._queue)
            while self._queue:
                text = self._queue.popleft()
                if not await self._sent(self._consumer.send(text_data=text.decode())):
                    return
                self._unsent -= len(text)
            if self._closing is not None:
                await self._sent(self._consumer.close(*self._closing))
                return
            self._news.clear()
            if some:
                self._tell("drained")
            await self._news.wait()

    async def _sent(self, sending: Awaitable[None]) -> bool:
        self._is_pushed_back = True  # until the server has taken it
        try:
            await sending
        except Exception as error:  # of the server's own choice, when the connection has gone
            logger.debug("the server sends no more: %r", error)
            self._is_broken = True
            self._reading.set()  # the disconnect event comes behind what the client had sent
            self._consumer.end_in(transport.LINGER)
            return False
        self._is_pushed_back = False
        return True
