"""Acknowledgements and returns on their way to the store, in batches.

Nobody waits for an acknowledgement's commit but a connection's later replies when very many are outstanding, so
batches are left to grow for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from queues.engine.audit import AuditError
from queues.engine.audited import AuditedBatch, AuditedQueue, KeyNames
from queues.engine.batches import AckBatch, JobBatch, Returns, Taken, failure_arrays, lock_late, return_arrays
from queues.engine.clock import now, wall_offset
from queues.engine.database import Connection
from queues.engine.deadlines import Agenda
from queues.engine.message import ROWS_PER_STATEMENT, Counts, Failure
from queues.engine.policy import QueuePolicy
from queues.engine.statements import array, statement

if TYPE_CHECKING:
    from queues.engine.buffer import QueueBuffer

logger = logging.getLogger(__name__)

#: Seconds a batch of acknowledgements may grow: nobody waits for it, and larger ones cost less a message.
GROWTH = 0.01
PURGED = 2  # the archive's outcome
#: Seconds until a queue whose audit chain cannot be appended to is tried again.
BROKEN = 1.0


class Settler:
    """Writes acknowledgements, returns, dead letters and hand-backs, one statement for many; those of an audited queue
    in a transaction with their record.

    `more_in_store(queue id, lowest id)` is told what became ready, `more_dead(queue id)` where dead letters came.
    """

    def __init__(
        self, counts: Counts, more_in_store: Callable[[int, int], None], more_dead: Callable[[int], None]
    ) -> None:
        self.counts = counts
        self.more_in_store = more_in_store
        self.more_dead = more_dead
        self.node = 0
        #: What to add to a monotonic time to get a Unix time by the server's clock.
        self.clock = wall_offset()
        #: Acknowledgements taken and not yet committed.
        self.unsettled = 0
        #: Buffers with deliveries that return by themselves.
        self.timed: Agenda[QueueBuffer] = Agenda()
        #: Buffers that may hold what is not consumed any more.
        self.tidying: Agenda[QueueBuffer] = Agenda()
        self.on_progress: Callable[[], None] = lambda: None
        #: Those of audited queues are theirs.
        self.returns = Returns()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._batches: dict[tuple[str, int | None, int | None, bool], AckBatch] = {}
        self._dirty: list[AckBatch] = []
        self._failures: list[Failure] = []
        self._buried: dict[int | None, list[Failure]] = defaultdict(list)
        self._handed_back: list[tuple[int, int | None]] = []
        self._purged: dict[str, list[int]] = {}
        self._job_batches: dict[tuple[str, int | None, bool], JobBatch] = {}
        self._writing: list[Taken] = []
        #: Audited queues by their ids; those of them that have something to write.
        self._audited: dict[int, AuditedQueue] = {}
        self._recording: dict[AuditedQueue, None] = {}
        self._names = KeyNames()
        self._broken_until = 0.0
        #: Whatever is given to the settler now is durable when `settled` has reached this number.
        self.round = 1
        self.settled = 0
        #: Whatever was handed back before this round has ended is in the store.
        self.handed_back = 0

    # What buffers say.

    def batch(self, policy: QueuePolicy, consumer: int | None, late: bool = False) -> AckBatch:
        """The batch for acknowledgements of a queue by the holder of an API key; `late`: this node may no longer have
        the lease."""
        retention = policy.retention
        key = retention, consumer, policy.id if policy.audited else None, late
        if key not in self._batches:
            queue = self.audited(policy)
            self._batches[key] = (
                AckBatch(self, retention, consumer, late)
                if queue is None
                else AuditedBatch(self, retention, consumer, queue, late)
            )
        return self._batches[key]

    def job_batch(self, policy: QueuePolicy, late: bool = False) -> JobBatch:
        """The batch for jobs of a queue that workers have done; `late` as for `batch`."""
        key = policy.retention, policy.id if policy.audited else None, late
        if key not in self._job_batches:
            queue = self.audited(policy)
            self._job_batches[key] = (
                JobBatch(self, policy.retention, None, late)
                if queue is None
                else AuditedBatch(self, policy.retention, None, queue, late)
            )
        return self._job_batches[key]

    def audited(self, policy: QueuePolicy) -> AuditedQueue | None:
        """Where to tell what happens to the messages of a queue, if it is audited."""
        queue = self._audited.get(policy.id)
        if queue is None and policy.audited:
            queue = self._audited[policy.id] = AuditedQueue(self, policy)
        if queue is not None:
            queue.obey(policy)
        return queue if policy.audited else None

    def record(self, queue: AuditedQueue) -> None:
        """An audited queue has something to write."""
        if queue not in self._recording:
            self._recording[queue] = None
            self._wake.set()

    def open(self, batch: AckBatch) -> None:
        self._dirty.append(batch)
        self._wake.set()

    def hurry(self) -> None:
        """Write what waits without letting it grow."""
        self._wake.set()
        self._urgent.set()

    def give_back(self, failure: Failure, audited: AuditedQueue | None = None) -> None:
        """Return a delivery to the tail of its queue."""
        if audited is None:
            self._failures.append(failure)
            self.returns.add()
        else:
            audited.give_back(failure)
        self.hurry()

    def bury(self, policy: QueuePolicy, failure: Failure) -> None:
        """Make a delivery a dead letter."""
        if (audited := self.audited(policy)) is None:
            self._buried[policy.dead_letter_queue_id].append(failure)
        else:
            audited.bury(policy.dead_letter_queue_id, failure)
        self.hurry()

    def hand_back(self, taken: Iterable[tuple[int, int | None]], audited: AuditedQueue | None = None) -> None:
        """Make (id, tag to keep) ready again where they were; `audited` is their queue if they were delivered."""
        if audited is None:
            self._handed_back.extend(taken)
        else:
            audited.hand_back(taken)
        self.hurry()

    def purge(self, ids: list[int], by: str) -> None:
        """Remove messages that an operator purged while they were in memory."""
        if ids:
            self._purged.setdefault(by, []).extend(ids)
            self.hurry()

    @property
    def idle(self) -> bool:
        return not (
            self._dirty or self._writing or self._failures or self._buried or self._handed_back or self._purged
            or self._recording
        )  # fmt: skip

    def forget_leases(self) -> None:
        """The leases were lost: what was to be returned is returned by whoever reaps them, and every acknowledgement
        is a late one."""
        self._take()
        for taken in self._writing:
            taken.late = True
        self._failures.clear()
        self.returns.forget()
        self._buried.clear()
        self._handed_back.clear()
        for queue in self._audited.values():
            queue.forget_leases()

    def forget_history(self) -> None:
        """The store has another past: what waits is of messages whose ids may be others' now."""
        self._take()
        self.unsettled -= sum(len(taken.ids) for taken in self._writing)
        self._writing.clear()
        self._purged.clear()
        for queue in self._audited.values():
            queue.forget_history()
        self._names = KeyNames()

    def _take(self) -> None:
        batches, self._dirty = self._dirty, []
        self._writing += [batch.take() for batch in batches]

    # What the engine runs.

    async def run(self, connection: Connection) -> None:
        """Write for ever; ends by an exception when the connection is lost, and may be run again with another."""
        if self._writing:  # cut off in the middle: deleting twice is harmless
            await self._write_acks(connection)
        if await self._write_recorded(connection):
            self._confirm(self.round - 1)
        self.on_progress()
        while True:
            if self.idle:
                self._wake.clear()
                await self._wake.wait()
            with contextlib.suppress(TimeoutError):  # not wait_for, which may swallow the cancellation that ends this
                async with asyncio.timeout(GROWTH):
                    await self._urgent.wait()
            self._urgent.clear()
            await self.write(connection)

    async def write(self, connection: Connection) -> None:
        """Write everything that waits."""
        round, self.round = self.round, self.round + 1
        if self._dirty:
            self._take()
            await self._write_acks(connection)
        if self._failures:
            failures, self._failures = self._failures, []
            self.returns.take()
            await self._return(connection, failures)
            self.returns.written()
        if self._buried:
            buried, self._buried = self._buried, defaultdict(list)
            for target, failures in buried.items():
                await self._bury(connection, target, failures)
        if self._handed_back:
            taken, self._handed_back = self._handed_back, []
            await self._hand_back(connection, taken)
        self.handed_back = round
        if self._purged:
            await self._write_recorded(connection)  # what was delivered before is recorded before
            purged, self._purged = self._purged, {}
            for by, ids in purged.items():
                await connection.execute(statement("remove"), {"ids": array(ids), "outcome": PURGED, "by": by})
        if await self._write_recorded(connection):
            self._confirm(round)
        self.on_progress()

    def _confirm(self, round: int) -> None:
        """This round is durable. What was given while it was written may have been written with it: then nothing
        waits any more, and no other round would come to confirm that."""
        if self.idle:
            round, self.round = self.round, self.round + 1
            self.handed_back = round
        self.settled = round

    async def _write_recorded(self, connection: Connection) -> bool:
        """Write what waits for audited queues. False when that of one cannot be recorded: then nothing is confirmed."""
        if self._recording and now() < self._broken_until:
            return False
        whole = True
        for queue in tuple(self._recording):
            try:
                await queue.write(connection, self._names)
            except AuditError as error:
                logger.error("messages of %s are not settled: %s", queue.name, error)
                self._broken_until, whole = now() + BROKEN, False
            if queue.idle:
                del self._recording[queue]
        return whole

    async def _write_acks(self, connection: Connection) -> None:
        while self._writing:
            taken = self._writing[0]
            ids = set(taken.ids)
            once = taken.only(ids) if len(ids) < len(taken.ids) else taken
            if taken.late:
                await self._write_late(connection, once)
            else:
                await connection.execute(statement(once.statement), once.parameters(self.clock))
            self.counts.acknowledged += len(ids)
            self.unsettled -= len(taken.ids)
            del self._writing[0]

    async def _write_late(self, connection: Connection, taken: Taken) -> None:
        """Settle what others may lease, claim or return at the same time, and never wait for them with rows locked."""
        while taken.ids:
            async with connection.transaction():
                mine, busy = await lock_late(connection, taken.ids, taken.times, self.clock)
                if mine:
                    some = taken.only(mine)
                    await connection.execute(statement(some.statement), some.parameters(self.clock))
            taken = taken.only(busy)
            if busy:
                await asyncio.sleep(GROWTH)

    async def _return(self, connection: Connection, failures: list[Failure]) -> None:
        for start in range(0, len(failures), ROWS_PER_STATEMENT):
            some = failures[start : start + ROWS_PER_STATEMENT]
            parameters = return_arrays(some) | {"node": self.node, "audited": False}
            cursor = await connection.execute(statement("return"), parameters)
            self.counts.returned += len(some)
            for queue, low, ready, *_, dead in await cursor.fetchall():
                if ready:
                    self.more_in_store(queue, low)
                if dead:
                    self.more_dead(queue)

    async def _bury(self, connection: Connection, target: int | None, failures: list[Failure]) -> None:
        for start in range(0, len(failures), ROWS_PER_STATEMENT):
            parameters = failure_arrays(failures[start : start + ROWS_PER_STATEMENT])
            parameters |= {"node": self.node, "audited": False}
            if target is not None:
                cursor = await connection.execute(statement("bury_elsewhere"), parameters | {"target": target})
                if row := await cursor.fetchone():
                    self.more_in_store(target, row[0])
                    continue
            cursor = await connection.execute(statement("bury"), parameters)
            for queue, *_ in await cursor.fetchall():
                self.more_dead(queue)
        self.counts.buried += len(failures)

    async def _hand_back(self, connection: Connection, taken: list[tuple[int, int | None]]) -> None:
        parameters = {
            "node": self.node,
            "ids": array(id for id, _ in taken),
            "tags": [tag for _, tag in taken],
            "audited": False,
        }
        cursor = await connection.execute(statement("hand_back"), parameters)
        for queue, low, dead, *_ in await cursor.fetchall():
            if dead:
                self.more_dead(queue)
            else:
                self.more_in_store(queue, low)
