"""A server that plays a script of exact bytes to one client, and the three kinds of client to play it to."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import uvloop

from tests.waiting import PATIENCE


class Expect(NamedTuple):
    """These bytes must come next."""

    data: bytes


class Send(NamedTuple):
    """Send these bytes."""

    data: bytes


class End(NamedTuple):
    """The client must send nothing more; what follows is sent after its end of stream."""


class Hangup(NamedTuple):
    """Close the connection now, whatever the client may still send."""


class ScriptedServer:
    """Listens on loopback for one client; leaving the context fails unless the script was played to its end.

    After the last step the client must close without sending anything more.
    """

    def __init__(self, *script: Expect | Send | End | Hangup) -> None:
        self._script = script
        self._failure: BaseException | None = None
        self.played = threading.Event()
        """Set when all but the client's end of stream has happened."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.host, self.port = self._listener.getsockname()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        self._listener.close()
        if error is None and self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            connection, _ = self._listener.accept()
            with connection:
                connection.settimeout(PATIENCE)
                self._play(connection)
        except BaseException as failure:
            self._failure = failure

    def _play(self, connection: socket.socket) -> None:
        for step in self._script:
            if isinstance(step, Expect):
                received = receive_exactly(connection, len(step.data))
                assert received.hex() == step.data.hex()
            elif isinstance(step, Send):
                connection.sendall(step.data)
            elif isinstance(step, End):
                assert connection.recv(65536) == b""
            else:
                return
        self.played.set()
        with contextlib.suppress(ConnectionResetError):  # a client that gives up may reset
            assert connection.recv(65536) == b""


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer at end of stream."""
    data = bytearray()
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return bytes(data)


class Blocking:
    """An asyncio client as if it were a blocking one, so that both can go through the same tests."""

    def __init__(self, runner: asyncio.Runner, client: Any) -> None:
        self._runner = runner
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._runner.run(call(getattr(self._client, name), *args, **kwargs))

    def messages(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        generator = self._client.messages(*args, **kwargs)
        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield self._runner.run(call(anext, generator))
        finally:
            self._runner.run(call(generator.aclose))

    def __enter__(self) -> Self:
        self._runner.run(call(self._client.__aenter__))
        return self

    def __exit__(self, *error: Any) -> None:
        self._runner.run(call(self._client.__aexit__, *error))


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Await what a method returns, inside the running loop."""
    return await function(*args, **kwargs)


CLIENT_KINDS = ("blocking", "asyncio", "uvloop")


@contextlib.contextmanager
def clients(kind: str, blocking: Any, for_asyncio: Any) -> Iterator[Any]:
    """Give a function that makes a connected client of one of CLIENT_KINDS, to be used in a `with`."""
    if kind == "blocking":
        yield blocking
        return
    factory = uvloop.new_event_loop if kind == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield lambda *args, **kwargs: Blocking(runner, for_asyncio(*args, **kwargs))
