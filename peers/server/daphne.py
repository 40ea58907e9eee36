"""Peerbus under daphne: a transport that reaches the socket, and a stop in good order.

daphne puts messages into an unbounded queue and does not report a client that does not read; an application can
close only with 1000 or 3000 to 4999, without a reason. So :func:`install` sets a subclass of daphne's protocol class,
which behaves as daphne's own for every application but one that takes over the connection, through the transport in its
connect event (`peers.server.consumer`). From then on messages go from the socket to a receiver and back without a queue
or a task between them; Autobahn, under daphne, still does handshakes, control frames, fragments and errors. The figures
that justify it are in docs/decisions/020-a-transport-of-its-own-under-daphne.md.

A connection that is closed from here lingers until the client has answered the close frame or dropped the connection,
for :data:`peers.server.transport.LINGER` at most. Later data is read and thrown away: unread bytes would make
the kernel reset the connection, and the reset would take the close frame with it.
"""

from __future__ import annotations

# First of all: it chooses the reactor; another import of daphne or Twisted before it would choose another one.
import daphne.server  # type: ignore[import-untyped]  # isort: skip

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.protocols.policies import ProtocolWrapper

from peers.codec.envelope import MAX_FRAME
from peers.codec.frames import GOING_AWAY, TOO_BIG
from peers.server import lifespan
from peers.server.consumer import TRANSPORT
from peers.server.transport import LINGER, ServedTransport, SessionReceiver, Transport
from peers.server.websocket_frames import fitting_reason, may_close_with, text_frames, whole_texts

logger = logging.getLogger(__name__)

#: Seconds that applications have to end when the server stops.
STOP_TIMEOUT: Final = 5.0
#: Seconds between checks of timeouts, daphne's own value.
CHECK: Final = 2
#: Default of daphne's --websocket_timeout: seconds after which it ends every WebSocket, active or not.
DAY: Final = 86_400
#: Default of daphne's --websocket_connect_timeout: seconds after which it answers 403 to a handshake.
ACCEPTED_WITHIN: Final = 5
#: The close of a connection whose client has not answered a ping.
PING_TIMEOUT: Final = (1011, "ping timeout")
#: Bytes that Twisted is given at a time.
PIECE: Final = 1 << 16


class DaphneTransport(ServedTransport):
    """The transport of a connection that daphne serves; for Twisted, a pull producer of what it sends.

    Bytes wait here, and Twisted pulls them: it holds 64 KiB at most and asks for more when they are gone. So it is
    known how much is unsent, by Twisted's documented interface of producers alone. While Twisted holds nothing, the
    socket is tried first, which saves a turn of the event loop.
    """

    def __init__(self, protocol: DaphneProtocol) -> None:
        super().__init__()
        self.paused = False
        self._protocol = protocol
        self._twisted: Any = None  # the TCP connection, from `_take_over` to `release`
        self._socket: socket.socket | None = None  # None: bytes have to pass TLS on their way to it
        self._waiting = bytearray()
        self._handed_over = 0  # bytes given to Twisted that it has not reported as sent
        self._gone = asyncio.Event()
        self._is_clear = False  # nothing is on its way: the socket may be tried at once

    # Called by the session

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

    # Called by the consumer

    def open(self, make_receiver: Callable[[Transport], SessionReceiver]) -> None:
        if self._protocol.is_established:  # the client may have gone
            self._take_over()
            super().open(make_receiver)

    async def closed(self) -> None:
        await self._gone.wait()

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

    # Called by the protocol

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
        if self._protocol.is_established:
            self._tell("texts_received", texts)

    def binary_received(self) -> None:
        """Tell the receiver of a binary message."""
        if self._protocol.is_established:
            self._tell("binary_received")

    def closing(self) -> None:
        """A close frame has been sent: the receiver is done, and later data has to be read."""
        asyncio.get_running_loop().call_soon(self.end)
        self.resume_reading()

    def lost(self) -> None:
        """The TCP connection has ended."""
        self._gone.set()
        self.end()

    def release(self) -> None:
        """Give Twisted all that waits, since it is to close the connection once everything is sent."""
        twisted, self._twisted = self._twisted, None
        if twisted is not None:
            self._protocol.transport.write(bytes(self._waiting))
            self._waiting.clear()
            twisted.unregisterProducer()

    # Called by Twisted

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


