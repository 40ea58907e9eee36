"""A running node's row, and what operators see of the node (docs/protocols/hydra.md, "What is on disk").

    store = await NodeStore.open("alpha", conninfo_from_settings(), on_lost=..., on_back=..., ...)
    node = Node(name="alpha", stored=store.stored, position=store.position, ...)
    await store.write(stored)  # what a Persist asks for; returns when it is committed
    store.publish_status(snapshot(node, now))
    await store.close()

One process runs a node of a name at a time, as long as its session holds an advisory lock. When that session is lost
another process may begin to run the node at any moment. It waits before it promises anything, but not for ever: so who
is told by `on_lost` must be off IRC and silent until `on_back`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hydra import clock
from hydra import holding as holdings
from hydra.board import Board
from hydra.control import Command, parse_command
from hydra.database import LONGEST, LOST, Connection, connect, conninfo_from_settings, session_name
from hydra.errors import NodeForgotten, NodeNameTaken, StaleWrite, StoreBroken, StoreClosed, StoreError, UnreadableRow
from hydra.holding import Holding
from hydra.promises import Promises
from hydra.protocol.effects import Stored
from hydra.session import Session, come_back
from hydra.snapshot import Occurrence, Snapshot

__all__ = [
    "NodeForgotten",
    "NodeNameTaken",
    "NodeStore",
    "StaleWrite",
    "StoreBroken",
    "StoreClosed",
    "StoreError",
    "UnreadableRow",
    "conninfo_from_settings",
]

logger = logging.getLogger(__name__)

PATIENCE: Final = 3.0
"""Seconds that a process which runs the node has to end, before its name counts as taken."""


class NodeStore:
    """The store of one node. All callbacks are called in the event loop, and must not wait."""

    def __init__(
        self,
        holding: Holding,
        conninfo: str,
        on_lost: Callable[[str], None],
        on_back: Callable[[], None],
        on_failed: Callable[[StoreError], None],
        on_command: Callable[[Command], None],
    ) -> None:
        """For `open` alone."""
        self.holding = holding
        self._conninfo = conninfo
        self._on_lost = on_lost
        self._on_back = on_back
        self._on_failed = on_failed
        self._on_command = on_command
        self._board = Board()
        self._promises = Promises(holding.stored)
        self._wake = asyncio.Event()
        self._lost = False
        self._closing = False
        self._error: StoreError | None = None
        self._supervisor: asyncio.Task[None] | None = None

    # Life.

    @classmethod
    async def open(
        cls,
        name: str,
        conninfo: str,
        *,
        on_lost: Callable[[str], None],
        on_back: Callable[[], None],
        on_failed: Callable[[StoreError], None],
        on_command: Callable[[Command], None],
        rng: random.Random | None = None,
        patience: float = PATIENCE,
        answer: float = LONGEST,
    ) -> NodeStore:
        """Begin to run the node of this name; its row is committed when this returns, made now if it had none.

        `on_lost` is told why the database cannot be reached: from then on, until `on_back`, nothing more may be said,
        on IRC or to other nodes. `on_failed` is told why the store has ended by itself: the node cannot go on.
        `on_command` is given what operators ask for. The voter's key is drawn from `rng`. A database that does not
        answer for `answer` seconds counts as lost, whatever the connection says.

        Raises NodeNameTaken, UnreadableRow, and psycopg.Error when the database is away or has no tables of Hydra's.
        """
        keeper = await connect(conninfo, session_name(name, "keeper"), answer)
        try:
            holding = await holdings.take(keeper, name, rng or random.SystemRandom(), patience)
            session = await Session.begin(conninfo, name, keeper, answer)
        except BaseException:
            await keeper.close()
            raise
        store = cls(holding, conninfo, on_lost, on_back, on_failed, on_command)
        store._supervisor = asyncio.create_task(store._supervise(session), name=f"hydra store of {name}")
        return store

    @property
    def name(self) -> str:
        """The node's stable name."""
        return self.holding.name

    @property
    def stored(self) -> Stored:
        """What is on disk: what was written last, and at first what the row held."""
        return self._promises.stored

    @property
    def new(self) -> bool:
        """Whether the row was made just now: the node was never started before, or was forgotten."""
        return self.holding.new

    @property
    def first(self) -> bool:
        """Whether the row is new and the database has never known another node or a vote."""
        return self.holding.first

    @property
    def position(self) -> tuple[int, int] | None:
        """The term and index of the last line delivered before this process began."""
        return self.holding.position

    @property
    def lost(self) -> bool:
        """Whether the database cannot be reached, or the store has ended: nothing may be said."""
        return self._lost or self._error is not None

    async def close(self, patience: float = 5.0) -> None:
        """Write what waits, for at most `patience` seconds, and let another process run the node."""
        self._closing = True
        self._wake.set()
        if self._supervisor is not None:
            await asyncio.wait({self._supervisor}, timeout=0 if self._lost else patience)
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._end(StoreClosed("The store is closed."))

    # What the node asks for.

    async def write(self, stored: Stored) -> None:
        """Return when this is committed, however long the database is away.

        Writes that wait are made together, the last one in place of all. Raises StaleWrite when a term would go back or
        a second pledge be given in one, NodeNameTaken, NodeForgotten or StoreClosed: then the node must not go on.
        """
        if self._error is not None:
            raise self._error
        written = self._promises.add(stored)
        self._wake.set()
        await written

    async def settled(self) -> Stored:
        """Return what is on disk when nothing is being written: for a node that starts again here, after `on_back`.

        A write that was cancelled may have been made nevertheless. Raises StoreError if the store has ended.
        """
        await self._promises.idle.wait()
        if self._error is not None:
            raise self._error
        return self.stored

    def publish_status(self, status: Snapshot) -> None:
        """Show this; soon, at once if role, term, leader or IRC are others. What came, went or was elected is noted."""
        self._board.publish(status)
        self._wake.set()

    def listening(self, addresses: Iterable[str]) -> None:
        """Show where the node listens."""
        self._board.listen = tuple(addresses)
        self._wake.set()

    def happened(self, kind: str, text: str) -> None:
        """Note for operators that something has happened just now."""
        self.events([Occurrence(kind, self._board.term, text)])

    def events(self, events: Sequence[Occurrence]) -> None:
        """Note for operators what has happened just now."""
        self._board.note(events)
        self._wake.set()

    # Sessions.

    async def _supervise(self, session: Session) -> None:
        try:
            while True:
                await self._serve(session)
                if self._closing:
                    return
                session, self._promises.stored = await come_back(
                    self._conninfo, self.holding, session.pids, session.patience
                )
                self._say_back()
        except StoreError as error:
            logger.error("the node %s cannot go on: %s", self.name, error)
            self._fail(error)
        except Exception as error:
            logger.exception("the store of the node %s has failed", self.name)
            self._fail(StoreBroken(f"{type(error).__name__}: {error}"))

    async def _serve(self, session: Session) -> None:
        """Return when the session is lost, and that is told, or when all is written and the store is to be closed."""
        tasks = (
            asyncio.create_task(session.keep(self._hear, self._say_lost, self._say_back), name="hydra keeper"),
            asyncio.create_task(self._work(session.writer), name="hydra writer"),
        )
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except LOST as error:
            self._say_lost(str(error).strip() or type(error).__name__)
        finally:
            try:
                await _end(*tasks)
                if not self._lost:
                    await session.release()
            finally:
                await session.close()

    def _say_lost(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            logger.warning("the node %s has lost the database: %s", self.name, reason)
            self.happened("database lost", reason)
            self._on_lost(reason)

    def _say_back(self) -> None:
        if self._lost:
            self._lost = False
            logger.info("the node %s has the database again", self.name)
            self.happened("database back", "the node may speak again")
            self._on_back()

    def _hear(self, payload: str) -> None:
        try:
            command = parse_command(payload)
        except (ValueError, TypeError) as error:
            logger.warning("a command was not understood: %s (%s)", payload[:200], error)
            return
        if command.run == self.holding.run:
            self.happened("operator", str(command))
            self._on_command(command)

    def _fail(self, error: StoreError) -> None:
        self._end(error)
        self._on_failed(error)

    def _end(self, error: StoreError) -> None:
        self._error = self._error or error
        self._promises.refuse(self._error)

    # Writing.

    async def _work(self, connection: Connection) -> None:
        await self._board.connected(connection)
        while True:
            self._wake.clear()
            if self._promises:
                await self._promises.write(connection, self.holding)
                continue
            now = clock.now()
            due = self._board.due(now)
            if due <= 0 or self._closing:
                await self._board.write(connection, self.holding, now)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await self._wake.wait()
            if self._closing and not self._promises:
                return


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and return when they have ended, also if this is cancelled meanwhile: they use connections."""
    for task in tasks:
        task.cancel()
    ended = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await ended
        raise
