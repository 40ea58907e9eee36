"""A broker on loopback that a test plays itself: it expects requests, answers them, and pushes jobs."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self

from tests.waiting import PATIENCE
from wire.overhop.codec.decoder import Decoder, OverhopEnvelope
from wire.overhop.codec.encoder import encode
from wire.overhop.codec.names import PUSH_RID, Type
from wire.overhop.codec.timestamps import format_timestamp

WID = "6f1c0a52-0c60-4d06-9c8d-5c4a0c1f2b11"
SID = "0b8b1f0e-4d0c-4a57-8a39-2d8f5b3f7a10"
NOISE = (Type.ACK, Type.CREDIT, Type.BEAT)
"""A worker's other messages, whose moments do not matter to most tests."""


class Peer:
    """One connection of a client, as its broker sees it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        self._connection = connection
        self._decoder = Decoder()
        self._messages: deque[OverhopEnvelope] = deque()

    def read(self) -> OverhopEnvelope | None:
        """The next message; None at the end of stream."""
        while not self._messages:
            data = self._connection.recv(65536)
            if not data:
                return None
            self._messages.extend(self._decoder.feed(data))
            assert self._decoder.error is None
        return self._messages.popleft()

    def expect(self, t: Type, p: dict[str, Any] | None = None) -> OverhopEnvelope:
        """The next message must be this one, with any payload unless one is given."""
        message = self.read()
        assert message is not None, f"the client has left instead of sending {t.name}"
        assert (Type(message.t).name, message.p if p is not None else None) == (t.name, p)
        return message

    def answer(self, message: OverhopEnvelope, p: dict[str, Any] | None = None, t: Type = Type.OK) -> None:
        self.send(t, message.rid, p or {})

    def refuse(self, message: OverhopEnvelope, code: str, msg: str = "no", **more: Any) -> None:
        self.send(Type.ERR, message.rid, {"code": code, "msg": msg, **more})

    def serve(self, t: Type, p: dict[str, Any] | None = None, answer: dict[str, Any] | None = None) -> OverhopEnvelope:
        """Expect a request and answer it with OK."""
        message = self.expect(t, p)
        self.answer(message, answer)
        return message

    def serve_until(self, *kinds: Type, but: tuple[Type, ...] = NOISE) -> OverhopEnvelope:
        """Answer the other kinds with OK until one of these comes."""
        while True:
            message = self.read()
            assert message is not None, f"the client has left instead of sending {[kind.name for kind in kinds]}"
            if message.t in kinds:
                return message
            assert message.t in but, f"unexpected {Type(message.t).name}"
            self.answer(message)

    def greet(self) -> None:
        """HELLO and REGISTER."""
        self.answer(self.expect(Type.HELLO, {}), t=Type.HI)
        self.serve(Type.REGISTER, {}, {"wid": WID})

    def pong(self, ahead: float = 0.0) -> None:
        """Answer a PING with a clock that is so many seconds ahead."""
        now = format_timestamp(datetime.now(UTC) + timedelta(seconds=ahead))
        self.answer(self.expect(Type.PING, {}), {"server_time": now}, Type.PONG)

    def take_worker(self, queue: str = "emails", credits: int = 1, sid: str = SID, ahead: float = 0.0) -> None:
        """Greet a worker and let it subscribe."""
        self.greet()
        self.pong(ahead)
        self.serve(Type.SUBSCRIBE, {"q": queue, "credits": credits}, {"sid": sid})

    def push(self, number: int, payload: Any = None, sid: str = SID, **more: Any) -> str:
        """Send a job, and return its id."""
        self.send(Type.QUEST, PUSH_RID, quest(number, payload, sid, **more))
        return jid(number)

    def send(self, t: int, rid: str, p: dict[str, Any]) -> None:
        self.send_bytes(encode(t, rid, p))

    def send_bytes(self, data: bytes) -> None:
        self._connection.sendall(data)

    def hang_up(self) -> None:
        self._connection.close()

    def finish(self) -> None:
        """The client must send nothing more, and leave."""
        with contextlib.suppress(ConnectionResetError):  # one that gives up may reset
            assert self.read() is None


def jid(number: int) -> str:
    return f"emails:00000000-0000-4000-8000-{number:012}"


def quest(number: int, payload: Any = None, sid: str = SID, due: float = 3600, **more: Any) -> dict[str, Any]:
    """The payload of a QUEST; `due`: seconds to its deadline."""
    deadline = format_timestamp(datetime.now(UTC) + timedelta(seconds=due))
    standard = {"attempt": 1, "max_attempts": 3, "deadline": deadline, "q": "emails"}
    return {"sid": sid, "jid": jid(number), "job_payload": payload, **standard, **more}


class Broker:
    """Plays a script, a function of this broker, in a thread; leaving the context raises what went wrong in it."""

    def __init__(self, script: Callable[[Broker], None]) -> None:
        self._script = script
        self._failure: BaseException | None = None
        self._connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.host, self.port = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run)

    def accept(self) -> Peer:
        """The next connection."""
        connection, _ = self._listener.accept()
        self._connections.append(connection)
        return Peer(connection)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        self._listener.close()
        if self._failure is not None and (error is None or isinstance(error, OSError)):
            raise self._failure from error

    def _run(self) -> None:
        try:
            self._script(self)
        except BaseException as failure:
            self._failure = failure
        finally:
            for connection in self._connections:
                connection.close()


class ClosedPort:
    """An address without a listener, which none can take while the context lasts."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.host, self.port = self._socket.getsockname()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()


def talking(script: Callable[[Peer], object]) -> Broker:
    """A broker for one client: the script begins when it is registered; afterwards it must leave in silence."""

    def play(broker: Broker) -> None:
        peer = broker.accept()
        peer.greet()
        script(peer)
        peer.finish()

    return Broker(play)
