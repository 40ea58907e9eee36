"""Audited queues: their settlements are written with rows in the queue's audit chain, in the same transaction.

Everything gathered for one queue is one part, and the chain tells of each message that was really there: those whose
ids follow each other share a row, so a segment that is settled as a whole is one.
Deliveries are made from memory and have no transaction: they are noted, and their rows come first in the next one.
When the connection is lost at the commit, the outcome is unknown: the hash of the last row, looked up afterwards,
tells whether the transaction was committed. While the chain is broken, nothing of the queue is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, count, groupby
from operator import itemgetter

from queues.database.sql_files import array
from queues.engine import audit
from queues.engine.audit import AuditRecord
from queues.engine.clock import now
from queues.engine.database import Connection
from queues.engine.driver import Answer
from queues.engine.errors import Later
from queues.engine.policies import QueuePolicy
from queues.engine.settle.batches import Part, SettlementKind, Settlements
from queues.engine.settle.lane import Lane, Owner
from queues.engine.settle.recipients import Recipients
from queues.engine.settle.segments import Ranges

#: Seconds until a queue with a broken audit chain is tried again.
BROKEN = 1.0
_numbers = count(1)


def queue_chain(name: str) -> str:
    """The chain of an audited queue."""
    return f"queue:{name}"


class KeyNames:
    """Names of API keys, which never change, read once."""

    def __init__(self) -> None:
        self._names: dict[int | None, str] = {None: ""}

    def of(self, key: int | None) -> str:
        """The name of a known key."""
        return self._names[key]

    async def learn(self, connection: Connection, keys: Iterable[int | None]) -> None:
        """Read the names of these keys; a deleted key has an empty name."""
        unknown = {key for key in keys if key not in self._names}
        if unknown:
            rows = await connection.rows("key_names", {"ids": array(unknown)})
            self._names |= dict.fromkeys(unknown, "") | dict(rows)

    def forget(self) -> None:
        """The store's history differs: an id may belong to another key."""
        self._names = {None: ""}


