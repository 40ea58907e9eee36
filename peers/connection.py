"""A peer's connection over a blocking WebSocket, for one thread at a time: the counterpart of `async_connection`.

It reads, and connects again, only while the host waits for something.
"""

import contextlib
import ssl
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from websockets.exceptions import ConnectionClosed, InvalidURI, WebSocketException
from websockets.sync.client import ClientConnection, connect
from websockets.uri import parse_uri

from peers.client_core import ClientCore
from peers.codec.envelope import MAX_FRAME
from wire.client.errors import ClientError, ConnectionLost, ProtocolViolation, ReplyTimeout, again
from wire.client.reconnecting import Reconnecting

#: Seconds a closing client waits for the broker to close too.
LINGER: Final = 5.0


def check_url(url: str) -> None:
    """Raise ValueError for anything but a WebSocket URL."""
    try:
        parse_uri(url)
    except InvalidURI as error:
        raise ValueError(f"{url!r} is no WebSocket URL, such as ws://127.0.0.1:8000/ws/peerbus") from error


def deadline_in(timeout: float | None) -> float | None:
    """Return the monotonic time so many seconds from now; None for never."""
    return None if timeout is None else time.monotonic() + timeout


def seconds_to(deadline: float | None) -> float | None:
    """Return the seconds left until then, at least 0."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


@dataclass(eq=False)
class PeerConnection:
    """What the blocking connection and the one for asyncio are given, and what they do alike."""

    core: ClientCore
    url: str
    _: KW_ONLY
    timeout: float
    prefetch: int
    tls: ssl.SSLContext | None
    life: Reconnecting

    def __post_init__(self) -> None:
        """Nothing happens yet: call `connect`. Raises ValueError for a bad URL."""
        check_url(self.url)

    def _take(self, message: str | bytes) -> None:
        if isinstance(message, str):  # binary messages have no meaning
            self.core.received(message.encode())

    def _disconnected(self, closed: ConnectionClosed | None) -> Exception | None:
        """The connection has ended, with the broker's close frame if there was one; the rejection, if it was that."""
        frame = None if closed is None else closed.rcvd
        established = self.core.established
        rejection = self.core.disconnected(*((None, "") if frame is None else (frame.code, frame.reason)))
        if established and closed is not None:
            error = self.core.error or ConnectionLost(str(closed))
            self.life.disconnected(error)
            if not self.life.goes_on(error):
                self.core.error = error
        if self.core.error is not None:
            self.life.closed()
        return rejection


@dataclass(eq=False)
class Connection(PeerConnection):
    """Carries frames for a core."""

    _next_attempt: float = 0.0
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _socket: ClientConnection | None = None
    _wanted: bool = False

    def connect(self) -> None:
        """Connect and register. Raises OSError, Rejected, ConnectionLost, ReplyTimeout, ProtocolViolation."""
        self._socket = self._open()
        try:
            self._register(self._socket)
        except BaseException:
            self._drop(None)
            raise
        self._wanted = True
        self.life.connected(self.core.unconfirmed)

    def push(self) -> None:
        """Send the core's outgoing frames, if there is a connection or one can be made now."""
        self.check()
        if self._socket is None:
            self._reconnect(deadline_in(0.0))
        self._send()

    def until(self, happened: Callable[[], object], timeout: float | None) -> bool:
        """Return True when this has happened, False when the time is over. Raises the error that ended the client."""
        deadline = deadline_in(timeout)
        self.push()
        while not happened():
            if not self._step(deadline):
                return False
        return True

    def check(self) -> None:
        """Raise the error that ended the client, or ConnectionLost if it is closed."""
        if self.core.error is not None:
            raise again(self.core.error)
        if not self._wanted:
            raise ConnectionLost("not connected")

    def close(self) -> None:
        """Disconnect for good."""
        self._wanted = False
        self._drop(None)
        self.life.closed()

    def _open(self) -> ClientConnection:
        try:
            opening = connect(
                self.url, ssl=self.tls, compression=None, max_size=MAX_FRAME, max_queue=self.prefetch,
                open_timeout=self.timeout, close_timeout=LINGER,
            )  # fmt: skip
        except WebSocketException as error:
            raise ProtocolViolation(f"no WebSocket there: {error}") from error
        return self._resources.enter_context(opening)

    def _register(self, socket: ClientConnection) -> None:
        deadline = deadline_in(self.timeout)
        self.core.connected()
        try:
            socket.send(self.core.outgoing.popleft(), text=True)
            while not self.core.established:
                self._take(socket.recv(seconds_to(deadline)))
        except ConnectionClosed as closed:
            raise self._drop(closed) or ConnectionLost(str(closed)) from closed
        except TimeoutError:
            raise ReplyTimeout(f"no answer to the register for {self.timeout} s") from None

    def _step(self, deadline: float | None) -> bool:
        """Send, and take one frame, or connect again. False when the time is over."""
        self.check()
        if self._socket is None:
            return self._reconnect(deadline)
        self._send()
        return self._receive(deadline)

    def _reconnect(self, deadline: float | None) -> bool:
        """Try once, when it is time to. False if that is after the deadline."""
        delay = max(self._next_attempt - time.monotonic(), 0.0)
        left = seconds_to(deadline)
        if left is not None and delay > left:
            time.sleep(left)
            return False
        time.sleep(delay)
        try:
            self.connect()
        except (OSError, ClientError) as error:
            self._postpone(error)
        return True

    def _postpone(self, error: Exception) -> None:
        self.check()
        self._next_attempt = time.monotonic() + self.life.delay_after(error)

    def _send(self) -> None:
        outgoing = self.core.outgoing
        try:
            while outgoing and self._socket is not None:
                self._socket.send(outgoing.popleft(), text=True)
        except ConnectionClosed as closed:
            self._drop(closed)
            self._postpone(ConnectionLost(str(closed)))

    def _receive(self, deadline: float | None) -> bool:
        if self._socket is None:
            return True
        try:
            self._take(self._socket.recv(seconds_to(deadline)))
        except TimeoutError:
            return False
        except ConnectionClosed as closed:
            self._drop(closed)
            self._postpone(ConnectionLost(str(closed)))
        return True

    def _drop(self, closed: ConnectionClosed | None) -> Exception | None:
        """Forget the connection, which has ended; return the broker's rejection, if it was one."""
        self._socket = None
        self._resources.close()
        return self._disconnected(closed)