class DaphneProtocol(WebSocketProtocol):  # type: ignore[misc]
    """daphne's protocol with exact close frames, and a transport for the application that takes it."""

    # Autobahn's options. An error is told in a close frame; by default the connection would just be dropped.
    failByDrop = False
    closeHandshakeTimeout = LINGER

    # Autobahn's attributes that are used here.
    autoPingTimeoutCall: Any
    closeHandshakeTimeoutCall: Any
    current_frame: Any
    data: bytes
    failedByMe: bool
    inside_message: bool

    _own: DaphneTransport | None = None  # set once the application has taken over
    _is_garbled = False  # where the next frame begins cannot be known any more
    _linger: Any = None

    @property
    def is_established(self) -> bool:
        """Whether messages may be exchanged."""
        return bool(self.state == self.STATE_OPEN)

    def hand_to(self, transport: DaphneTransport) -> None:
        """Let everything go through a transport; messages of 1 MiB at most, even if daphne allows more."""
        self._own = transport
        self.maxMessagePayloadSize = self.maxFramePayloadSize = MAX_FRAME

    # The application's side

    def applicationCreateWorked(self, application_queue: asyncio.Queue[dict[str, Any]] | None) -> None:
        if application_queue is None:  # the client has gone already
            return
        connect: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        super().applicationCreateWorked(connect)
        self.application_queue = application_queue
        application_queue.put_nowait({**connect.get_nowait(), TRANSPORT: DaphneTransport(self)})

    def handle_reply(self, message: dict[str, Any]) -> None:
        if message.get("type") != "websocket.close" or self.state == self.STATE_CONNECTING:
            super().handle_reply(message)
            return
        code = message.get("code")
        code = 1000 if code is None else code
        if not may_close_with(code):
            raise ValueError(f"a close frame cannot carry code {code!r} (RFC 6455, section 7.4)")
        self.sendCloseFrame(code, fitting_reason(message.get("reason") or "").encode())

    # Autobahn's side: receiving

    def dataReceived(self, data: bytes) -> None:
        self._dataReceived(data)  # without Autobahn's line for the log, which costs several microseconds even unwritten

    def consumeData(self) -> None:
        if self._is_garbled:
            self.data = b""
        else:
            super().consumeData()

    def processData(self) -> bool:
        if self._own is not None and self.is_established and self.current_frame is None and not self.inside_message:
            texts, end = whole_texts(self.data)
            if end:
                self.data = self.data[end:]
                self._heard()
                self._own.texts_received(texts)
                return bool(self.data)
        return bool(super().processData())

    def onMessage(self, payload: bytes, isBinary: bool) -> None:
        if self._own is None:
            super().onMessage(payload, isBinary)
            return
        self._heard()
        if isBinary:
            self._own.binary_received()
        else:
            self._own.texts_received([payload])

    def _max_message_size_exceeded(self, msg_size: int, max_msg_size: int, reason: str) -> None:
        if self._own is None:
            super()._max_message_size_exceeded(msg_size, max_msg_size, reason)
        else:
            self._fail_connection(*TOO_BIG)

    # Autobahn's side: errors. Only the first is told; Autobahn would drop the connection at the second.

    def _fail_connection(self, code: int = 1001, reason: str = GOING_AWAY.reason) -> None:
        if self.is_established:
            super()._fail_connection(code, reason)

    def _protocol_violation(self, reason: str) -> bool:
        super()._protocol_violation(reason)
        self._is_garbled = True
        self.data = b""
        if not isinstance(self.transport, ProtocolWrapper):  # the client's answer cannot be read: end without it
            self.unregisterProducer()
            self.transport.loseWriteConnection()
        return True

    # daphne's side: timeouts

    def duration(self) -> float:
        # Until the handshake is answered only this process is waited for: having been held up is no reason for a 403.
        if self.state == self.STATE_CONNECTING and self.server.websocket_connect_timeout == ACCEPTED_WITHIN:
            return 0.0
        # A peer stays without limit, unless daphne was started with another limit than its default.
        if self._own is not None and self.server.websocket_timeout == DAY:
            return 0.0
        return float(super().duration())

    # Autobahn's side: pings

    def _heard(self) -> None:
        self.last_ping = time.time()
        self.forget_ping()

    def forget_ping(self) -> None:
        """Expect no answer to the last ping."""
        if self.autoPingTimeoutCall is not None:
            self.autoPingTimeoutCall.cancel()
            self.autoPingTimeoutCall = self.autoPingPending = None

    def _sendAutoPing(self) -> None:
        # A second ping would make Autobahn forget the first one's timer, which then goes off despite an answer.
        if self._own is None or not (self._own.paused or self.autoPingTimeoutCall):
            super()._sendAutoPing()

    def onAutoPingTimeout(self) -> None:
        if self._own is None:
            super().onAutoPingTimeout()
        else:
            self.autoPingTimeoutCall = None
            self._own.close(*PING_TIMEOUT)

    # Autobahn's side: sending, and the end

    def sendData(self, data: bytes, sync: bool = False, chopsize: int | None = None) -> None:
        if self._own is None:
            super().sendData(data, sync, chopsize)
        else:
            self._own.write(data)

    def unregisterProducer(self) -> None:
        if self._own is not None:
            self._own.release()
        super().unregisterProducer()

    def sendCloseFrame(self, code: int | None = None, reasonUtf8: bytes | None = None, isReply: bool = False) -> None:
        super().sendCloseFrame(code, reasonUtf8, isReply)
        self.failedByMe = True  # Autobahn then keeps nothing of later data
        if self._own is not None:
            self._own.closing()

    def dropConnection(self, abort: bool = False) -> None:
        # Autobahn would have the connection reset although all went well.
        super().dropConnection(abort and not self.wasClean)

    def _closeConnection(self, abort: bool = False) -> None:
        super()._closeConnection(abort)
        if not abort and self.transport.connected:  # it waits until everything is sent, perhaps for ever
            self._linger = self.factory.reactor.callLater(self.closeHandshakeTimeout, self.transport.abortConnection)

    def connectionLost(self, reason: Any = None) -> None:
        super().connectionLost(reason)
        if self._linger is not None and self._linger.active():
            self._linger.cancel()
        if self.closeHandshakeTimeoutCall is not None:
            self.closeHandshakeTimeoutCall.cancel()
            self.closeHandshakeTimeoutCall = None
        if self._own is not None:
            self._own.lost()


