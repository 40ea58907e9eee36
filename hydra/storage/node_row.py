"""The store of a running node: its row and its status for operators (docs/protocols/hydra.md, "Stored state").

    store = await NodeStore.open("alpha", conninfo_from_settings(), StoreHandlers(...))
    node = Node(name="alpha", stored=store.stored, position=store.lease.position, ...)
    await store.write(stored)  # for a Persist; returns when it is committed
    store.status.publish(snapshot(node, now))
    await store.close()

One process runs a node at a time, while its session holds an advisory lock. After the session is lost another process
may begin to run the node at any moment. It waits before it promises anything, but not for ever: so the node must be off
IRC and silent from `on_lost` to `on_back`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hydra import clock
from hydra.errors import StoreBroken, StoreClosed, StoreError
from hydra.notifications import CHANNEL, OperatorCommand, parse_command
from hydra.protocol.effects import StoredNode
from hydra.storage import node_lease
from hydra.storage.database import LOST, TIMEOUT, Connection, connect, session_name
from hydra.storage.node_lease import NodeLease
from hydra.storage.status_writer import StatusWriter
from hydra.storage.vote_log import VoteLog
from queues.backoff import Backoff
from queues.engine.api import check_sessions
from queues.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

#: Seconds between two checks that the database answers.
LOOK: Final = 3.0
#: Seconds without an answer after which the session counts as lost; the server waits longer.
SILENCE: Final = 10.0
RETRIES: Final = Backoff(0.05, 5.0)
#: Seconds to wait for the end of another process that runs the node, and for the server to release the lock of the last
#: session.
LEASE_TIMEOUT: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreHandlers:
    """What a store calls, in the event loop. None of it may wait."""

    on_lost: Callable[[str], None]
    """The database cannot be reached, for this reason: until `on_back` the node must send nothing, to IRC or to other
    nodes."""
    on_back: Callable[[], None]
    on_failed: Callable[[StoreError], None]
    """The store has ended, for this reason: the node cannot go on."""
    on_command: Callable[[OperatorCommand], None]
    """An operator asks for something."""


class NodeStore:
    """The store of one node."""

    def __init__(self, lease: NodeLease, conninfo: str, handlers: StoreHandlers) -> None:
        """Use `open`."""
        self.lease = lease
        self._conninfo = conninfo
        self._handlers = handlers
        self._wake = asyncio.Event()
        self.status = StatusWriter(self._wake.set)
        """What operators see of the node."""
        self._vote_log = VoteLog(lease.stored)
        self._throttle = LogThrottle(60.0)
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
        handlers: StoreHandlers,
        *,
        rng: random.Random | None = None,
        timeout: float = LEASE_TIMEOUT,
        answer: float = TIMEOUT,
    ) -> NodeStore:
        """Begin to run the node of this name; its row, new if it had none, is committed when this returns.

        A new voter's key is drawn from `rng`. A database that does not answer for `answer` seconds counts as lost.

        Raises NodeNameTaken, UnreadableRow, Pooled, and psycopg.Error when the database is away or has no tables of
        Hydra's.
        """
        keeper = await connect(conninfo, session_name(name, "keeper"), answer)
        try:
            async with await connect(conninfo, session_name(name, "probe"), answer) as other:
                await check_sessions({"keeper": keeper, "probe": other})
            lease = await node_lease.take(keeper, name, rng or random.SystemRandom(), timeout)
            session = await StoreConnections.begin(conninfo, name, keeper, answer)
        except BaseException:
            await keeper.close()
            raise
        store = cls(lease, conninfo, handlers)
        store._supervisor = asyncio.create_task(store._supervise(session), name=f"hydra store of {name}")
        return store

    @property
    def stored(self) -> StoredNode:
        """The row on disk."""
        return self._vote_log.stored

    @property
    def lost(self) -> bool:
        """Whether the database cannot be reached, or the store has ended: the node must be silent."""
        return self._lost or self._error is not None

    async def close(self, timeout: float = 5.0) -> None:
        """Finish the waiting writes, for at most `timeout` seconds, and release the node's name."""
        self._closing = True
        self._wake.set()
        if self._supervisor is not None:
            await asyncio.wait({self._supervisor}, timeout=0 if self._lost else timeout)
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        self._end(StoreClosed("The store is closed."))

    # Called by the node.

    async def write(self, stored: StoredNode) -> None:
        """Return when the row is committed, however long the database is away.

        Waiting writes are made as one. Raises StaleWrite for a lower term or a second pledge of a term, NodeNameTaken,
        NodeForgotten or StoreClosed: then the node must not go on.
        """
        if self._error is not None:
            raise self._error
        written = self._vote_log.add(stored)
        self._wake.set()
        await written

    async def settled(self) -> StoredNode:
        """Return the row on disk once no write is under way, for a node that begins anew after `on_back`.

        A cancelled write may have been made. Raises StoreError if the store has ended.
        """
        await self._vote_log.idle.wait()
        if self._error is not None:
            raise self._error
        return self.stored

    # Sessions.

    async def _supervise(self, session: StoreConnections) -> None:
        try:
            while True:
                await self._serve(session)
                if self._closing:
                    return
                session, stored = await reconnect(self._conninfo, self.lease, session.pids, session.timeout)
                self._vote_log.reload(stored)
                self._say_back()
        except StoreError as error:
            logger.error("the node %s cannot go on: %s", self.lease.name, error)
            self._fail(error)
        except Exception as error:
            logger.exception("the store of the node %s has failed", self.lease.name)
            self._fail(StoreBroken(f"{type(error).__name__}: {error}"))

    async def _serve(self, session: StoreConnections) -> None:
        """Use a session until it is lost, which is reported, or the store is closed and all is written."""
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
            logger.warning("the node %s has lost the database: %s", self.lease.name, reason)
            self.status.happened("database lost", reason)
            self._handlers.on_lost(reason)

    def _say_back(self) -> None:
        if self._lost:
            self._lost = False
            logger.info("the node %s has the database again", self.lease.name)
            self.status.happened("database back", "the node may speak again")
            self._handlers.on_back()

    def _hear(self, payload: str) -> None:
        try:
            command = parse_command(payload)
        except (ValueError, TypeError) as error:
            # Anyone who may connect to the database can send one.
            if count := self._throttle.admit("command", clock.now()):
                logger.warning("%d notification(s) are no valid command, the last: %.200r (%s)", count, payload, error)
            return
        if command.run == self.lease.run:
            self.status.happened("operator", str(command))
            self._handlers.on_command(command)

    def _fail(self, error: StoreError) -> None:
        self._end(error)
        self._handlers.on_failed(error)

    def _end(self, error: StoreError) -> None:
        self._error = self._error or error
        self._vote_log.refuse(self._error)

    # Writing.

    async def _work(self, connection: Connection) -> None:
        await self.status.connected(connection)
        while True:
            self._wake.clear()
            if self._vote_log:
                await self._vote_log.write(connection, self.lease)
                continue
            now = clock.now()
            due = self.status.due(now)
            if due <= 0 or self._closing:
                await self.status.write(connection, self.lease, now)
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(due):
                        await self._wake.wait()
            if self._closing and not self._vote_log:
                return


