"""The engine's kind of connection to PostgreSQL: psycopg's, with a reader of the event loop that stays.

psycopg makes a reader, a timer and a future for each wait, and drops them again. Here one reader takes all answers: it
runs psycopg's generator, and what waits for the statement goes on when that has ended. When nothing waits, the reader
is dropped at the first event: the server has closed the connection, or a notification has come.

The reader watches a duplicate of the socket's descriptor. libpq closes its own as soon as it finds the server gone, and
an event loop that watches a closed descriptor, whose number is soon another file's, aborts the process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Generator, Mapping
from time import monotonic
from typing import Any, Final, LiteralString, Protocol, TypeVar

from psycopg import AsyncConnection
from psycopg.abc import Params
from psycopg.errors import OperationalError, QueryCanceled
from psycopg.pq import TransactionStatus
from psycopg.rows import TupleRow

from queues.database.prepared import PreparedStatements
from queues.engine.statements import numbered, statement

T = TypeVar("T")

#: Events that a generator of psycopg waits for, and is told of: the socket can be read, or written to.
READ: Final = 1
WRITE: Final = 2
#: No parameters.
NONE: Final[Mapping[str, Any]] = {}
#: Seconds that the server may take to end a statement whose caller was cancelled.
CANCELLING: Final = 5.0
#: Seconds that statements which need not wait may take together before others in the event loop have their turn.
TURN: Final = 0.005

logger = logging.getLogger(__name__)


class Answer(Protocol):
    """A statement's rows."""

    async def fetchone(self) -> TupleRow | None:
        """The first row, if there is one."""

    async def fetchall(self) -> list[TupleRow]:
        """All rows."""


class Rows:
    """Rows that have been read."""

    __slots__ = ("_rows",)

    def __init__(self, rows: list[TupleRow]) -> None:
        self._rows = rows

    async def fetchone(self) -> TupleRow | None:
        """The first row, if there is one."""
        return self._rows[0] if self._rows else None

    async def fetchall(self) -> list[TupleRow]:
        """All rows."""
        return self._rows


