"""Writes settlements (acknowledgements, returns, dead letters, hand-backs, purges) to the store, in batches.

Prefetched queues call the methods of the first section; `run` writes, on a connection of its own, in rounds. A round
takes all that the lanes have gathered, one statement for many messages; acknowledgements grow for GROWTH seconds unless
`hurry` is called. Acknowledgements are committed asynchronously: only barrier replies wait, once more than
`most_unsettled` are pending. `round` is the number of the round that will write the settlements given now; it is
durable once `settled` has reached that number. A part that cannot be written is halved until the message to blame is
alone, which is set aside as a dead letter. An audited queue is a lane of its own (`audited_queues.py`): its settlements
are written in one transaction with their record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from queues.engine.clock import ServerClock, now, wait_for
from queues.engine.database import Connection
from queues.engine.faults import Fault, fault_of, told
from queues.engine.health import Health, Trouble
from queues.engine.isolation import StoreBackoff, carry_out, halves
from queues.engine.max_length import MaxLength
from queues.engine.message import Counts, Failure
from queues.engine.node import LocalNode
from queues.engine.policies import QueuePolicy
from queues.engine.settle.audited_queues import BROKEN, AuditedQueue, KeyNames
from queues.engine.settle.batches import (
    KEPT,
    Part,
    Returns,
    SettlementKind,
    Settlements,
    halve,
)
from queues.engine.settle.lane import Lane
from queues.engine.settle.part_writer import PartEffects, PartWriter

#: Seconds that a batch of acknowledgements may grow. Larger batches cost less per message. Late acknowledged messages
#: that another transaction has locked are left alone as long.
GROWTH = 0.01
#: The trouble in /readyz while the settlement writer cannot write.
SETTLING = Trouble("Acknowledgements are not written", "acknowledgements")

#: By kind: the unit that failed, and the reason in its dead letter.
FAILED = {
    SettlementKind.DELIVER: ("record", ""),
    SettlementKind.ACKNOWLEDGE: ("settlement", "acknowledged, and not removed"),
    SettlementKind.RETURN: ("return", "not returned to its queue"),
    SettlementKind.BURY: ("dead letter", "not moved to the dead-letter queue"),
    SettlementKind.HAND_BACK: ("hand-back", "not handed back to its queue"),
    SettlementKind.PURGE: ("purge", "not purged"),
}


class SettlementWriter:
    """The settlements of this node. `more_in_store(queue id, lowest id)` is called for messages that became ready,
    `due_in(seconds)` for delayed ones, `more_dead(queue id)` for dead letters, `on_progress()` after each round."""

    def __init__(
        self, node: LocalNode, clock: ServerClock, counts: Counts, health: Health, max_length: MaxLength,
        more_in_store: Callable[[int, int], None], due_in: Callable[[float], None], more_dead: Callable[[int], None],
        on_progress: Callable[[], None],
    ) -> None:  # fmt: skip
        self.counts = counts
        self.health = health
        self.max_length = max_length
        self._parts = PartWriter(node, clock)
        #: Segments whose messages this node has; the publish writer adds to them.
        self.segments = self._parts.segments
        #: Acknowledgements taken and not yet committed.
        self.unsettled = 0
        #: Their cost, in single acknowledgements.
        self.unwritten = 0
        self._more_in_store = more_in_store
        self._due_in = due_in
        self._more_dead = more_dead
        self._on_progress = on_progress
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._backoff = StoreBackoff()
        self._plain = Lane(self)
        self._purges = Lane(self)
        #: Audited queues by id; those with something to write.
        self._audited: dict[int, AuditedQueue] = {}
        self._recording: dict[Lane, None] = {}
        self._names = KeyNames()
        #: Marks of `AuditedQueue.settling` that are not durable yet.
        self.unrecorded: set[int] = set()
        #: The round that will write new settlements; the last durable round.
        self.round = 1
        self.settled = 0
        #: The last round whose hand-backs are in the store.
        self.handed_back = 0

    # Called by prefetched queues.

    def batch(self, policy: QueuePolicy, consumer: int | None, late: bool = False) -> Settlements:
        """The batch of acknowledgements of a queue with one API key. `late`: this node may have lost the leases."""
        return self._lane(policy).of(SettlementKind.ACKNOWLEDGE, consumer, KEPT[policy.retention], late=late)

    def job_batch(self, policy: QueuePolicy, late: bool = False, results: bool = False) -> Settlements:
        """The batch of finished jobs of a queue, those with `results` by themselves: only the others can be ranges of a
        segment. `late` as for `batch`."""
        keep = KEPT[policy.retention]
        return self._lane(policy).of(SettlementKind.ACKNOWLEDGE, None, keep, job=True, late=late, results=results)

    def audited(self, policy: QueuePolicy) -> AuditedQueue | None:
        """The lane of an audited queue; None unless it is audited."""
        queue = self._audited.get(policy.id)
        if queue is None and policy.audited:
            queue = self._audited[policy.id] = AuditedQueue(self, self._names, policy)
        if queue is not None:
            queue.obey(policy)
        return queue if policy.audited else None

    def _lane(self, policy: QueuePolicy) -> Lane:
        return self.audited(policy) or self._plain

    @property
    def returns(self) -> Returns:
        """Returns of queues that are not audited."""
        return self._plain.returns

    def give_back(self, failure: Failure, audited: AuditedQueue | None = None) -> None:
        """Return a delivery to the tail of its queue."""
        (audited or self._plain).of(SettlementKind.RETURN).add_failure(failure)
        self.hurry()

    def bury(self, policy: QueuePolicy, failure: Failure) -> None:
        """Make a delivery a dead letter."""
        self._lane(policy).of(SettlementKind.BURY, target=policy.dead_letter_queue_id).add_failure(failure)
        self.hurry()

    def hand_back(
        self, taken: Iterable[tuple[int, int | None]], audited: AuditedQueue | None = None, attempts: Sequence[int] = ()
    ) -> None:
        """Make messages (id, tag to keep) ready again in their places; `audited` is their queue if they were
        delivered. `attempts`, if these deliveries count."""
        if columns := list(zip(*taken, strict=True)):
            ids, tags = columns
            (audited or self._plain).of(SettlementKind.HAND_BACK).add_ids(ids, tags, attempts)
        self.hurry()

    def set_aside(self, id: int, attempts: int, error: str) -> None:
        """Make a leased message that cannot be settled a dead letter of its own queue."""
        self._plain.of(SettlementKind.BURY).add_failure(Failure(id, attempts, error=error))
        self.hurry()

    def purge(self, ids: list[int], by: str) -> None:
        """Remove messages that an operator purged: those that are leased to this node, or ready again."""
        if ids:
            self._purges.of(SettlementKind.PURGE, by=by).add_ids(ids)
            self.hurry()

    def settles(self, round: int) -> bool:
        """Whether something settled in this round, or before this mark of an audited queue, is still under way."""
        return round in self.unrecorded if round < 0 else round > self.settled

    def hurry(self) -> None:
        """Write at once."""
        self._wake.set()
        self._urgent.set()

    # Called by lanes.

    def gather(self, lane: Lane, acks: int, work: int) -> None:
        """Note that a lane has something to write: `acks` more acknowledgements, which cost as much as `work` single
        ones."""
        self.unsettled += acks
        self.unwritten += work
        if lane is not self._plain and lane is not self._purges:
            self._recording[lane] = None
        self._wake.set()

    def give_up(self, acks: int, work: int) -> None:
        """Count acknowledgements as unwritten."""
        self.unsettled -= acks
        self.unwritten -= work

    def refuse(self, told: Iterable[Callable[[], None]]) -> None:
        """Report to sessions that settlements do not reach the store."""
        for refuse in told:
            self.health.guard("session", None, refuse)

    def begin_record(self, mark: int) -> None:
        """`Engine.settles` waits for this mark of an audited queue."""
        self.unrecorded.add(mark)

    def end_records(self, marks: Iterable[int]) -> None:
        """Note that everything before these marks is durable."""
        self.unrecorded.difference_update(marks)

    # Life.

    @property
    def idle(self) -> bool:
        return self._rests and not self._recording

    @property
    def _rests(self) -> bool:
        """Whether there is nothing to write now. An audited queue with a broken chain does not count."""
        return self._plain.idle and self._purges.idle and all(lane.waits for lane in self._recording)

    @property
    def _lanes(self) -> tuple[Lane, ...]:
        return self._plain, *self._audited.values(), self._purges

    def forget_leases(self) -> None:
        """The leases were lost: the node that reaps them returns the messages, and every acknowledgement is late."""
        self.segments.clear()
        for lane in self._lanes:
            lane.forget_leases()

    def forget_history(self) -> None:
        """The store's history differs: gathered ids may belong to other messages now."""
        for lane in self._lanes:
            lane.forget_history()
        self._names.forget()

    # Writing.

    async def run(self, connection: Connection) -> None:
        """Write for ever. Raises when the connection is lost, and may be run again with another. An interrupted part is
        written again, because deleting twice is harmless."""
        while True:
            await self._backoff.after(await self.write(connection), self.health, SETTLING)
            if self._rests:
                self._wake.clear()
                await wait_for(self._wake, self._rest)
            await wait_for(self._urgent, GROWTH)
            self._urgent.clear()

    @property
    def _rest(self) -> float | None:
        """Seconds after which there is something to do, if nothing is gathered: a broken chain is tried again, and
        segments that stay settled in part are unpacked."""
        rests = (BROKEN if self._recording else None, self.segments.lingering_in(now()))
        return min((rest for rest in rests if rest is not None), default=None)

    async def write(self, connection: Connection) -> Exception | None:
        """One round: write everything gathered, each lane even if others fail, purges after the records of earlier
        deliveries; returns the error by which the server refuses the rest for now."""
        round, self.round = self.round, self.round + 1
        refused = await self._write_lane(connection, self._plain)
        if not self._plain.releasing:
            self.handed_back = round
        for lane in (*self._recording, self._purges):
            if not (lane.waits or lane.idle):
                self._on_progress()  # replies do not wait for other lanes, while deliveries come due
                refused = await self._write_lane(connection, lane) or refused
            if lane.idle:
                self._recording.pop(lane, None)
        if refused is None:
            self._confirm(round)
            refused = await self._unpack_lingering(connection)
        self._on_progress()
        return refused

    def _confirm(self, round: int) -> None:
        """This round is durable. Settlements given during the round may have been written with it: when nothing is
        left, no other round would confirm them, so the next round is confirmed too."""
        if self._rests:
            round, self.round = self.round, self.round + 1
            self.handed_back = round
        self.settled = round

    async def _write_lane(self, connection: Connection, lane: Lane) -> Exception | None:
        if (part := await lane.written_before(connection)) is not None:
            self._committed(lane, part, PartEffects())
        lane.take()
        write = partial(self._write_part, connection, lane)
        refuse = partial(self._not_written, lane)
        return lane.end_round(
            await carry_out(lane.writing, write, self._halve, refuse, connection, in_order=lane.in_order)
        )

    def _halve(self, part: Part, error: Exception) -> list[Part]:
        before, parts = _work(part), halve(part, error)
        if parts:  # runs are taken apart, which is more work
            self.unwritten += sum(map(_work, parts)) - before
        return parts

    async def _write_part(self, connection: Connection, lane: Lane, part: Part) -> None:
        effects = await self._parts.write(connection, lane, part)
        try:
            self._committed(lane, part, effects)
        except Exception as error:  # durable, and must not be repeated
            if fault_of(error, connection) is Fault.LOST:
                raise
            self.health.isolate("record", error, queue=lane.name)
        for queue in effects.overfull:
            await self.max_length.keep(connection, queue)
        if effects.busy:
            lane.put_off(effects.busy)
            await asyncio.sleep(GROWTH)

    async def _unpack_lingering(self, connection: Connection) -> Exception | None:
        """Unpack segments that stay settled in part, so that the archive has what is settled of them; returns the error
        by which the server refuses that for now."""
        if not (firsts := self.segments.lingering(now())):
            return None

        def stay(some: list[int], error: Exception) -> None:
            self.health.isolate("segment", error, first=some[0])
            self.segments.stay(some[0])

        write = partial(self._parts.unpack, connection)
        return await carry_out(deque([firsts]), write, halves, stay, connection)

    def _committed(self, lane: Lane, part: Part, effects: PartEffects) -> None:
        lane.committed()
        done = {kind: sum(one.count for one in part if one.kind is kind) for kind in FAILED}
        busy = sum(len(one.ids) for one in effects.busy)
        settled = done[SettlementKind.ACKNOWLEDGE] - busy
        self.give_up(settled, _work(part) - busy)
        self.counts.acknowledged += settled
        self.counts.returned += done[SettlementKind.RETURN]
        self.counts.buried += done[SettlementKind.BURY]
        self.counts.purged += done[SettlementKind.PURGE]
        for queue, low in effects.ready:
            self._more_in_store(queue, low)
        for delay in {delay for one in part for delay in one.delays if delay > 0}:
            self._due_in(delay)
        for queue in effects.dead:
            self._more_dead(queue)

    def _not_written(self, lane: Lane, part: Part, error: Exception) -> None:
        """A single settlement that cannot be written: its message becomes a dead letter, for an operator to look at,
        without a record if need be."""
        if not part:
            return
        [one] = part
        [id] = one.ids
        unit, why = FAILED[one.kind]
        self.health.isolate(unit, error, message=id, queue=lane.name, consumer=one.consumer, target=one.target)
        if one.kind is SettlementKind.ACKNOWLEDGE:
            self.give_up(1, 1)
            self.refuse(one.told)
        buried = one.kind is SettlementKind.BURY and one.target is None and lane is self._plain
        if one.kind is not SettlementKind.DELIVER and not buried:  # they stay leased until this node ends
            counted = one.attempts[0] if one.attempts else None
            attempts = int(one.kind is SettlementKind.ACKNOWLEDGE) if counted is None else counted
            self.set_aside(id, attempts, f"{why}: {told(error)}")


def _work(part: Part) -> int:
    return sum(one.work for one in part if one.kind is SettlementKind.ACKNOWLEDGE)