async def _end(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and return when they have ended, also if this is cancelled: they use the connections."""
    for task in tasks:
        task.cancel()
    ended = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        await ended
        raise


class StoreConnections:
    """Both connections of a store, until one of them is lost.

    The keeper holds the lock on the node's name and listens, the writer writes.
    """

    def __init__(self, keeper: Connection, writer: Connection, timeout: float) -> None:
        self.keeper = keeper
        self.timeout = timeout
        self.writer = writer
        self.pids = [connection.info.backend_pid for connection in (keeper, writer)]
        """The server's processes."""

    @classmethod
    async def begin(cls, conninfo: str, node: str, keeper: Connection, timeout: float) -> StoreConnections:
        """Listen, and open the writer; `keeper` has the lock. Raises psycopg.Error."""
        await keeper.execute(f"listen {CHANNEL}".encode())
        return cls(keeper, await connect(conninfo, session_name(node, "writer"), timeout), timeout)

    async def keep(
        self, heard: Callable[[str], None], silent: Callable[[str], None], answers: Callable[[], None]
    ) -> None:
        """Hand notifications to `heard` until the connection is lost: then raises psycopg.OperationalError.

        A server that does not answer may not be lost: `silent` is called, and `answers` when it does.
        """
        loop = asyncio.get_running_loop()
        while True:
            async for notification in self.keeper.notifies(timeout=min(LOOK, self.timeout / 6)):
                heard(notification.payload)
            self.keeper.check_primary()
            wait = min(SILENCE, self.timeout * 5 / 6)
            watch = loop.call_later(wait, silent, f"the database has not answered for {wait:.1f} s")
            try:
                await self.keeper.execute("select 1")
            finally:
                watch.cancel()
            answers()

    async def release(self) -> None:
        """Release the lock now, not when the server notices the end of the session."""
        with contextlib.suppress(*LOST):
            await self.keeper.execute("select pg_advisory_unlock_all()")

    async def close(self) -> None:
        """Close both connections."""
        await self.writer.close()
        await self.keeper.close()


async def reconnect(
    conninfo: str, lease: NodeLease, lost: list[int], timeout: float
) -> tuple[StoreConnections, StoredNode]:
    """Connect again, however long it takes; `lost` are the `pids` of the last session.

    Also returns the row on disk. Raises NodeNameTaken or NodeForgotten.
    """
    delays, reason = RETRIES.delays(), ""
    while True:
        await asyncio.sleep(next(delays))
        try:
            keeper = await connect(conninfo, session_name(lease.name, "keeper"), timeout)
            try:
                stored = await node_lease.take_again(keeper, lease, lost, LEASE_TIMEOUT)
                return await StoreConnections.begin(conninfo, lease.name, keeper, timeout), stored
            except BaseException:
                await keeper.close()
                raise
        except LOST as error:
            if str(error) != reason:
                reason = str(error)
                logger.info("the database is not available yet: %s", reason.strip())