class AuditedQueue(Lane):
    """One audited queue as this node serves it."""

    in_order = True

    def __init__(self, owner: Owner, names: KeyNames, policy: QueuePolicy) -> None:
        super().__init__(owner)
        self.obey(policy)
        self._names = names
        self._deliveries = self.of(SettlementKind.DELIVER)
        self._again_at = 0.0
        #: The marks that `settling` gave out, for gathered settlements and for the part being written.
        self._mark = 0
        self._marks: list[int] = []
        self._record = AuditRecord()
        self._proof: audit.ChainPosition | None = None
        #: The open transaction, and the journal's rows that it takes once the chain is locked.
        self._transaction: audit.RecordedTransaction
        self._journal: Answer | None = None
        self._recipients = Recipients()

    def obey(self, policy: QueuePolicy) -> None:
        """Follow the policy, from the next transaction on. Once the queue is no longer audited, the rest is written
        without a record."""
        self.name = policy.name
        self._audited = policy.audited

    # Gathering.

    def delivered(self, ids: Sequence[int], first_ids: Sequence[int], consumer: int | None) -> None:
        """Messages were handed to a consumer."""
        self._deliveries.add_deliveries(first_ids, consumer)
        self._recipients.add(ids, consumer)

    def not_delivered(self, first_id: int) -> None:
        """Take back the record of the last delivery, which cannot be sent."""
        self._deliveries.remove_delivery(first_id)

    def not_seen(self, ids: Sequence[int]) -> None:
        """Messages go back that their consumer has not seen."""
        self._recipients.take(ids)

    def takes_run(self, settlements: Settlements, ids: range) -> bool:
        """A run has one consumer, that of the settlements."""
        return settlements.consumer is not None or self._recipients.together(ids, None)

    def gather(self, settlements: Settlements, ids: Sequence[int], work: int) -> Iterable[int | None]:
        super().gather(settlements, ids, work)
        if settlements.kind is SettlementKind.DELIVER:
            return ()
        had = self._recipients.take(ids)
        return had if settlements.consumer is None else ()

    @property
    def settling(self) -> int:
        """A mark for `Engine.settles`: everything of this queue until now is durable once the mark is. Other queues do
        not count, since only this queue's chain may be broken."""
        if not self._mark:
            self._mark = -next(_numbers)
            self._owner.begin_record(self._mark)
            self._owner.gather(self, 0, 0)
        return self._mark

    def forget_leases(self) -> None:
        super().forget_leases()
        self._recipients.clear()

    def forget_history(self) -> None:
        super().forget_history()
        self._proof = None

    @property
    def handing_back(self) -> bool:
        """Whether delivered messages are on their way back to their places."""
        return any(
            one.kind is SettlementKind.HAND_BACK for one in (*self._gathered, *chain.from_iterable(self.writing))
        )

    @property
    def idle(self) -> bool:
        return super().idle and not self._mark

    @property
    def waits(self) -> bool:
        """Whether the chain is broken, and the time for another try has not come."""
        return now() < self._again_at

    # Writing.

    def take(self) -> None:
        if not self.writing:
            super().take()
            self._marks, self._mark = [*self._marks, self._mark], 0

    def _parts(self, everything: Part) -> Iterator[Part]:
        if everything:
            acknowledge = SettlementKind.ACKNOWLEDGE
            yield [some for one in everything for some in (one.by_consumer if one.kind is acknowledge else (one,))]

    @contextlib.asynccontextmanager
    async def transaction(self, connection: Connection, part: Part) -> AsyncIterator[None]:
        """Append to the chain what was recorded. Raises Later when the chain is broken."""
        self._record, self.recording = AuditRecord(), self._audited
        if self.recording:
            await self._names.learn(connection, {key for one in part for key in one.keys})
        try:
            async with audit.transaction(connection) as self._transaction:
                self._journal = None
                yield
                if self.recording:
                    await self._append(connection)
        except audit.ChainBroken as error:
            raise Later(error.why) from error

    async def lock_chain(self, connection: Connection) -> None:
        if self.recording and self._journal is None:
            await self._transaction.lock(queue_chain(str(self.name)))
            self._journal = await self._take_journal(connection)

    async def _append(self, connection: Connection) -> None:
        """Append the journal's rows, which are earlier, and then the recorded ones."""
        await self.lock_chain(connection)
        cursor, events = self._journal, list[audit.AuditEvent]()
        while cursor is not None:
            taken = sorted(await cursor.fetchall())
            events += (audit.AuditEvent(*row[1:]) for row in taken)
            cursor = await self._take_journal(connection) if len(taken) == audit.MAX_ROWS else None
        record = AuditRecord(events)
        record.extend(self._record)
        self._proof = await self._transaction.append(queue_chain(str(self.name)), record)

    async def _take_journal(self, connection: Connection) -> Answer:
        return await connection.run("audit_take", {"chain": queue_chain(str(self.name)), "limit": audit.MAX_ROWS})

    def record(self, settlements: Settlements, first_ids: dict[int, int] | None = None, target: str = "") -> None:
        ids = settlements.ids
        consumers = settlements.consumers or [settlements.consumer] * len(ids)
        if first_ids is not None:
            there = [id in first_ids for id in ids]
            consumers = list(compress(consumers, there))
            ids = [first_ids[id] for id in compress(ids, there)]
        parts = chain(settlements.deliveries, ((run, consumer) for consumer, run in _runs(ids, consumers)))
        self._add(settlements.kind, parts, target)

    def record_slots(self, ranges: Ranges, missing: Collection[int]) -> None:
        found = zip(ranges.firsts, ranges.lows, ranges.highs, ranges.consumers, strict=True)
        parts = ((range(one + low, one + high + 1), key) for one, low, high, key in found if one not in missing)
        self._add(SettlementKind.ACKNOWLEDGE, parts)

    def _add(self, kind: SettlementKind, parts: Iterable[tuple[Sequence[int], int | None]], target: str = "") -> None:
        """Add rows for messages by their ids as published and the API keys of their consumers."""
        queue, add = str(self.name), self._record.add_messages
        for consumer, some in groupby(parts, itemgetter(1)):
            name, ids = self._names.of(consumer), [ids for ids, _ in some]
            events = {
                SettlementKind.DELIVER: ("deliver", queue, name), SettlementKind.ACKNOWLEDGE: ("settle", name, ""),
                SettlementKind.BURY: ("dead-letter", queue, target),
            }  # fmt: skip
            add(*events.get(kind, ("return", name, queue)), *ids)

    async def written_before(self, connection: Connection) -> Part | None:
        proof, self._proof = self._proof, None
        if proof is None or not self.writing:
            return None
        async with connection.transaction():
            committed = await audit.has(connection, queue_chain(str(self.name)), proof)
        return self.writing.popleft() if committed else None

    def committed(self) -> None:
        self._proof = None

    def end_round(self, refused: Exception | None) -> Exception | None:
        trouble = audit.trouble(queue_chain(str(self.name)))
        if isinstance(refused, Later):
            self._owner.health.begin(trouble, refused.detail)
            self._again_at = now() + BROKEN
            return None
        if refused is None:
            self._owner.health.end(trouble)
            self._owner.end_records(self._marks)
            self._marks = []
        return super().end_round(refused)


def _runs(ids: Sequence[int], consumers: Sequence[int | None]) -> Iterator[tuple[int | None, Sequence[int]]]:
    """The ids in runs of the same consumer."""
    if len(set(consumers)) == 1:
        yield consumers[0], ids
        return
    for consumer, some in groupby(zip(consumers, ids, strict=True), itemgetter(0)):
        yield consumer, [id for _, id in some]