class EngineConnection(PreparedStatements, AsyncConnection[TupleRow]):
    """A connection that is used in one event loop. It must be closed: the loop keeps it otherwise."""

    numbered = staticmethod(numbered)

    #: The descriptor that is watched, and a way to ask whether it can be written to; -1 before the first wait.
    _descriptor = -1
    _poll: select.poll
    _loop: asyncio.AbstractEventLoop
    #: Whether the loop is asyncio's own, which tells of a socket as long as there is something to read.
    _selects = False
    #: Whether the loop watches it for reading, and for writing.
    _reading = _writing = False
    #: The generator that runs, what it waits for, and the future that has its result.
    _statement: Generator[Any, Any, Any] | None = None
    _wanted = 0
    _result: asyncio.Future[Any] | None = None
    #: When (monotonic) others last had a turn.
    _turn = 0.0

    @property
    def descriptors(self) -> list[int]:
        """Its open descriptors."""
        return [*([] if self.closed else [self.fileno()]), *([] if self._descriptor < 0 else [self._descriptor])]

    @property
    def alone(self) -> bool:
        """Whether a statement that is sent now is a transaction of its own."""
        server = self.pgconn
        return not server.pipeline_status and server.transaction_status == TransactionStatus.IDLE

    async def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Run a generator of psycopg's. If the caller is cancelled, so is the statement at the server. Raises
        psycopg.Error."""
        if timeout is not None:
            return await super().wait(gen, interval, timeout)
        try:
            wanted = next(gen)
            while wanted & WRITE and (ready := self._ready()):  # a socket nearly always takes what is written
                wanted = gen.send(ready)
        except StopIteration as end:
            if monotonic() - self._turn > TURN:
                await asyncio.sleep(0)
                self._turn = monotonic()
            return end.value  # type: ignore[no-any-return]
        try:
            return await self._run(gen, wanted)
        except asyncio.CancelledError:
            self._end()
            await self._cancel(gen)
            raise
        finally:
            self._turn = monotonic()

    async def run(
        self, name: str, parameters: Mapping[str, Any] = NONE, *, binary: bool = False, prepare: bool = True
    ) -> Answer:
        """Run a named statement, prepared; in a transaction by psycopg's cursors. With `binary` results are sent in
        that format. Raises psycopg.Error."""
        if prepare:
            await self.lock.acquire()
            try:
                if self.alone:
                    return Rows(await self.wait(self.ask(name, parameters, binary)))
            finally:
                self.lock.release()
        return await self.execute(statement(name), parameters, binary=binary, prepare=prepare)

    async def rows(self, name: str, parameters: Mapping[str, Any] = NONE, *, prepare: bool = True) -> list[TupleRow]:
        """All rows of a named statement. Raises psycopg.Error."""
        return await (await self.run(name, parameters, prepare=prepare)).fetchall()

    async def fetch(
        self, query: LiteralString | bytes, parameters: Params | None = None, *, prepare: bool | None = None
    ) -> list[TupleRow]:
        """All rows of a statement. Raises psycopg.Error."""
        return await (await self.execute(query, parameters, prepare=prepare)).fetchall()

    async def close(self) -> None:
        """Close it. What waits for a statement gets an error."""
        if self._descriptor >= 0:
            if self._result is not None and not self._result.done():
                self._result.set_exception(OperationalError("the connection was closed"))
            self._end()
            self._stop_reading()
            os.close(self._descriptor)
            self._descriptor = -1
        await super().close()

    async def _cancel(self, gen: Generator[Any, Any, Any]) -> None:
        """End the statement at the server, and read what it has answered; if that fails the connection is closed, since
        a later answer would be taken for that of another statement."""
        if self.pgconn.transaction_status != TransactionStatus.ACTIVE:
            return
        try:
            await self.cancel_safe(timeout=CANCELLING)
            async with asyncio.timeout(CANCELLING):
                await self._run(gen, next(gen))
        except (QueryCanceled, StopIteration):
            pass
        except BaseException as error:
            logger.warning("a statement that was cancelled does not end: its connection is closed (%r)", error)
            self._end()
            self.pgconn.finish()
            if not isinstance(error, Exception):
                raise

    # The event loop.

    def _watch(self) -> None:
        """Make the descriptor that is watched. Raises psycopg.OperationalError or OSError."""
        self._descriptor = os.dup(self.pgconn.socket)
        self._loop = asyncio.get_running_loop()
        self._selects = isinstance(self._loop, asyncio.SelectorEventLoop)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN | select.POLLOUT)

    def _ready(self) -> int:
        """The events that the socket is ready for now."""
        if self._descriptor < 0:
            self._watch()
        events = self._poll.poll(0)
        if not events:
            return 0
        happened = events[0][1]
        return (READ if happened & ~select.POLLOUT else 0) | (WRITE if happened & select.POLLOUT else 0)

    def _run(self, gen: Generator[Any, Any, T], wanted: int) -> asyncio.Future[T]:
        """Run a generator on from here whenever the socket is ready for what it wants; returns its result."""
        if self._descriptor < 0:
            self._watch()
        result = self._loop.create_future()
        self._statement, self._result = gen, result
        self._want(wanted)
        return result

    def _want(self, wanted: int) -> None:
        self._wanted = wanted
        if not self._reading:
            self._loop.add_reader(self._descriptor, self._go_on, READ)
            self._reading = True
        if wanted & WRITE and not self._writing:
            self._loop.add_writer(self._descriptor, self._go_on, WRITE)
            self._writing = True
        elif self._writing and not wanted & WRITE:
            self._stop_writing()

    def _go_on(self, ready: int) -> None:
        """The socket is ready."""
        statement, result = self._statement, self._result
        if statement is None or result is None or not ready & self._wanted:
            self._stop_reading()  # until something waits for it
            return
        try:
            wanted = statement.send(ready)
        except StopIteration as end:
            self._end()
            if not result.done():
                result.set_result(end.value)
        except Exception as error:
            self._end()
            if not result.done():
                result.set_exception(error)
        else:
            if not self._selects:  # libuv watches no socket with an error any more, and there is more to read
                self._stop_reading()
            self._want(wanted)
        finally:
            del statement, result  # an error would keep them, and they the error

    def _end(self) -> None:
        """Nothing runs any more."""
        self._statement = self._result = None
        self._wanted = 0
        if self._writing:
            self._stop_writing()

    def _stop_reading(self) -> None:
        if self._reading:
            self._loop.remove_reader(self._descriptor)
            self._reading = False

    def _stop_writing(self) -> None:
        self._loop.remove_writer(self._descriptor)
        self._writing = False
