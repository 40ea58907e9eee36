"""A listener with recording sessions, and clients for it, for tests over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import uvloop

from tests.waiting import Changes
from wire.net.address import HostPort
from wire.net.connection import Connection
from wire.net.limits import Closure, ListenerOptions, Refusal
from wire.net.listener import Listener

LOCAL = HostPort("127.0.0.1", 0)

EVENT_LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run_scenario(event_loop: str, scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario under one of the event loops, and bound it."""
    with asyncio.Runner(loop_factory=EVENT_LOOPS[event_loop]) as runner:
        runner.run(asyncio.wait_for(scenario, 60))


class Recorder:
    """A session that notes what it hears. A subclass changes what it does about it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.data = b""
        self.heard: list[str] = []
        self._news = Changes()

    def _note(self, event: str) -> None:
        self.heard.append(event)
        self._news.notify()

    async def until(self, condition: Callable[[Recorder], bool]) -> None:
        await self._news.until(lambda: condition(self))

    async def has_data(self, data: bytes) -> None:
        await self.until(lambda session: session.data == data)

    async def lost(self) -> None:
        await self.until(lambda session: "lost" in session.heard)

    def data_received(self, data: bytes) -> None:
        self.data += data
        self._note("data")

    def eof_received(self) -> bool | None:
        self._note("eof")
        return None

    def connection_lost(self) -> None:
        self._note("lost")

    def drain(self) -> None:
        self._note("drain")
        self.connection.close()

    def overfull(self) -> None:
        self._note("overfull")


class WatchedListener(Listener):
    """A listener that tells when it has refused a connection or one has come to its end."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.news = asyncio.Event()

    def connection_lost(self, connection: Connection, closure: Closure) -> None:
        super().connection_lost(connection, closure)
        self.news.set()

    def _refuse(self, refusal: Refusal, ip: str, detail: str = "") -> None:
        super()._refuse(refusal, ip, detail)
        self.news.set()


class Server:
    """A listener, and the sessions it has made."""

    def __init__(self, session: type[Recorder], **options: Any) -> None:
        extra = {key: options.pop(key) for key in ("limits", "reuse_port", "address") if key in options}
        self.session = session
        self.sessions: asyncio.Queue[Any] = asyncio.Queue()
        self.listener = WatchedListener(
            "test", extra.pop("address", LOCAL), self._make, ListenerOptions(**options), **extra
        )
        self.address = LOCAL

    def _make(self, connection: Connection) -> Recorder:
        session = self.session(connection)
        self.sessions.put_nowait(session)
        return session

    async def closed(self, closure: Closure) -> None:
        """Wait until a connection has been closed for that reason."""
        while not self.listener.stats.closed[closure]:
            self.listener.news.clear()
            await self.listener.news.wait()

    async def refused(self, refusal: Refusal) -> None:
        """Wait until a connection has been refused for that reason."""
        while not self.listener.stats.refused[refusal]:
            self.listener.news.clear()
            await self.listener.news.wait()


@contextlib.asynccontextmanager
async def serving(session: type[Recorder] = Recorder, **options: Any) -> AsyncIterator[Server]:
    server = Server(session, **options)
    server.address = await server.listener.start()
    try:
        yield server
    finally:
        await server.listener.stop(0)


@contextlib.asynccontextmanager
async def client(server: Server) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(server.address.host, server.address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def is_turned_away(server: Server) -> bool:
    """Whether a new client's connection is closed without an answer."""
    async with client(server) as (reader, _):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True
