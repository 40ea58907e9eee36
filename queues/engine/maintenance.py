"""What has to happen by the clock: delays end, messages expire, counts are folded, dead nodes are reaped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from psycopg.errors import LockNotAvailable

from queues.engine import audit
from queues.engine import node as nodes
from queues.engine.buffer import QueueBuffer
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.floor import FIRST
from queues.engine.message import ROWS_PER_STATEMENT, Counts
from queues.engine.options import EngineOptions
from queues.engine.settler import Settler
from queues.engine.statements import array, statement

logger = logging.getLogger(__name__)

#: Seconds between looks at each thing.
DUE = 0.05
LIVENESS = 0.25
SWEEP = 1.0
SEAL = 0.5
TIDY = 0.1
#: Seconds that a process may leave a transaction open without a word; those that it may when the transaction is that
#: old already, since it had to wait for a lock; and the connections that make them.
FROZEN = 10.0
HELD = 2.0
WRITING = ["fivewire writer", "fivewire settler", "fivewire claimer", "fivewire clockwork", "fivewire mailroom"]
UNSEEN = 5.0
TOUCH = 60.0
PARTITIONS = 3600.0
PARTITIONS_AGAIN = 60.0
#: Ids of letters forgotten in one transaction.
FORGOTTEN = 100_000
#: Tallies older than this many folds are certainly committed; the search for new ones starts after them.
FOLDS_BEHIND = 30


class Maintenance:
    """Each method runs for ever on a connection, and ends by an exception when that is lost."""

    def __init__(
        self, options: EngineOptions, counts: Counts, buffers: dict[int, QueueBuffer],
        dead_buffers: Mapping[int, QueueBuffer], ready_everywhere: Callable[[int, int], None],
    ) -> None:  # fmt: skip
        self.options = options
        self.counts = counts
        self.buffers = buffers
        self.dead_buffers = dead_buffers
        self.ready_everywhere = ready_everywhere
        #: Who has a transaction on the connection that several of these methods share.
        self._in_transaction = asyncio.Lock()

    async def promote_due(self, connection: Connection) -> None:
        """Make delayed messages ready when their time has come; between two looks, seal the audit journal."""
        sealed = -SEAL
        while True:
            if now() - sealed >= SEAL:
                await self._seal(connection)
                sealed = now()
            cursor = await connection.execute(statement("promote_due"), {"limit": ROWS_PER_STATEMENT})
            rows = await cursor.fetchall()
            for queue, low in rows:
                self.ready_everywhere(queue, low)
            if not rows:
                row = await (await connection.execute(statement("next_due"))).fetchone()
                await asyncio.sleep(DUE if row is None else min(DUE, max(0.002, row[0])))

    async def _seal(self, connection: Connection) -> None:
        try:
            await audit.seal(connection)
        except audit.AuditError as error:
            logger.error("the audit journal is not sealed: %s", error)

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
        folded = [0]
        while True:
            gone = ROWS_PER_STATEMENT
            while gone == ROWS_PER_STATEMENT:
                row = await (await connection.execute(statement("expire"), {"limit": ROWS_PER_STATEMENT})).fetchone()
                gone = row[0] if row else 0
                self.counts.expired += gone
            row = await (await connection.execute(statement("fold_tallies"), {"low": folded[0]})).fetchone()
            if row and row[0]:
                folded.append(row[0])
                del folded[:-FOLDS_BEHIND]
            await asyncio.sleep(SWEEP)

    async def reap(self, connection: Connection) -> None:
        """Return what dead nodes had leased; end what frozen ones hold up others with."""
        while True:
            for node in await nodes.dead_nodes(connection):
                async with self._in_transaction:
                    self.counts.dead_nodes += await nodes.reap(connection, node)
            parameters = {"names": WRITING, "patience": FROZEN, "held": HELD}
            await connection.execute(statement("end_frozen"), parameters)
            await asyncio.sleep(LIVENESS)

    async def tidy(self, connection: Connection, settler: Settler, node: int) -> None:
        """Hand back what nobody consumes any more, and look for messages that no notification told of."""
        rounds = 0
        while True:
            await asyncio.sleep(TIDY)
            time, rounds = now(), rounds + 1
            # What was on its way when a buffer went cold comes to one that is no longer interested.
            cold = [b for b in self.buffers.values() if (b.interested or b.ready) and b.is_cold(time)]
            for buffer in cold:
                if taken := buffer.take_all():
                    settler.hand_back(taken)
                    buffer.back_with = settler.round
                buffer.interested = False
            if cold:
                parameters = {"queues": array(buffer.id for buffer in cold), "node": node}
                await connection.execute(statement("drop_interest"), parameters)
                if back := [buffer.id for buffer in cold if buffer.interested]:  # said before the drop, perhaps
                    await connection.execute(statement("add_interest"), {"queues": array(back), "node": node})
            for dead in self.dead_buffers.values():
                if dead.ready and not dead.waiters:  # who asked for them went while they were on their way
                    settler.hand_back(dead.take_all())
            for buffer in tuple(self.buffers.values()):
                if buffer.floor.lags and not buffer.backlog and not buffer.claiming:
                    await self._raise_floor(connection, buffer, time)
            if rounds % int(UNSEEN / TIDY) == 0:
                await self._look_for_unseen(connection)
                self._look_for_dead_letters()
            if rounds % int(TOUCH / TIDY) == 0:
                await self._touch_subscriptions(connection, time)

    async def _raise_floor(self, connection: Connection, buffer: QueueBuffer, time: float) -> None:
        """After the last claim nobody else looks whether an earlier id has become visible since."""
        news, high = buffer.news, buffer.floor.highest
        parameters = {"queue": buffer.id, "low": buffer.floor.value, "high": high}
        row = await (await connection.execute(statement("look_below"), parameters)).fetchone()
        if row is None or buffer.news != news:
            return
        snapshot, found = row
        if found:
            buffer.more_in_store(buffer.floor.value + 1)
        else:
            buffer.floor.looked(snapshot, high)
            buffer.floor.give_up_waiting(time)

    async def _look_for_unseen(self, connection: Connection) -> None:
        quiet = [buffer.id for buffer in self.buffers.values() if buffer.interested and not buffer.backlog]
        for start in range(0, len(quiet), 1000):
            cursor = await connection.execute(statement("unseen"), {"queues": array(quiet[start : start + 1000])})
            for (queue,) in await cursor.fetchall():
                if (buffer := self.buffers.get(queue)) is not None:  # it may have been removed meanwhile
                    buffer.more_in_store(FIRST)

    def _look_for_dead_letters(self) -> None:
        """Whoever waits for dead letters asks again, in case a notification was lost."""
        for buffer in self.dead_buffers.values():
            if buffer.waiters:
                buffer.more_in_store(FIRST)

    async def _touch_subscriptions(self, connection: Connection, time: float) -> None:
        used = [buffer.id for buffer in self.buffers.values() if time - buffer.last_demand < TOUCH]
        await connection.execute(statement("touch_subscriptions"), {"queues": array(used)})

    async def keep_partitions(self, connection: Connection) -> None:
        """Make the archive's partitions ahead, drop old ones, and drop idle subscriptions if they are to go."""
        while True:
            pause = PARTITIONS
            today = "(now() at time zone 'UTC')::date"
            try:
                await connection.execute(f"select queues_make_archive_partitions({today}, 7)".encode())
                if self.options.archive_days:
                    await connection.execute(
                        f"select queues_drop_archive_partitions({today} - %s)".encode(),
                        (self.options.archive_days,),
                    )
            except LockNotAvailable:  # somebody reads the archive, and acknowledgements are not to wait for that
                pause = PARTITIONS_AGAIN
            if self.options.archive_days:
                await connection.execute(statement("drop_old_log_lines"), {"days": self.options.archive_days})
            if self.options.idle_subscription_days:
                await connection.execute(
                    statement("drop_idle_subscriptions"), {"days": self.options.idle_subscription_days}
                )
            await self._forget_letters(connection)
            await asyncio.sleep(pause)

    async def _forget_letters(self, connection: Connection) -> None:
        """Forget the ids of letters that were sent before the dedupe window; without an index by time, once an hour."""
        gone = FORGOTTEN
        while gone == FORGOTTEN:
            async with self._in_transaction, connection.transaction():
                await connection.execute("set local enable_seqscan = on")
                parameters = {"window": self.options.dedupe_window, "limit": FORGOTTEN}
                cursor = await connection.execute(statement("forget_letters"), parameters, prepare=False)
                row = await cursor.fetchone()
            gone = row[0] if row else 0


def deadlines(buffers: Iterable[QueueBuffer], time: float) -> list[QueueBuffer]:
    """Return deliveries whose time is up; the buffers that have no more deadlines."""
    done = []
    for buffer in buffers:
        buffer.expire_deliveries(time)
        if not buffer.has_deadlines:
            done.append(buffer)
    return done
