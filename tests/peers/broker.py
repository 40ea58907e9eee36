"""A small broker in memory, with all the ways to misbehave that a client must stand, and both clients as one."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import uvloop
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from peers.client import AsyncPeerClient, PeerClient
from peers.codec import frames
from peers.codec.envelope import MAX_FRAME, Envelope
from peers.codec.frames import Ack, PeersRequest, Register, Rejection
from queues.backoff import Backoff
from tests.peers.vectors import SECRET
from tests.waiting import PATIENCE

#: The server would tell the project's own handlers of every connection, at times after their test.
QUIET = logging.getLogger("a fake broker")
QUIET.setLevel(logging.CRITICAL)

QUICK = Backoff(0.01, 0.05)
Hook = Callable[[ServerConnection, frames.Frame], bool]


class Lost(Exception):
    """The connection is lost now; nothing that was sent on it is served any more."""


class FakeBroker:
    """Keeps what it is sent until it is acknowledged.

    The hook `before` sees each frame; when it returns False the frame is not served, and it may raise Lost.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.connected: dict[str, ServerConnection] = {}
        self.mailboxes: dict[str, dict[str, bytes]] = {}
        self.tokens: list[str] = []
        self.stored: list[Envelope] = []
        self.acked: list[str] = []
        self.asked = 0
        self.connections = 0
        #: A Rejection, a frame to answer instead of `peers`, or nothing.
        self.welcome: Callable[[ServerConnection], Rejection | bytes | None] = lambda connection: None
        self.before: Hook = lambda connection, frame: True
        self.port = 0
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws/peerbus"

    def start(self) -> None:
        """Listen, on the same port as before."""
        listener = socket.create_server(("127.0.0.1", self.port))
        self.port = listener.getsockname()[1]
        self._server = serve(
            self._serve, sock=listener, compression=None, max_size=MAX_FRAME, close_timeout=0.1, logger=QUIET
        )
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and cut every connection."""
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._thread.join()
        for name in list(self.connected):
            self.cut(name)
        self.wait(lambda: not self.connected)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, happened: Callable[[], object]) -> None:
        """Return when it has happened."""
        with self.changed:
            assert self.changed.wait_for(happened, PATIENCE), vars(self)

    def cut(self, name: str) -> None:
        """End a connection without a close frame."""
        with contextlib.suppress(OSError, KeyError):
            self.connected[name].socket.shutdown(socket.SHUT_RDWR)

    def close(self, name: str, how: Rejection) -> None:
        """End a connection with a close frame."""
        self.connected[name].close(how.code, how.reason)

    def push(self, name: str, frame: bytes) -> None:
        """Send any frame."""
        self.connected[name].send(frame, text=True)

    def deliver(self, name: str, key: str, envelope: bytes) -> None:
        """Store an envelope for a peer, and send it if that is connected."""
        with self.changed:
            self.mailboxes.setdefault(name, {})[key] = envelope
            if name in self.connected:
                with contextlib.suppress(ConnectionClosed):  # then it comes with the next connection
                    self.push(name, frames.deliver_frame(key, envelope))

    def _serve(self, connection: ServerConnection) -> None:
        try:
            self._converse(connection)
        except ConnectionClosed:
            pass
        except Lost:
            connection.socket.shutdown(socket.SHUT_RDWR)

    def _converse(self, connection: ServerConnection) -> None:
        register = frames.handshake(connection.recv(decode=False))
        answer = register if isinstance(register, Rejection) else self.welcome(connection)
        if isinstance(answer, Rejection):
            connection.close(answer.code, answer.reason)
            return
        assert isinstance(register, Register)
        try:
            self._establish(connection, register, answer)
            while True:
                frame = frames.parse_frame(connection.recv(decode=False))
                with self.changed:
                    if self.before(connection, frame):
                        self._take(connection, register.name, frame)
                    self.changed.notify_all()
        finally:
            with self.changed:
                if self.connected.get(register.name) is connection:
                    del self.connected[register.name]
                self.changed.notify_all()

    def _establish(self, connection: ServerConnection, register: Register, answer: bytes | None) -> None:
        with self.changed:
            old = self.connected.pop(register.name, None)
            self.connected[register.name] = connection
        if old is not None:
            old.close(frames.TAKEN_OVER.code, frames.TAKEN_OVER.reason)
        with self.changed:
            self.connections += 1
            self.tokens.append(register.token)
            connection.send(frames.peers_frame(sorted(self.connected)) if answer is None else answer, text=True)
            with contextlib.suppress(ConnectionClosed):  # the client has had enough; what it acknowledged is read next
                for key, envelope in self.mailboxes.setdefault(register.name, {}).items():
                    connection.send(frames.deliver_frame(key, envelope), text=True)
            self.changed.notify_all()

    def _take(self, connection: ServerConnection, name: str, frame: frames.Frame) -> None:
        if isinstance(frame, Envelope):
            self._route(name, frame)
        elif isinstance(frame, Ack):
            self.acked.append(frame.key)
            self.mailboxes[name].pop(frame.key, None)
        elif isinstance(frame, PeersRequest):
            self.asked += 1
            connection.send(frames.peers_frame(sorted(self.connected)), text=True)

    def _route(self, sender: str, envelope: Envelope) -> None:
        if envelope.id in [each.id for each in self.stored]:
            return
        self.stored.append(envelope)
        if not envelope.is_broadcast:
            self.deliver(envelope.to, envelope.id, envelope.text)
            return
        for name in self.connected:
            if name != sender:
                self.deliver(name, f"{envelope.id}|{name}", envelope.text)


KINDS = ("blocking", "asyncio", "uvloop")


class Blocking:
    """An asyncio client as if it were a blocking one, so that both can go through the same tests."""

    def __init__(self, runner: asyncio.Runner, client: AsyncPeerClient) -> None:
        self._runner = runner
        self._client = client

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._client, name)
        if inspect.iscoroutinefunction(value):
            return lambda *args, **kwargs: self._runner.run(value(*args, **kwargs))
        return value

    def messages(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        generator = self._client.messages(*args, **kwargs)
        try:
            while (message := self._runner.run(_next(generator))) is not None:
                yield message
        finally:
            self._runner.run(generator.aclose())

    def run(self, handler: Callable[[Any], object], timeout: float | None = None) -> None:
        async def handle(message: Any) -> None:
            handler(message)

        self._runner.run(self._client.run(handle, timeout))

    def __enter__(self) -> Self:
        self._runner.run(self._client.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._client.__aexit__(*error))


async def _next(generator: Any) -> Any:
    return await anext(generator, None)


@contextlib.contextmanager
def clients(kind: str, broker: FakeBroker) -> Iterator[Any]:
    """Give a function that makes a client of one of KINDS for a broker, to be used in a `with`."""

    def options(given: dict[str, Any]) -> dict[str, Any]:
        return {"secret": SECRET, "timeout": PATIENCE, "reconnect": QUICK} | given

    if kind == "blocking":
        yield lambda name="alice", token="t", **given: PeerClient(broker.url, token, name, **options(given))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop if kind == "uvloop" else None) as runner:
        yield lambda name="alice", token="t", **given: Blocking(
            runner, AsyncPeerClient(broker.url, token, name, **options(given))
        )
