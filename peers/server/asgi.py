"""What a peerbus session stands on: a transport that takes text messages, and a receiver that is told what arrives.

The interfaces say nothing of the server that runs the application: `peers.server.daphne` speaks to the socket itself,
:class:`AsgiTransport` does the same over the events of any other ASGI server.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from peers.codec.frames import GOING_AWAY, MAX_FRAME, TOO_BIG, Rejection
from peers.server.websocket_frames import fitting_reason

logger = logging.getLogger("peers")

INTERNAL_ERROR: Final = Rejection(1011, "internal error")
"""How a connection is closed whose session has raised an exception."""

LINGER: Final = 60.0
"""Seconds that a client has to find the close frame and answer it, before the connection is dropped."""

GOODBYE: Final = 2.0
"""Seconds that clients have to answer the close frame when the server stops."""


class Receiver(Protocol):
    """The session's side of a connection; the transport calls it from the event loop, one call at a time.

    An exception out of any method closes this connection with 1011, and harms no other.
    """

    def failed(self, event: str) -> None:
        """This method of the receiver has raised the exception that is being handled: log and count it. The transport
        then closes the connection."""

    def text_received(self, text: bytes) -> None:
        """A whole text message has arrived: valid UTF-8, at most 1 MiB. Never called after :meth:`Transport.close`."""

    def binary_received(self) -> None:
        """A binary message has arrived; it has no meaning in peerbus, so its content is not given."""

    def drained(self) -> None:
        """Nothing (or little) of what was sent is waiting for the socket any more.

        Called whenever `unsent` has come back to 0 that was not when :meth:`Transport.send` returned.
        """

    def connection_lost(self) -> None:
        """The connection has ended, in whatever way. Called once, and nothing is called after it.

        It comes soon after a close from either side, not inside :meth:`Transport.close`, and not as late as the end
        of the TCP connection, for which a client that does not read may let the transport wait.
        """


class Transport(Protocol):
    """The connection's side: what a session may do. The connection is open when the session is made."""

    @property
    def unsent(self) -> int:
        """Bytes given to :meth:`send` that the socket has not taken yet; 0 when all has left. May be an upper bound."""

    def send(self, texts: Sequence[bytes]) -> None:
        """Send each of `texts`, which are UTF-8, as one text message, in one write; nothing once it is closed."""

    def close(self, code: int, reason: str) -> None:
        """Send a close frame with exactly this code and reason, and end the connection. The first call counts."""

    def pause_reading(self) -> None:
        """Take nothing more from the socket; what has been read already may still arrive. Idempotent."""

    def resume_reading(self) -> None:
        """Read again. Idempotent."""


Receive = Callable[[], Awaitable[Any]]
"""ASGI's `receive`: the next event."""
Send = Callable[[Any], Awaitable[None]]
"""ASGI's `send`: takes an event."""
ReceiverFactory = Callable[[Transport], Receiver]


class ServedTransport(Transport):
    """What transports have in common: a receiver whose errors end its own connection alone."""

    def __init__(self) -> None:
        self._receiver: Receiver | None = None

    async def serve(self, make_receiver: ReceiverFactory, receive: Receive, send: Send) -> None:
        """Accept the connection, then feed the receiver made for it; returns when the connection has ended.

        When cancelled, as servers do that stop, it says 1001 `going away` to the client before it goes.
        """
        raise NotImplementedError

    def _make_receiver(self, make_receiver: ReceiverFactory) -> None:
        try:
            self._receiver = make_receiver(self)
        except Exception:
            logger.exception("a session could not be made; its connection is closed")
            self.close(*INTERNAL_ERROR)

    def _tell(self, event: str, *arguments: bytes) -> None:
        """Call a method of the receiver, if there is still one."""
        if self._receiver is not None:
            try:
                getattr(self._receiver, event)(*arguments)
            except Exception:
                self._failed(event)

    def _failed(self, event: str) -> None:
        try:
            if self._receiver is not None:
                self._receiver.failed(event)
        except Exception:
            logger.exception("a session that had failed in %s failed again; its connection is closed", event)
        self.close(*INTERNAL_ERROR)

    def _lose(self) -> None:
        """Tell the receiver of the end; nothing the second time."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            try:
                receiver.connection_lost()
            except Exception:
                logger.exception("a session failed in connection_lost")


class AsgiTransport(ServedTransport):
    """A transport over ASGI's events, for servers that push back: where `send` is slow, the client is.

    One task sends, in order, what is queued; another receives. What ASGI does not let it do: reach the socket past
    what the server has taken already, answer pings while reading is paused, and choose the code when the server
    itself closes as it stops.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[bytes] = deque()
        self._unsent = 0
        self._pushed_back = False
        self._closing: Rejection | None = None
        self._news = asyncio.Event()
        self._reading = asyncio.Event()
        self._reading.set()
        self._writer: asyncio.Task[None]
        self._linger: asyncio.TimerHandle | None = None

    @property
    def unsent(self) -> int:
        return self._unsent

    def send(self, texts: Sequence[bytes]) -> None:
        if self._closing is None:
            self._queue.extend(texts)
            self._unsent += sum(map(len, texts))
            self._news.set()

    def close(self, code: int, reason: str) -> None:
        if self._closing is not None:
            return
        self._closing = Rejection(code, fitting_reason(reason))
        if self._pushed_back:
            self._queue.clear()  # the close frame is to be the next thing that a slow client finds
        self._news.set()
        loop = asyncio.get_running_loop()
        loop.call_soon(self._lose)
        self._linger = loop.call_later(LINGER, self._writer.cancel)

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    async def serve(self, make_receiver: ReceiverFactory, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        self._writer = asyncio.create_task(self._write(send))
        self._make_receiver(make_receiver)
        reader = asyncio.create_task(self._read(receive))
        tasks = {reader, self._writer}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.close(*GOING_AWAY)
            await asyncio.wait({self._writer}, timeout=GOODBYE)
            raise
        finally:
            self._lose()
            if self._linger is not None:
                self._linger.cancel()
            for task in tasks:
                task.cancel()
        for task in done:
            if not task.cancelled():  # as the writer is after LINGER
                task.result()

    async def _read(self, receive: Receive) -> None:
        """Give the receiver what arrives; return when the connection has ended."""
        while (event := await receive())["type"] != "websocket.disconnect":
            await self._reading.wait()
            if self._closing is not None:
                continue
            text = event.get("text")
            message = event["bytes"] if text is None else text.encode()
            if len(message) > MAX_FRAME:
                self.close(*TOO_BIG)
            elif text is None:
                self._tell("binary_received")
            else:
                self._tell("text_received", message)

    async def _write(self, send: Send) -> None:
        """Send what is queued; return when the close frame is sent, or nothing can be sent any more."""
        while True:
            some = bool(self._queue)
            while self._queue:
                text = self._queue.popleft()
                if not await self._sent(send, {"type": "websocket.send", "text": text.decode()}):
                    return
                self._unsent -= len(text)
            if self._closing is not None:
                code, reason = self._closing
                await self._sent(send, {"type": "websocket.close", "code": code, "reason": reason})
                return
            self._news.clear()
            if some:
                self._tell("drained")
            await self._news.wait()

    async def _sent(self, send: Send, event: dict[str, Any]) -> bool:
        self._pushed_back = True  # as long as `send` has not returned
        try:
            await send(event)
        except Exception as error:  # what it is when the connection has gone, each server decides for itself
            logger.debug("nothing can be sent any more: %r", error)
            return False
        self._pushed_back = False
        return True