def install() -> None:
    """Make daphne use this module. To be called before its server runs; idempotent."""
    WebSocketFactory.protocol = DaphneProtocol
    daphne.server.Server.kill_all_applications = _stop
    daphne.server.Server.timeout_checker = _check_timeouts


def _check_timeouts(server: Any) -> None:
    """In place of daphne's own, which one connection's exception would end for all, pings included."""
    for protocol in list(server.connections):
        try:
            protocol.check_timeouts()
        except Exception:
            logger.exception("the timeouts of one connection could not be checked")
    server.ws_factory.reactor.callLater(CHECK, server.timeout_checker)


def _stop(server: Any) -> Deferred[None]:
    """In place of daphne's own, which fails when a WebSocket was opened a moment ago, and waits for one application."""
    return Deferred.fromFuture(asyncio.ensure_future(_stop_in_order(server)))


async def _stop_in_order(server: Any) -> None:
    for reader in server.ws_factory.reactor.getReaders():
        if IListeningPort.providedBy(reader):
            reader.stopListening()
    await lifespan.run_shutdown()
    connections = server.connections.values()
    running = [details["application_instance"] for details in connections if "application_instance" in details]
    for application in running:
        application.cancel()
    if running:
        await asyncio.wait(running, timeout=STOP_TIMEOUT)
