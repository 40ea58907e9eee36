"""Peerbus under daphne: a transport that reaches the socket, and a stop in good order.

Theory of operation. daphne puts what arrives into a queue without bounds and never tells when the client does not
read; and an application can close only with 1000 or 3000 to 4999, without a reason. So daphne's protocol class is
replaced by a subclass, which is daphne's own for every application but one that takes over the connection, through
the transport in its connect event. From then on messages go straight to a receiver, and bytes straight to the socket
(`peers.server.daphne_transport`); Autobahn, under daphne, still does handshakes, control frames, fragments and errors.

A connection that is closed from here lingers until the client has answered the close frame, dropped the connection,
or :data:`peers.server.asgi.LINGER` is over. What still arrives is read and thrown away: unread bytes would make the
kernel reset the connection, and the reset would take the close frame with it.
"""

from __future__ import annotations

# First of all: it chooses the reactor, and whatever else of daphne or Twisted comes before it chooses another one.
import daphne.server  # type: ignore[import-untyped]  # isort: skip

import asyncio
import logging
import time
from typing import Any, Final

from daphne.ws_protocol import WebSocketFactory, WebSocketProtocol  # type: ignore[import-untyped]
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IListeningPort
from twisted.protocols.policies import ProtocolWrapper

from peers.codec.frames import GOING_AWAY, MAX_FRAME, TOO_BIG
from peers.server import lifespan
from peers.server.asgi import LINGER
from peers.server.consumer import TRANSPORT
from peers.server.daphne_transport import DaphneTransport
from peers.server.websocket_frames import fitting_reason, may_close_with, whole_texts

logger = logging.getLogger(__name__)

STOP_TIMEOUT: Final = 5.0
"""Seconds that applications have to end when the server stops."""

CHECK: Final = 2
"""Seconds between looks at time-outs, as daphne has it."""

DAY: Final = 86_400
"""daphne's own --websocket_timeout: seconds after which it ends every WebSocket, whatever goes on there."""

PING_TIMEOUT: Final = (1011, "ping timeout")
"""How a connection is closed whose client has not answered a ping."""


class DaphneProtocol(WebSocketProtocol):  # type: ignore[misc]
    """daphne's protocol, with exact close frames for everybody, and a transport for who takes it."""

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

    _own: DaphneTransport | None = None  # who has taken over
    _is_garbled = False  # where the next frame begins cannot be known any more
    _linger: Any = None

    @property
    def is_established(self) -> bool:
        """Whether messages may be exchanged."""
        return bool(self.state == self.STATE_OPEN)

    def hand_to(self, transport: DaphneTransport) -> None:
        """Let everything go through a transport; messages of 1 MiB at most, whatever daphne was told for others."""
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

    # Autobahn's side: what arrives

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

    # daphne's side: time-outs

    def duration(self) -> float:
        # A peer stays as long as it likes, unless daphne was told otherwise.
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
        # A second ping would make Autobahn forget the first one's timer, which then goes off whatever is answered.
        if self._own is None or not (self._own.paused or self.autoPingTimeoutCall):
            super()._sendAutoPing()

    def onAutoPingTimeout(self) -> None:
        if self._own is None:
            super().onAutoPingTimeout()
        else:
            self.autoPingTimeoutCall = None
            self._own.close(*PING_TIMEOUT)

    # Autobahn's side: what is sent, and the end

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
        self.failedByMe = True  # Autobahn then keeps nothing of what still arrives
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
    """Have daphne use all this. To be called before its server runs; calling it again changes nothing."""
    WebSocketFactory.protocol = DaphneProtocol
    daphne.server.Server.kill_all_applications = _stop
    daphne.server.Server.timeout_checker = _check_timeouts


def _check_timeouts(server: Any) -> None:
    """In place of daphne's own, which one connection's exception would end for all, pings included."""
    for protocol in list(server.connections):
        try:
            protocol.check_timeouts()
        except Exception:
            logger.exception("the time-outs of one connection could not be checked")
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
