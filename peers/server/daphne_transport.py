"""The transport of a connection that daphne serves; for the rest of it see `peers.server.daphne`.

Bytes wait here, and Twisted pulls them: it holds 64 KiB at most, and asks for more when they are gone. So it is known
how much is unsent, and all that Twisted has to offer is its documented interface of producers. While it holds nothing,
the socket is tried first, which saves a turn of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from twisted.protocols.policies import ProtocolWrapper

from peers.codec.frames import GOING_AWAY
from peers.server.asgi import GOODBYE, Receive, ReceiverFactory, Send, ServedTransport
from peers.server.websocket_frames import fitting_reason, text_frames

if TYPE_CHECKING:
    from peers.server.daphne import DaphneProtocol

PIECE: Final = 1 << 16
"""Bytes that Twisted is given at a time."""


class DaphneTransport(ServedTransport):
    """The transport of a connection that daphne serves; for Twisted, a pull producer of what it sends."""

    def __init__(self, protocol: DaphneProtocol) -> None:
        super().__init__()
        self.paused = False
        self._protocol = protocol
        self._twisted: Any = None  # the TCP connection, from `_take_over` to `release`
        self._socket: socket.socket | None = None  # None: bytes have to pass TLS on their way to it
        self._waiting = bytearray()
        self._handed_over = 0  # of what Twisted has, the bytes it has not reported to be gone
        self._is_clear = False  # nothing is on its way: the socket may be tried at once

    # What a session calls

    @property
    def unsent(self) -> int:
        return len(self._waiting) + self._handed_over

    def send(self, texts: Sequence[bytes]) -> None:
        if self._protocol.is_established:
            self.write(text_frames(texts))

    def close(self, code: int, reason: str) -> None:
        if self._protocol.is_established:
            self._protocol.sendCloseFrame(code, fitting_reason(reason).encode())

    def pause_reading(self) -> None:
        if self._protocol.is_established and not self.paused:
            self.paused = True
            self._protocol.forget_ping()  # its answer will not be read
            if self._twisted is not None:
                self._twisted.pauseProducing()

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            if self._twisted is not None:
                self._twisted.resumeProducing()

    # What the consumer calls

    async def serve(self, make_receiver: ReceiverFactory, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        if self._protocol.is_established:  # the client may have gone
            self._take_over()
            self._make_receiver(make_receiver)
        try:
            await _disconnected(receive)
        except asyncio.CancelledError:
            self.close(*GOING_AWAY)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(GOODBYE):
                    await _disconnected(receive)
            raise

    def _take_over(self) -> None:
        transport = self._protocol.transport
        transport.unregisterProducer()  # daphne's HTTP channel, as which the connection began
        if isinstance(transport, ProtocolWrapper):  # TLS; not its own interface, which makes a pull producer spin
            twisted: Any = transport.transport
        else:
            twisted = transport
            self._socket = transport.getHandle()
        twisted.registerProducer(self, False)  # asks at once, when the answer to the handshake may not be sent yet
        self._twisted = twisted
        self._protocol.hand_to(self)

    # What the protocol calls

    def write(self, data: bytes) -> None:
        """Send bytes, behind those that wait."""
        if self._twisted is None:
            self._protocol.transport.write(data)
            return
        if self._is_clear and self._socket is not None:
            try:
                sent = self._socket.send(data)
            except OSError:  # it is full; or it is broken, which Twisted will find too
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._waiting += data
        if not self._handed_over:
            self._hand_over()

    def texts_received(self, texts: list[bytes]) -> None:
        """Give the receiver some messages."""
        try:
            for text in texts:
                if self._receiver is None or not self._protocol.is_established:
                    return  # it was closed for what was in the one before
                self._receiver.text_received(text)
        except Exception:
            self._failed("text_received")

    def binary_received(self) -> None:
        """Tell the receiver of a binary message."""
        if self._protocol.is_established:
            self._tell("binary_received")

    def closing(self) -> None:
        """A close frame has been sent: the receiver is done, and what still arrives has to be read."""
        asyncio.get_running_loop().call_soon(self._lose)
        self.resume_reading()

    def lost(self) -> None:
        """The connection has ended."""
        self._lose()

    def release(self) -> None:
        """Give Twisted all that waits, since it is to close the connection once everything is sent."""
        twisted, self._twisted = self._twisted, None
        if twisted is not None:
            self._protocol.transport.write(bytes(self._waiting))
            self._waiting.clear()
            twisted.unregisterProducer()

    # What Twisted calls

    def resumeProducing(self) -> None:
        """Nothing that Twisted was given is left."""
        if self._twisted is None:
            return
        if self._twisted.disconnecting:  # the client has ended TLS; with a producer Twisted would wait for it
            self.release()
            return
        was_unsent = self.unsent > 0
        self._handed_over = 0
        if self._waiting:
            self._hand_over()
            return
        self._is_clear = True
        if was_unsent and self._protocol.is_established:
            self._tell("drained")

    def stopProducing(self) -> None:
        """The connection has ended, of which Twisted tells the protocol too."""

    def _hand_over(self) -> None:
        piece = bytes(self._waiting[:PIECE])
        del self._waiting[:PIECE]
        self._is_clear = False
        self._handed_over = len(piece)
        self._protocol.transport.write(piece)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass
