"""Writes acknowledgements, returns, dead letters, hand-backs and purges to the store, in batches.

Local queues call the methods of the first section; `run` writes, on a connection of its own, in rounds. A round takes
all that is gathered, one statement for many messages; acknowledgements grow for GROWTH seconds unless `hurry` is
called. Acknowledgements are committed asynchronously: only barrier replies wait, once more than `most_unsettled` are
pending. `round` is the number of the round that will write the settlements given now; it is durable once `settled` has
reached that number. A part that cannot be written is halved until the message to blame is alone, which is set aside as
a dead letter. Messages of an audited queue are written by `AuditedQueue`, in one transaction with their record.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, TypeVar

from queues.engine.clock import ServerClock
from queues.engine.database import Connection
from queues.engine.faults import told
from queues.engine.health import Health, Trouble
from queues.engine.isolation import Patience, carry_out, halves
from queues.engine.max_length import MaxLength
from queues.engine.message import ROWS_PER_STATEMENT, Counts, Failure
from queues.engine.node import Node
from queues.engine.policies import QueuePolicy
from queues.engine.settle.audited_queues import BROKEN, AuditedBatch, AuditedQueue, KeyNames
from queues.engine.settle.batches import AckBatch, JobBatch, Returns, Taken, failure_arrays, lock_late, return_arrays
from queues.engine.statements import array, statement

#: Seconds that a batch of acknowledgements may grow: larger batches cost less a message.
GROWTH = 0.01
#: The archive's outcome of a purged message.
PURGED = 2
#: The greatest count of attempts in the store.
MOST_ATTEMPTS = 32_767
#: The trouble of /readyz while the settlement writer cannot write.
SETTLING = Trouble("Acknowledgements are not written", "acknowledgements")


class Buried(NamedTuple):
    """Dead letters for one queue; None: each becomes a dead letter of its own queue."""

    target: int | None
    failures: list[Failure]


T = TypeVar("T")
#: Id, tag to keep.
Handed = tuple[int, int | None]


class SettlementWriter:
    """The settlements of this node. `more_in_store(queue id, lowest id)` is called for messages that became ready,
    `more_dead(queue id)` for dead letters, `on_progress()` after each round."""

    def __init__(
        self, node: Node, clock: ServerClock, counts: Counts, health: Health, max_length: MaxLength,
        more_in_store: Callable[[int, int], None], more_dead: Callable[[int], None], on_progress: Callable[[], None],
    ) -> None:  # fmt: skip
        self.counts = counts
        self.health = health
        self.max_length = max_length
        self.more_in_store = more_in_store
        self.more_dead = more_dead
        self.node = node
        self.clock = clock
        #: Acknowledgements taken and not yet committed.
        self.unsettled = 0
        self._on_progress = on_progress
        #: Audited queues track their own returns.
        self.returns = Returns()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._batches: dict[tuple[str, int | None, int | None, bool], AckBatch] = {}
        self._dirty: list[AckBatch] = []
        self._failures: list[Failure] = []
        self._buried: dict[int | None, list[Failure]] = defaultdict(list)
        self._handed_back: list[Handed] = []
        self._purged: dict[str, list[int]] = {}
        self._job_batches: dict[tuple[str, int | None, bool], JobBatch] = {}
        #: The parts being written, by kind.
        self._writing: deque[Taken] = deque()
        self._returning: deque[list[Failure]] = deque()
        self._burying: deque[Buried] = deque()
        self._handing: deque[list[Handed]] = deque()
        self._patience = Patience()
        #: Marks of `AuditedQueue.settling` that are not durable yet.
        self.unrecorded: set[int] = set()
        #: Audited queues by id; the audited queues with something to write.
        self._audited: dict[int, AuditedQueue] = {}
        self._recording: dict[AuditedQueue, None] = {}
        self._names = KeyNames()
        #: The round that writes settlements given now; the last durable round.
        self.round = 1
        self.settled = 0
        #: The last round whose hand-backs are in the store.
        self.handed_back = 0

    # Called by local queues.

    def batch(self, policy: QueuePolicy, consumer: int | None, late: bool = False) -> AckBatch:
        """The batch for acknowledgements of a queue with one API key; `late`: this node may no longer have the
        leases."""
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
        """The batch for finished jobs of a queue; `late` as for `batch`."""
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
        """The record of a queue's deliveries and settlements; None unless the queue is audited."""
        queue = self._audited.get(policy.id)
        if queue is None and policy.audited:
            queue = self._audited[policy.id] = AuditedQueue(self, policy)
        if queue is not None:
            queue.obey(policy)
        return queue if policy.audited else None

    def record(self, queue: AuditedQueue, acks: int = 0) -> None:
        """An audited queue has something to write, so many acknowledgements more among it."""
        self.unsettled += acks
        if queue not in self._recording:
            self._recording[queue] = None
            self._wake.set()

    def note_settled(self, count: int) -> None:
        """So many acknowledgements are durable, or given up."""
        self.unsettled -= count

    def begin_record(self, mark: int) -> None:
        """`Engine.settles` waits for this mark of an audited queue."""
        self.unrecorded.add(mark)

    def end_records(self, marks: Iterable[int]) -> None:
        """Everything before these marks is durable."""
        self.unrecorded.difference_update(marks)

    def gather(self, batch: AckBatch, count: int) -> None:
        """A batch is about to gather so many acknowledgements."""
        self.unsettled += count
        if not batch.ids:
            self._dirty.append(batch)
            self._wake.set()

    def hurry(self) -> None:
        """Write at once."""
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
        """Make messages (id, tag to keep) ready again in their places; `audited` is their queue if they were
        delivered."""
        if audited is None:
            self._handed_back.extend(taken)
        else:
            audited.hand_back(taken)
        self.hurry()

    def refuse(self, failures: Iterable[Failure]) -> None:
        """Tell the sessions that wait for these failures that they are not stored."""
        for failure in failures:
            if failure.refuse is not None:
                self.health.guard("session", None, failure.refuse)

    def purge(self, ids: list[int], by: str) -> None:
        """Remove messages that an operator purged: those that are leased to this node, or ready again."""
        if ids:
            self._purged.setdefault(by, []).extend(ids)
            self.hurry()

    @property
    def idle(self) -> bool:
        return self._rests and not self._recording

    @property
    def _rests(self) -> bool:
        """Whether there is nothing to write now: an audited queue whose chain is broken waits alone."""
        return all(queue.waits for queue in self._recording) and not (
            self._dirty or self._writing or self._failures or self._returning or self._buried or self._burying
            or self._handed_back or self._handing or self._purged
        )  # fmt: skip

    def forget_leases(self) -> None:
        """The leases were lost: the node that reaps them returns the messages, and every acknowledgement is late."""
        self._take()
        for taken in self._writing:
            taken.lose_leases()
        buried = [*self._buried.values(), *(part.failures for part in self._burying)]
        for failures in (self._failures, *self._returning, *buried):
            self.refuse(failures)
        for left in (self._failures, self._returning, self._buried, self._burying, self._handed_back, self._handing):
            left.clear()
        self.returns.forget()
        for queue in self._audited.values():
            queue.forget_leases()

    def forget_history(self) -> None:
        """The store has another past: the ids gathered may belong to other messages now."""
        self._take()
        self.unsettled -= sum(len(taken.ids) for taken in self._writing)
        for taken in self._writing:
            self.health.guard("session", None, taken.refuse)
        self._writing.clear()
        self._purged.clear()
        for queue in self._audited.values():
            queue.forget_history()
        self._names = KeyNames()

    def _take(self) -> None:
        if self._dirty:
            batches, self._dirty = self._dirty, []
            self._writing.extend(batch.take() for batch in batches)

    # Writing.

    async def run(self, connection: Connection) -> None:
        """Write for ever; ends by an exception when the connection is lost, and may be run again with another
        connection. A part that was cut off is written again: deleting twice is harmless."""
        while True:
            refused = await self.write(connection)
            if refused is None:
                self._patience.reset()
                self.health.end(SETTLING)
            else:
                self.health.begin(SETTLING, told(refused))
                await self._patience.wait()
            if self._rests:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._again):
                        await self._wake.wait()
            with contextlib.suppress(TimeoutError):  # not wait_for, which may swallow the cancellation that ends this
                async with asyncio.timeout(GROWTH):
                    await self._urgent.wait()
            self._urgent.clear()

    @property
    def _again(self) -> float | None:
        """Seconds after which a broken chain is tried again."""
        return BROKEN if self._recording else None

    async def write(self, connection: Connection) -> Exception | None:
        """One round: write everything gathered, each kind even if others fail; returns the error by which the server
        refuses the rest for now."""
        round, self.round = self.round, self.round + 1
        refused = [
            await self._write_acks(connection),
            await self._write_returns(connection),
            await self._write_buried(connection),
            await self._write_handed_back(connection),
        ]
        if not self._handing:
            self.handed_back = round
        refused.append(await self._write_recorded(connection))
        await self._write_purged(connection)  # after the records of earlier deliveries
        error = next((error for error in refused if error is not None), None)
        if error is None:
            self._confirm(round)
        self._on_progress()
        return error

    def _confirm(self, round: int) -> None:
        """This round is durable. Settlements given during the round may have been written with it: when nothing is
        left, no other round would confirm them, so the next round is confirmed too."""
        if self._rests:
            round, self.round = self.round, self.round + 1
            self.handed_back = round
        self.settled = round

    async def _write_recorded(self, connection: Connection) -> Exception | None:
        """Write audited queues, one after the other; a queue whose chain is broken delays only itself."""
        refused = None
        for queue in tuple(self._recording):
            if not queue.waits:
                refused = await queue.write(connection, self._names) or refused
            if queue.idle:
                del self._recording[queue]
        return refused

    # Acknowledgements.

    async def _write_acks(self, connection: Connection) -> Exception | None:
        self._take()
        if not self._writing:
            return None
        write = partial(self._settle, connection)
        return await carry_out(self._writing, write, _halve_taken, self._not_settled, connection, in_order=False)

    async def _settle(self, connection: Connection, taken: Taken) -> None:
        ids = set(taken.ids)
        once = taken.only(ids) if len(ids) < len(taken.ids) else taken
        if taken.late:
            await self._write_late(connection, once)
        else:
            await connection.execute(statement(once.statement), once.parameters(self.clock.offset))
        self.counts.acknowledged += len(ids)
        self.unsettled -= len(taken.ids)

    def _not_settled(self, taken: Taken, error: Exception) -> None:
        """An acknowledged message cannot be removed: it becomes a dead letter, for an operator to look at."""
        self.health.isolate("settlement", error, message=taken.ids[0], consumer=taken.batch.consumer)
        self.unsettled -= 1
        self.health.guard("session", None, taken.refuse)
        self.set_aside(taken.ids[0], 1, f"acknowledged, and not removed: {told(error)}")

    # Returns.

    async def _write_returns(self, connection: Connection) -> Exception | None:
        if self._failures and not self._returning:
            failures, self._failures = self._failures, []
            self._returning.extend(_in_statements(failures))
            self.returns.take()
        if not self._returning:
            return None
        write = partial(self._return, connection)
        refused = await carry_out(self._returning, write, _halve_list, self._not_returned, connection)
        if not self._returning:
            self.returns.written()
        return refused

    async def _write_late(self, connection: Connection, taken: Taken) -> None:
        """Settle messages that other nodes may lease, claim or return at the same time, without waiting for a lock with
        rows locked."""
        while taken.ids:
            async with connection.transaction():
                mine, busy = await lock_late(connection, taken.ids, taken.times, self.clock.offset)
                if mine:
                    some = taken.only(mine)
                    await connection.execute(statement(some.statement), some.parameters(self.clock.offset))
            taken = taken.only(busy)
            if busy:
                await asyncio.sleep(GROWTH)

    async def _return(self, connection: Connection, failures: list[Failure]) -> None:
        parameters = return_arrays(failures) | {"node": self.node.id, "audited": False}
        cursor = await connection.execute(statement("return"), parameters)
        self.counts.returned += len(failures)
        for queue, low, ready, *_, dead in await cursor.fetchall():
            if ready:
                self.more_in_store(queue, low)
            if dead:
                self.more_dead(queue)

    def _not_returned(self, failures: list[Failure], error: Exception) -> None:
        [failure] = failures
        self.health.isolate("return", error, message=failure.id)
        self.set_aside(failure.id, failure.attempts, f"not returned to its queue: {told(error)}")

    def set_aside(self, id: int, attempts: int, error: str) -> None:
        """Make a leased message that cannot be settled a dead letter of its own queue."""
        self._buried[None].append(Failure(id, min(attempts, MOST_ATTEMPTS), error=error))
        self.hurry()

    # Dead letters.

    async def _write_buried(self, connection: Connection) -> Exception | None:
        if self._buried:
            buried, self._buried = self._buried, defaultdict(list)
            for target, failures in buried.items():
                self._burying.extend(Buried(target, some) for some in _in_statements(failures))
        if not self._burying:
            return None
        write = partial(self._bury, connection)
        return await carry_out(self._burying, write, _halve_buried, self._not_buried, connection, in_order=False)

    async def _bury(self, connection: Connection, buried: Buried) -> None:
        target, failures = buried
        parameters = failure_arrays(failures) | {"node": self.node.id, "audited": False}
        moved = 0
        if target is not None:
            cursor = await connection.execute(statement("bury_elsewhere"), parameters | {"target": target})
            if row := await cursor.fetchone():
                moved = row[1]
                self.more_in_store(target, row[0])
                if row[5]:
                    await self.max_length.keep(connection, target)
        if moved < len(failures):  # messages that the target refuses stay with their queue
            cursor = await connection.execute(statement("bury"), parameters)
            for queue, *_ in await cursor.fetchall():
                self.more_dead(queue)
        self.counts.buried += len(failures)

    def _not_buried(self, buried: Buried, error: Exception) -> None:
        [failure] = buried.failures
        self.health.isolate("dead letter", error, message=failure.id, target=buried.target)
        if buried.target is not None:  # otherwise it stays leased until this node ends
            self.set_aside(failure.id, failure.attempts, f"not moved to the dead-letter queue: {told(error)}")

    # Hand-backs and purges.

    async def _write_handed_back(self, connection: Connection) -> Exception | None:
        if self._handed_back:
            taken, self._handed_back = self._handed_back, []
            self._handing.append(taken)
        if not self._handing:
            return None
        write = partial(self._hand_back, connection)
        return await carry_out(self._handing, write, _halve_list, self._not_handed_back, connection)

    async def _hand_back(self, connection: Connection, taken: list[Handed]) -> None:
        parameters = {
            "node": self.node.id,
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

    def _not_handed_back(self, taken: list[Handed], error: Exception) -> None:
        [(id, _)] = taken
        self.health.isolate("hand-back", error, message=id)
        self.set_aside(id, 0, f"not handed back to its queue: {told(error)}")

    async def _write_purged(self, connection: Connection) -> None:
        if not self._purged:
            return
        purged, self._purged = self._purged, {}
        parts = deque((by, ids) for by, ids in purged.items())
        write = partial(self._purge, connection)
        await carry_out(parts, write, _halve_purged, self._not_purged, connection)
        for by, ids in parts:
            self.purge(ids, by)

    async def _purge(self, connection: Connection, purged: tuple[str, list[int]]) -> None:
        by, ids = purged
        parameters = {"ids": array(ids), "node": self.node.id, "outcome": PURGED, "by": by}
        await connection.execute(statement("remove"), parameters)

    def _not_purged(self, purged: tuple[str, list[int]], error: Exception) -> None:
        by, [id] = purged
        self.health.isolate("purge", error, message=id, by=by)
        self.set_aside(id, 0, f"not purged: {told(error)}")


def _in_statements(failures: list[Failure]) -> list[list[Failure]]:
    return [failures[start : start + ROWS_PER_STATEMENT] for start in range(0, len(failures), ROWS_PER_STATEMENT)]


def _halve_list(items: list[T], _: Exception) -> list[list[T]]:
    return halves(items)


def _halve_taken(taken: Taken, _: Exception) -> list[Taken]:
    return [taken.part(some) for some in halves(range(len(taken.ids)))]


def _halve_buried(buried: Buried, _: Exception) -> list[Buried]:
    return [Buried(buried.target, some) for some in halves(buried.failures)]


def _halve_purged(purged: tuple[str, list[int]], _: Exception) -> list[tuple[str, list[int]]]:
    return [(purged[0], some) for some in halves(purged[1])]
