"""Settlements of audited queues, each written together with its record in the queue's audit chain.

Everything gathered for one queue is one transaction: messages are settled, returned and buried, and a row for each
message that was really there is appended to the chain. Deliveries are made from memory and have no transaction: they
are noted here, and their rows come first in the queue's next transaction. A local queue adds (`delivered`, `give_back`,
`bury`, `hand_back`, and acknowledgements by `AuditedBatch`); the settlement writer calls `write` in each of its rounds.

When the connection is lost at the commit, the outcome is unknown: the hash of the last row, looked up afterwards, tells
whether the transaction was committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from queues.engine import audit
from queues.engine.audit import Event
from queues.engine.clock import ServerClock, now
from queues.engine.database import Connection
from queues.engine.errors import Later
from queues.engine.faults import Fault, fault_of, told
from queues.engine.health import Health
from queues.engine.isolation import carry_out, halves
from queues.engine.max_length import MaxLength
from queues.engine.message import ROWS_PER_STATEMENT, Counts, Detail, Failure
from queues.engine.node import Node
from queues.engine.policies import QueuePolicy
from queues.engine.settle.batches import (
    BatchOwner,
    Completion,
    JobBatch,
    Returns,
    failure_arrays,
    lock_late,
    return_arrays,
    time_array,
)
from queues.engine.statements import array, statement

#: Seconds until a queue whose audit chain cannot be appended to is tried again.
BROKEN = 1.0
#: Seconds until a message acknowledged late, which another transaction has locked, is tried again.
BUSY = 0.01
_numbers = count(1)


def queue_chain(name: str) -> str:
    """The chain of an audited queue."""
    return f"queue:{name}"


class KeyNames:
    """Names of API keys, which never change, read once."""

    def __init__(self) -> None:
        self._names: dict[int | None, str] = {None: ""}

    def __getitem__(self, key: int | None) -> str:
        return self._names[key]

    async def learn(self, connection: Connection, keys: Iterable[int | None]) -> None:
        """Read the names of these keys; a deleted key has an empty name."""
        unknown = {key for key in keys if key not in self._names}
        if unknown:
            cursor = await connection.execute(statement("key_names"), {"ids": array(unknown)})
            self._names |= dict.fromkeys(unknown, "") | dict(await cursor.fetchall())


class Ack(NamedTuple):
    """An acknowledged message: its id, when it was delivered (monotonic), and to which API key; `late`: this node may
    no longer have the lease."""

    id: int
    delivered: float
    consumer: int | None
    retention: str
    job: bool
    result: bytes | None
    late: bool = False
    completion: Completion | None = None

    def refuse(self) -> None:
        """The message cannot be settled."""
        if self.completion is not None:
            self.completion.refuse_some([self.id])


class Return(NamedTuple):
    """A delivery that failed, and the API key that it was made to."""

    failure: Failure
    consumer: int | None


@dataclass(slots=True)
class Work:
    """The contents of one transaction."""

    #: First id of each message, and the API key that it was delivered to.
    deliveries: list[tuple[int, int | None]] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    #: Dead letters, by their target queue.
    buried: dict[int | None, list[Failure]] = field(default_factory=dict)
    #: Id, tag to keep, and the API key that it was delivered to.
    handed_back: list[tuple[int, int | None, int | None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.deliveries or self.acks or self.returns or self.buried or self.handed_back)

    @property
    def consumers(self) -> Iterator[int | None]:
        """Every API key in the work."""
        yield from (consumer for _, consumer in self.deliveries)
        yield from (ack.consumer for ack in self.acks)
        yield from (one.consumer for one in self.returns)
        yield from (consumer for _, _, consumer in self.handed_back)

    @property
    def failures(self) -> Iterator[Failure]:
        """Every return and every dead letter."""
        yield from (one.failure for one in self.returns)
        for failures in self.buried.values():
            yield from failures

    @property
    def items(self) -> list[tuple[str, Any]]:
        """The single items with their kinds; a dead letter comes with its target."""
        found: list[tuple[str, Any]] = []
        for kind in ("deliveries", "acks", "returns"):
            found += [(kind, one) for one in getattr(self, kind)]
        found += [("buried", (target, one)) for target, failures in self.buried.items() for one in failures]
        return found + [("handed_back", one) for one in self.handed_back]

    @classmethod
    def of(cls, items: Iterable[tuple[str, Any]]) -> Work:
        """Work with these items."""
        work = cls()
        for kind, one in items:
            if kind == "buried":
                work.buried.setdefault(one[0], []).append(one[1])
            else:
                getattr(work, kind).append(one)
        return work

    def hand_back(self, taken: Iterable[tuple[int, int | None, int | None]]) -> None:
        """Make delivered messages ready again in their places: id, tag to keep, API key that had it."""
        self.handed_back += taken

    def forget_leases(self) -> None:
        """Keep only acknowledgements, as late ones: they hold without the leases."""
        self.acks = [ack._replace(late=True) for ack in self.acks]
        self.returns, self.buried, self.handed_back = [], {}, []


@dataclass(slots=True)
class Outcome:
    """The effects of a transaction, published once it is committed."""

    #: Late acknowledgements of messages that another transaction has locked.
    busy: list[Ack] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    #: Queues and the lowest id that became ready there; queues that dead letters came to.
    ready: list[tuple[int, int]] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    #: Queues that may hold more than they should now.
    overfull: list[int] = field(default_factory=list)

    def record(self, events: Iterable[Event]) -> None:
        """Rows of the audit chain."""
        self.events += events

    def postpone(self, acks: list[Ack]) -> None:
        """Late acknowledgements to try again, since another transaction has locked their messages."""
        self.busy = acks


class Settlements(Protocol):
    """The settlement writer, as audited queues use it."""

    node: Node
    clock: ServerClock
    counts: Counts
    health: Health
    max_length: MaxLength

    @property
    def more_in_store(self) -> Callable[[int, int], None]:
        """Told the queue and the lowest id of messages that became ready."""

    @property
    def more_dead(self) -> Callable[[int], None]:
        """Told the queue that dead letters came to."""

    def record(self, queue: AuditedQueue, acks: int = 0) -> None:
        """An audited queue has something to write, so many acknowledgements more among it."""

    def note_settled(self, count: int) -> None:
        """So many acknowledgements are durable, or given up."""

    def begin_record(self, mark: int) -> None:
        """`Engine.settles` waits for this mark."""

    def end_records(self, marks: Iterable[int]) -> None:
        """Everything before these marks is durable."""

    def set_aside(self, id: int, attempts: int, error: str) -> None:
        """Make a leased message that cannot be settled a dead letter of its own queue."""

    def refuse(self, failures: Iterable[Failure]) -> None:
        """Tell the sessions that wait for these failures that they are not stored."""


class AuditedQueue:
    """One audited queue as this node serves it."""

    def __init__(self, settlements: Settlements, policy: QueuePolicy) -> None:
        self._settlements = settlements
        self.obey(policy)
        self._work = Work()
        #: The parts being written: one, unless an item cannot be written.
        self._writing: deque[Work] = deque()
        self.returns = Returns()
        self._again_at = 0.0
        #: The marks that `settling` gave for gathered work, and for the parts being written.
        self._mark = 0
        self._marks: list[int] = []
        self._proof: audit.Place | None = None
        #: The API key that each outstanding message was delivered to, by its id.
        self._consumers: dict[int, int | None] = {}

    def obey(self, policy: QueuePolicy) -> None:
        """Follow the policy. Once the queue is no longer audited, the rest is written without a record."""
        self.name = policy.name
        self.recording = policy.audited

    # Called by local queues.

    def delivered(self, id: int, detail: Detail | None, consumer: int | None) -> None:
        """A message was handed to a consumer."""
        self._work.deliveries.append((_first_id(id, detail), consumer))
        self._consumers[id] = consumer
        self._settlements.record(self)

    def not_delivered(self, id: int, detail: Detail | None) -> None:
        """The message that was handed out a moment ago cannot be sent."""
        first, deliveries = _first_id(id, detail), self._work.deliveries
        for n in reversed(range(len(deliveries))):
            if deliveries[n][0] == first:
                del deliveries[n]
                break

    def acknowledge(self, ack: Ack) -> None:
        """A message is acknowledged. An acknowledgement without a consumer is by the API key that it was delivered
        to."""
        had = self._consumers.pop(ack.id, None)
        self._work.acks.append(ack if ack.consumer is not None else ack._replace(consumer=had))
        self._settlements.record(self, acks=1)

    def give_back(self, failure: Failure) -> None:
        self._work.returns.append(Return(failure, self._consumers.pop(failure.id, None)))
        self.returns.add()
        self._settlements.record(self)

    def bury(self, target: int | None, failure: Failure) -> None:
        self._consumers.pop(failure.id, None)
        self._work.buried.setdefault(target, []).append(failure)
        self._settlements.record(self)

    def hand_back(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Make delivered messages (id, tag to keep) ready again in their places."""
        self._work.hand_back((id, tag, self._consumers.pop(id, None)) for id, tag in taken)
        self._settlements.record(self)

    def forget_leases(self) -> None:
        """The leases were lost: the node that reaps them returns the messages."""
        for work in (self._work, *self._writing):
            self._settlements.refuse(work.failures)
            work.forget_leases()
        self.returns.forget()
        self._consumers.clear()

    def forget_history(self) -> None:
        """The store has another past: the ids gathered may belong to other messages now."""
        lost = [ack for work in (self._work, *self._writing) for ack in work.acks]
        self._settlements.note_settled(len(lost))
        for ack in lost:
            self._settlements.health.guard("session", None, ack.refuse)
        self._work, self._proof = Work(), None
        self._writing.clear()

    @property
    def idle(self) -> bool:
        return not (self._work or self._writing or self._mark)

    @property
    def waits(self) -> bool:
        """Whether the chain is broken, and the time for another try has not come."""
        return now() < self._again_at

    @property
    def settling(self) -> int:
        """A mark for `Engine.settles`: everything of this queue until now is durable once the mark is. Other queues do
        not count, since only this queue's chain may be broken."""
        if not self._mark:
            self._mark = -next(_numbers)
            self._settlements.begin_record(self._mark)
            self._settlements.record(self)
        return self._mark

    # Called by the settlement writer.

    async def write(self, connection: Connection, names: KeyNames) -> Exception | None:
        """Write gathered work in one transaction, or in several when an item cannot be written; nothing while the chain
        is broken. Returns the error by which the server refuses the rest for now."""
        if self._proof is not None and self._writing and await self._was_committed(connection, self._proof):
            self._finish(self._writing.popleft(), Outcome())
        self._proof = None
        if not self._writing:
            if self._work:
                self._writing.append(self._work)
            self._work = Work()
            self.returns.take()
            self._marks, self._mark = [*self._marks, self._mark], 0
        write = partial(self._write_part, connection, names)
        refused = await carry_out(self._writing, write, _take_apart, self._set_aside, connection)
        trouble = audit.trouble(queue_chain(self.name))
        if isinstance(refused, Later):
            self._settlements.health.begin(trouble, refused.detail)
            self._again_at = now() + BROKEN
            return None
        if refused is None:
            self._settlements.health.end(trouble)
            self._settlements.end_records(self._marks)
            self._marks = []
            self.returns.written()
        return refused

    async def _write_part(self, connection: Connection, names: KeyNames, work: Work) -> None:
        outcome = Outcome()
        if self.recording:
            with contextlib.suppress(audit.AuditError):  # if this chain is broken, `append` raises below
                await audit.seal(connection)  # events in the journal came earlier
            await names.learn(connection, work.consumers)
        try:
            async with connection.transaction():
                await self._write(connection, work, outcome, names)
                if self.recording:
                    self._proof = await audit.append(connection, queue_chain(self.name), outcome.events)
        except audit.ChainBroken as error:
            raise Later(error.why) from error
        try:
            self._finish(work, outcome)
        except Exception as error:  # the work is durable and must not be repeated
            if fault_of(error, connection) is Fault.LOST:
                raise
            self._settlements.health.isolate("record", error, queue=self.name)
        for queue in outcome.overfull:
            await self._settlements.max_length.keep(connection, queue)
        if outcome.busy:
            self._writing[0] = Work(acks=outcome.busy)
            await asyncio.sleep(BUSY)

    def _set_aside(self, work: Work, error: Exception) -> None:
        """A single item that cannot be written: its message becomes a dead letter, without a record if need be."""
        settlements = self._settlements
        [(kind, one)] = work.items
        ids = {"returns": lambda: one.failure.id, "buried": lambda: one[1].id}
        id = ids.get(kind, lambda: one[0])()
        settlements.health.isolate("record", error, queue=self.name, kind=kind, message=id)
        settlements.note_settled(len(work.acks))
        for ack in work.acks:
            settlements.health.guard("session", None, ack.refuse)
        if kind != "deliveries":
            settlements.set_aside(id, 1, f"not written: {told(error)}")

    async def _was_committed(self, connection: Connection, proof: audit.Place) -> bool:
        """Whether the transaction that was under way when the connection was lost has been committed."""
        async with connection.transaction():
            return await audit.has(connection, queue_chain(self.name), proof)

    def _finish(self, work: Work, outcome: Outcome) -> None:
        settlements, settled = self._settlements, len(work.acks) - len(outcome.busy)
        self._proof = None
        settlements.note_settled(settled)
        settlements.counts.acknowledged += settled
        settlements.counts.returned += len(work.returns)
        settlements.counts.buried += sum(map(len, work.buried.values()))
        for queue, low in outcome.ready:
            settlements.more_in_store(queue, low)
        for queue in outcome.dead:
            settlements.more_dead(queue)

    async def _write(self, connection: Connection, work: Work, outcome: Outcome, names: KeyNames) -> None:
        if self.recording:
            outcome.record(
                Event("deliver", str(first), self.name, names[consumer]) for first, consumer in work.deliveries
            )
        current = [ack for ack in work.acks if not ack.late]
        if current:
            await self._settle(connection, current, outcome, names)
        if len(current) < len(work.acks):
            await self._settle_late(connection, [ack for ack in work.acks if ack.late], outcome, names)
        for start in range(0, len(work.returns), ROWS_PER_STATEMENT):
            await self._return(connection, work.returns[start : start + ROWS_PER_STATEMENT], outcome, names)
        for target, failures in work.buried.items():
            for start in range(0, len(failures), ROWS_PER_STATEMENT):
                await self._bury(connection, target, failures[start : start + ROWS_PER_STATEMENT], outcome)
        if work.handed_back:
            await self._hand_back(connection, work.handed_back, outcome, names)

    async def _settle_late(self, connection: Connection, acks: list[Ack], outcome: Outcome, names: KeyNames) -> None:
        """Settle messages that other nodes may lease, claim or return at the same time, without waiting for locks."""
        ids, times = [ack.id for ack in acks], [ack.delivered for ack in acks]
        mine, busy = await lock_late(connection, ids, times, self._settlements.clock.offset)
        if mine:
            await self._settle(connection, [ack for ack in acks if ack.id in mine], outcome, names)
        outcome.postpone([ack for ack in acks if ack.id in busy])

    async def _settle(self, connection: Connection, acks: list[Ack], outcome: Outcome, names: KeyNames) -> None:
        once = {ack.id: ack for ack in acks}  # acknowledged late, and again after another delivery
        parameters = {
            "ids": array(once),
            "delivered": time_array([ack.delivered for ack in once.values()], self._settlements.clock.offset),
            "consumers": [ack.consumer for ack in once.values()],
            "jobs": [ack.job for ack in once.values()],
            "results": [ack.result for ack in once.values()],
            "kept": [ack.retention != "none" for ack in once.values()],
            "whole": [ack.retention == "full" for ack in once.values()],
        }
        cursor = await connection.execute(statement("settle_audited"), parameters)
        gone: dict[int, int] = dict(await cursor.fetchall())
        outcome.record(
            Event("settle", str(gone[id]), self._name_of(ack.consumer, names), "")
            for id, ack in once.items() if id in gone
        )  # fmt: skip

    async def _return(
        self, connection: Connection, returns: Sequence[Return], outcome: Outcome, names: KeyNames
    ) -> None:
        parameters = return_arrays([one.failure for one in returns])
        parameters |= {"node": self._settlements.node.id, "audited": True}
        cursor = await connection.execute(statement("return"), parameters)
        for queue, low, ready, _, ids, first_ids, dead in await cursor.fetchall():
            if ready:
                outcome.ready.append((queue, low))
            if dead:
                outcome.dead.append(queue)
            gone = dict(zip(ids, first_ids, strict=True))
            self._returned(((failure.id, consumer) for failure, consumer in returns), gone, outcome, names)

    async def _bury(
        self, connection: Connection, target: int | None, failures: Sequence[Failure], outcome: Outcome
    ) -> None:
        parameters = failure_arrays(failures) | {"node": self._settlements.node.id, "audited": True, "target": target}
        rows: list[tuple[str, list[int], list[int]]] = []
        if target is not None:
            cursor = await connection.execute(statement("bury_elsewhere"), parameters)
            if (row := await cursor.fetchone()) is not None:
                outcome.ready.append((target, row[0]))
                rows.append((row[2], row[3], row[4]))
                if row[5]:
                    outcome.overfull.append(target)
        if not rows or len(rows[0][1]) < len(failures):  # messages that the target refuses stay with this queue
            cursor = await connection.execute(statement("bury"), parameters)
            for queue, ids, first_ids in await cursor.fetchall():
                outcome.dead.append(queue)
                rows.append(("", ids, first_ids))
        for name, ids, first_ids in rows:
            gone = dict(zip(ids, first_ids, strict=True))
            outcome.record(
                Event("dead-letter", str(gone[one.id]), self.name, name) for one in failures if one.id in gone
            )

    async def _hand_back(
        self, connection: Connection, taken: Sequence[tuple[int, int | None, int | None]], outcome: Outcome,
        names: KeyNames,
    ) -> None:  # fmt: skip
        parameters = {
            "node": self._settlements.node.id,
            "ids": array(id for id, _, _ in taken),
            "tags": [tag for _, tag, _ in taken],
            "audited": True,
        }
        cursor = await connection.execute(statement("hand_back"), parameters)
        for queue, low, dead, ids, first_ids in await cursor.fetchall():
            if dead:
                outcome.dead.append(queue)
            else:
                outcome.ready.append((queue, low))
            gone = dict(zip(ids, first_ids, strict=True))
            self._returned(((id, consumer) for id, _, consumer in taken), gone, outcome, names)

    def _returned(
        self, deliveries: Iterable[tuple[int, int | None]], gone: dict[int, int], outcome: Outcome, names: KeyNames
    ) -> None:
        """Record the deliveries that went back."""
        outcome.record(
            Event("return", str(gone[id]), self._name_of(consumer, names), self.name)
            for id, consumer in deliveries if id in gone
        )  # fmt: skip

    def _name_of(self, consumer: int | None, names: KeyNames) -> str:
        return names[consumer] if self.recording else ""


class AuditedBatch(JobBatch):
    """Acknowledgements of an audited queue, gathered with the queue's other work."""

    __slots__ = ("_queue",)

    def __init__(
        self, owner: BatchOwner, retention: str, consumer: int | None, queue: AuditedQueue, late: bool = False
    ) -> None:
        super().__init__(owner, retention, consumer, late)
        self._queue = queue

    def add_many(self, ids: list[int], delivered: list[float]) -> None:
        for id, time in zip(ids, delivered, strict=True):
            self._queue.acknowledge(Ack(id, time, self.consumer, self.retention, False, None, self.late))

    def add_job(
        self, id: int, delivered: float, result: bytes | None, completion: Completion | None = None
    ) -> None:
        self._queue.acknowledge(Ack(id, delivered, self.consumer, self.retention, True, result, self.late, completion))

    def add_jobs(self, ids: list[int], delivered: list[float], completion: Completion | None = None) -> None:
        for id, time in zip(ids, delivered, strict=True):
            self.add_job(id, time, None, completion)


def _take_apart(work: Work, _: Exception) -> list[Work]:
    return [Work.of(some) for some in halves(work.items)]


def _first_id(id: int, detail: Detail | None) -> int:
    return id if detail is None or detail.origin is None else detail.origin
