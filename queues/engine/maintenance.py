"""What has to happen by the clock: delays end, messages expire, counts are folded, dead nodes are reaped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from psycopg.errors import LockNotAvailable

from queues.engine import audit
from queues.engine import node as nodes
from queues.engine.buffer import QueueBuffer
from queues.engine.claimer import Claimer
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.deadlines import Agenda
from queues.engine.faults import Fault, fault_of
from queues.engine.floor import FIRST
from queues.engine.health import Health, Trouble
from queues.engine.message import ROWS_PER_STATEMENT, Counts
from queues.engine.options import EngineOptions
from queues.engine.rowwise import Rows, Rowwise
from queues.engine.settler import Settler
from queues.engine.statements import array, statement

logger = logging.getLogger(__name__)

#: Seconds between looks at each thing.
DUE = 0.05
LIVENESS = 0.25
SWEEP = 1.0
#: Seconds between looks at everything that is due, or expired: a transaction that is longer may commit some late.
ALL_DUE = 5.0
ALL_EXPIRED = 30.0
EVER = "-infinity"
SEAL = 0.5
#: What does not work while a chain is broken that the journal waits for, as /readyz says it.
SEALING = Trouble("The audit journal is not sealed", "journal")
TIDY = 0.1
#: Seconds that a process may leave a transaction open without a word; those that it may when the transaction is that
#: old already, since it had to wait for a lock; and the connections that make them.
FROZEN = 10.0
HELD = 2.0
WRITING = ["fivewire writer", "fivewire settler", "fivewire claimer", "fivewire clockwork", "fivewire mailroom"]
UNSEEN = 5.0
#: Queues in one statement.
TOGETHER = 1000
TOUCH = 60.0
PARTITIONS = 3600.0
PARTITIONS_AGAIN = 60.0
#: Ids of letters, and lines of workers, forgotten in one transaction.
FORGOTTEN = 10_000
#: Tallies older than this many folds are committed, but for those of long transactions, which are found when
#: everything that is expired is looked for: the search for new ones starts after them.
FOLDS_BEHIND = 30


async def anchor_at_stop(anchor: Callable[[], None], patience: float) -> None:
    """Have what was recorded signed, in a thread: the engine has written its last row."""
    try:
        async with asyncio.timeout(patience):
            await asyncio.to_thread(anchor)
    except Exception as error:  # the next upkeep of any node signs it
        logger.error("the audit chains were not signed at the stop: %s", str(error) or type(error).__name__)


class Maintenance:
    """Each method runs for ever on a connection, and ends by an exception when that is lost."""

    def __init__(
        self, options: EngineOptions, counts: Counts, health: Health, buffers: dict[int, QueueBuffer],
        dead_buffers: Mapping[int, QueueBuffer], ready_everywhere: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.options = options
        self.counts = counts
        self.health = health
        self.buffers = buffers
        self.dead_buffers = dead_buffers
        self.ready_everywhere = ready_everywhere
        #: Held by the method whose statements go to the connection that several of these methods share.
        self._turn = asyncio.Lock()
        #: Nodes that were found dead and are to be reaped.
        self._due = Rowwise("due_ids", "delayed message", health)
        self._expired = Rowwise("expired_ids", "message that outlived its time", health)
        self._tallies = Rowwise("tallied_queues", "count of a queue", health, letters=False)
        self._dead: asyncio.Queue[int] = asyncio.Queue()
        self._found_dead: set[int] = set()

    async def promote_due(self, connection: Connection) -> None:
        """Make delayed messages ready when their time has come; between two looks, seal the audit journal."""
        sealed, looked, since = -SEAL, 0.0, EVER
        while True:
            if now() - sealed >= SEAL:
                await self._seal(connection)
                sealed = now()
            rows = await self._all_but(connection, self._due, "promote_due", limit=ROWS_PER_STATEMENT, since=since)
            for queue, low in rows:
                self.ready_everywhere(queue, low)
            if not rows:
                parameters = {"since": since, "skip": self._due.parameters["skip"]}
                [(left, mark)] = await (await connection.execute(statement("next_due"), parameters)).fetchall()
                looked, since = _next_look(looked, mark, ALL_DUE)
                await asyncio.sleep(DUE if left is None else min(DUE, max(0.002, left)))

    async def _seal(self, connection: Connection) -> None:
        try:
            await audit.seal(connection)
        except audit.AuditError as error:
            self.health.begin(SEALING, str(error).rstrip("."))
        else:
            self.health.end(SEALING)

    async def keep_audit(self, look_after: Callable[[], None]) -> None:
        """Have the audit chains looked after, in a thread: anchors, partitions, retention."""
        while True:
            await asyncio.sleep(self.options.audit_interval)
            try:
                await asyncio.to_thread(look_after)
            except Exception as error:  # whatever it is, the next time does what this one has not
                logger.error("the audit chains were not looked after: %s", error)

    async def sweep(self, connection: Connection) -> None:
        """Every second: remove expired messages, fold tallies."""
        folded, looked, since = [0], 0.0, EVER
        while True:
            gone = ROWS_PER_STATEMENT
            while gone == ROWS_PER_STATEMENT:
                async with self._turn:
                    rows = await self._all_but(
                        connection, self._expired, "expire", limit=ROWS_PER_STATEMENT, since=since
                    )
                gone, mark = sum(row[0] for row in rows), rows[-1][1] if rows else since
                self.counts.expired += gone
            low = 0 if since == EVER else folded[0]
            looked, since = _next_look(looked, mark, ALL_EXPIRED)
            async with self._turn:
                rows = await self._all_but(connection, self._tallies, "fold_tallies", low=low)
            if last := max((row[0] or 0 for row in rows), default=0):
                folded.append(last)
                del folded[:-FOLDS_BEHIND]
            await asyncio.sleep(SWEEP)

    async def live(self, connection: Connection, claimer: Claimer) -> None:
        """Show that this node works, find those that do not, and end what frozen ones hold up others with. Nothing slow
        goes over this connection, which holds the node's lock."""
        while True:
            asked = now()
            dead = await nodes.dead_nodes(connection)
            kept_back, claimer.trusted_until = asked > claimer.trusted_until, asked + nodes.TRUSTED
            for buffer in self.buffers.values() if kept_back else ():
                buffer.dispatch()
            for node in dead:
                if node not in self._found_dead:
                    self._found_dead.add(node)
                    self._dead.put_nowait(node)
            self.counts.silent_nodes += await nodes.end_silent(connection)
            await connection.execute(statement("end_frozen"), {"names": WRITING, "patience": FROZEN, "held": HELD})
            await asyncio.sleep(LIVENESS)

    async def reap(self, connection: Connection) -> None:
        """Return what dead nodes had leased."""
        self._found_dead.clear()
        while True:
            node = await self._dead.get()
            self._found_dead.discard(node)
            self.counts.dead_nodes += await nodes.reap(connection, node, self.health)

    @staticmethod
    async def _all_but(connection: Connection, units: Rowwise, name: str, **parameters: Any) -> Rows:
        """Run one of the named statements over all units but those that fail."""

        async def run(which: dict[str, Any]) -> Rows:
            return await (await connection.execute(statement(name), parameters | which)).fetchall()

        return await units.run(connection, run, **parameters)

    async def _rows(self, connection: Connection, name: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Run one of the named statements on the shared connection, in its turn."""
        async with self._turn:
            cursor = await connection.execute(statement(name), parameters)
            return await cursor.fetchall() if cursor.description is not None else []

    async def tidy(self, connection: Connection, settler: Settler, claimer: Claimer) -> None:
        """Hand back what nobody consumes any more, and look for messages that no notification told of."""
        rounds = 0
        for buffer in self.buffers.values():
            buffer.tidy_soon()
        while True:
            await asyncio.sleep(TIDY)
            time, rounds = now(), rounds + 1
            cold = self._cold(settler, time)
            for start in range(0, len(cold), TOGETHER):
                await self._leave(connection, cold[start : start + TOGETHER], claimer.node)
            for dead in self.dead_buffers.values():
                if dead.ready and not dead.waiters:  # who asked for them went while they were on their way
                    settler.hand_back(dead.take_all())
            await self._raise_floors(connection, claimer, time)
            if rounds % int(UNSEEN / TIDY) == 0:
                await self._look_for_unseen(connection)
                self._look_for_dead_letters()
            if rounds % int(TOUCH / TIDY) == 0:
                await self._touch_subscriptions(connection, time)

    def _cold(self, settler: Settler, time: float) -> list[QueueBuffer]:
        """Empty the buffers that are not consumed from any more; those that are due again are noted."""
        cold: list[QueueBuffer] = []
        for buffer in settler.tidying.due(time):
            # What was on its way when a buffer went cold comes to one that is no longer interested.
            if buffer.closed or not (buffer.interested or buffer.ready):
                continue
            if not buffer.is_cold(time):
                settler.tidying.at(buffer, max(buffer.look_again_at(time), time + TIDY))
                continue
            if taken := buffer.take_all():
                settler.hand_back(taken)
                buffer.back_with = settler.round
            buffer.interested = False
            cold.append(buffer)
        return cold

    async def _leave(self, connection: Connection, cold: list[QueueBuffer], node: int) -> None:
        try:
            await self._rows(connection, "drop_interest", queues=array(buffer.id for buffer in cold), node=node)
        except BaseException:
            for buffer in cold:  # to be said again
                buffer.interested = True
            raise
        if back := [buffer.id for buffer in cold if buffer.interested]:  # said before the drop, perhaps
            await self._rows(connection, "add_interest", queues=array(back), node=node)

    async def _raise_floors(self, connection: Connection, claimer: Claimer, time: float) -> None:
        """After the last claim nobody else looks whether an earlier id has become visible since."""
        for buffer in tuple(claimer.lagging):
            if not buffer.floor.lags or buffer.closed:
                del claimer.lagging[buffer]
        quiet = [buffer for buffer in claimer.lagging if not buffer.backlog and not buffer.claiming]
        for start in range(0, len(quiet), TOGETHER):
            await self._raise_some(connection, quiet[start : start + TOGETHER], time)

    async def _raise_some(self, connection: Connection, buffers: list[QueueBuffer], time: float) -> None:
        looks = [(buffer, buffer.news, buffer.floor.highest) for buffer in buffers]
        rows = await self._rows(
            connection, "look_below", queues=array(buffer.id for buffer in buffers),
            lows=array(buffer.floor.value for buffer in buffers), highs=array(high for _, _, high in looks),
        )  # fmt: skip
        found = {queue for _, queue, ready in rows if ready}
        for buffer, news, high in looks:
            if buffer.news != news:
                continue
            if buffer.id in found:
                buffer.more_in_store(buffer.floor.value + 1)
            else:
                buffer.floor.looked(rows[0][0], high)
                buffer.floor.give_up_waiting(time)

    async def _look_for_unseen(self, connection: Connection) -> None:
        quiet = [buffer.id for buffer in self.buffers.values() if buffer.interested and not buffer.backlog]
        for start in range(0, len(quiet), TOGETHER):
            for (queue,) in await self._rows(connection, "unseen", queues=array(quiet[start : start + TOGETHER])):
                if (buffer := self.buffers.get(queue)) is not None:  # it may have been removed meanwhile
                    buffer.more_in_store(FIRST)

    def _look_for_dead_letters(self) -> None:
        """Whoever waits for dead letters asks again, in case a notification was lost."""
        for buffer in self.dead_buffers.values():
            if buffer.waiters:
                buffer.more_in_store(FIRST)

    async def _touch_subscriptions(self, connection: Connection, time: float) -> None:
        used = [buffer.id for buffer in self.buffers.values() if time - buffer.last_demand < TOUCH]
        for start in range(0, len(used), TOGETHER):
            await self._rows(connection, "touch_subscriptions", queues=array(used[start : start + TOGETHER]))

    async def keep_partitions(self, connection: Connection) -> None:
        """Make the archive's partitions ahead, drop old ones, and drop idle subscriptions if they are to go."""
        while True:
            pause = PARTITIONS
            try:
                await self._rows(connection, "make_partitions")
                if days := self.options.archive_days:
                    await self._rows(connection, "drop_partitions", days=days)
            except LockNotAvailable:  # somebody reads the archive, and acknowledgements are not to wait for that
                pause = PARTITIONS_AGAIN
            if days := self.options.archive_days:
                await self._apart(connection, "drop_old_log_lines", FORGOTTEN, days=days)
            if days := self.options.idle_subscription_days:
                await self._apart(connection, "drop_idle_subscriptions", 1, days=days)
            await self._forget_letters(connection)
            await asyncio.sleep(pause)

    async def _forget_letters(self, connection: Connection) -> None:
        """Forget the ids of letters that were sent before the dedupe window."""
        await self._apart(connection, "forget_letters", FORGOTTEN, window=self.options.dedupe_window)

    async def _apart(self, connection: Connection, name: str, limit: int, **parameters: Any) -> None:
        """As `_in_parts`; what fails there keeps nothing else from being done."""
        try:
            await self._in_parts(connection, name, limit, **parameters)
        except Exception as error:
            if fault_of(error, connection) is not Fault.BAD:
                raise
            self.health.isolate("upkeep", error, statement=name)

    async def _in_parts(self, connection: Connection, name: str, limit: int, **parameters: Any) -> None:
        """Remove rows that are found without an index, so many at a time, and let others have their turn between."""
        gone = limit
        while gone == limit:
            async with self._turn, connection.transaction():
                await connection.execute("set local enable_seqscan = on")
                cursor = await connection.execute(statement(name), parameters | {"limit": limit}, prepare=False)
                [(gone,)] = await cursor.fetchall()


def _next_look(looked: float, mark: str, every: float) -> tuple[float, str]:
    """When everything was or is looked at, and from when on the next look needs to: what an old transaction keeps of
    gone messages is not walked over each time."""
    time = now()
    return (time, EVER) if time - looked >= every else (looked, mark)


def deadlines(timed: Agenda[QueueBuffer], time: float, health: Health) -> None:
    """Return deliveries whose time is up."""
    for buffer in timed.due(time):
        try:
            buffer.expire_deliveries(time)
        except Exception as error:
            health.isolate("deadline", error, queue=buffer.policy.name)
        if (following := buffer.next_deadline) is not None:
            timed.at(buffer, following)
