"""The engine's connections to PostgreSQL, one for each purpose, and requests of sessions.

What only reads is looked up on a connection of its own, on which no commit is ever waited for: a synchronous standby
that is away keeps nobody from logging in. What writes, and waits too long for its commit, is refused.

The supervisor opens and closes all of them together. Between `begin_service` and `end_service` sessions may ask; a
request that finds the connection lost sets `lost`, since no job reads that connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Coroutine, ItemsView, ValuesView
from typing import Any, TypeVar

from psycopg.rows import TupleRow

from queues.database.hosts import Session, choose_conninfo
from queues.engine.database import LOST, Connection, at_same_server, check_server, check_sessions, connect
from queues.engine.errors import OutcomeUnknown, StoreUnavailable
from queues.engine.faults import Fault, fault_of, told
from queues.engine.options import EngineOptions

T = TypeVar("T")

PURPOSES = (
    "writer", "settlements", "fetcher", "requests", "lookups", "delays", "reaper", "upkeep", "listener", "liveness"
)  # fmt: skip
#: Connections that an engine takes, one more with mailboxes.
CONNECTIONS = len(PURPOSES)
#: Purposes of connections that several jobs use.
SHARED = ("requests", "lookups", "upkeep", "reaper", "liveness")


class Connections:
    """All connections of one engine."""

    def __init__(self, options: EngineOptions) -> None:
        self._options = options
        self._purposes = PURPOSES + (("mailboxes",) if options.mailboxes else ())
        self._open: dict[str, Connection] = {}
        #: Backends of the connections: those of lost ones may go on living until they notice.
        self._pids: list[int] = []
        self._former: list[int] = []
        #: The primary that they lead to.
        self.primary = Session()
        #: Set when a request finds its connection lost.
        self.lost = asyncio.Event()
        #: Whether sessions may ask.
        self.available = False
        #: Requests of sessions that PostgreSQL has not answered.
        self.asked: set[asyncio.Future[Any]] = set()

    def __getitem__(self, purpose: str) -> Connection:
        return self._open[purpose]

    def items(self) -> ItemsView[str, Connection]:
        return self._open.items()

    def values(self) -> ValuesView[Connection]:
        return self._open.values()

    # Life.

    async def open(self) -> list[int]:
        """Open all of them, to one server; returns the backends of former ones. Raises psycopg.OperationalError,
        UnsafeServer or Pooled; then `close` is due."""
        self._former += self._pids
        self._pids = []
        conninfo, self.primary = await choose_conninfo(self._options.conninfo)
        for purpose in self._purposes:
            self._open[purpose] = connection = await connect(conninfo, purpose, self._options.database_timeout)
            conninfo = at_same_server(connection, conninfo)
        self._pids = await check_sessions(self._open)
        return self._former

    def forget_former(self) -> None:
        """The former backends have ended."""
        self._former = []

    def begin_service(self) -> None:
        """This process is a node, and sessions may ask."""
        self.lost.clear()
        self.available = True

    def end_service(self) -> None:
        """A connection is lost, or the engine stops."""
        self.available = False

    def hang_up(self) -> None:
        """End every connection's socket, so that a job which waits on one hears of it before its descriptor is closed.
        An event loop that watches a closed descriptor, whose number is soon another file's, aborts the process."""
        for connection in self._open.values():
            with contextlib.suppress(*LOST), socket.socket(fileno=os.dup(connection.fileno())) as line:
                line.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        """Close all of them, and end the service."""
        self.end_service()
        connections, self._open = self._open, {}
        for connection in connections.values():
            with contextlib.suppress(*LOST):
                await connection.close()

    def descriptors(self) -> list[int]:
        """The descriptors of the sockets, which a forked child of this process must not keep open."""
        return [one for connection in tuple(self._open.values()) for one in connection.descriptors]

    # Requests of sessions.

    async def request(self, name: str, /, **parameters: Any) -> list[TupleRow]:
        """Run one of the named statements that write, outside the hot path; returns its rows. Raises StoreUnavailable,
        also when it takes as long as a publish may."""
        return await self._within(self._request("requests", name, parameters))

    async def look_up(self, name: str, /, **parameters: Any) -> list[TupleRow]:
        """The same for one that reads, or whose commit need not outlive the primary."""
        return await self._within(self._request("lookups", name, parameters))

    async def _within(self, asking: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self._options.publish_timeout):
                return await self.to_its_end(asking)
        except TimeoutError:
            raise OutcomeUnknown() from None

    async def to_its_end(self, asking: Coroutine[Any, Any, T]) -> T:
        """Ask, to the end even if the caller is cancelled: to stop a statement at the server could hit what others ask
        on the same connection."""
        asked = asyncio.ensure_future(asking)
        self.asked.add(asked)
        asked.add_done_callback(self._answered)
        return await asyncio.shield(asked)

    def _answered(self, asked: asyncio.Future[Any]) -> None:
        self.asked.discard(asked)
        if not asked.cancelled():
            asked.exception()  # nobody may be left to take it

    async def _request(self, purpose: str, name: str, parameters: dict[str, Any]) -> list[TupleRow]:
        async with self.asking(purpose) as connection:
            return await connection.rows(name, parameters)

    @contextlib.asynccontextmanager
    async def asking(self, purpose: str = "lookups") -> AsyncIterator[Connection]:
        """The connection for lookups, or requests. Raises StoreUnavailable for every error but one of the statement
        itself."""
        connection = self._open.get(purpose)
        if connection is None or not self.available:
            raise StoreUnavailable()
        try:
            yield connection
        except Exception as error:
            fault = fault_of(error, connection)
            if fault is Fault.LOST:
                self.lost.set()
            if fault is not Fault.BAD:
                raise StoreUnavailable(told(error)) from error
            raise


async def probe(options: EngineOptions) -> None:
    """Ask what an engine's start asks, and leave no trace: all of its connections, their settings, the server.

    Raises EngineError, WrongEncoding or psycopg.OperationalError.
    """
    connections = Connections(options)
    try:
        await connections.open()
        await check_server(connections["lookups"])
    finally:
        await connections.close()
