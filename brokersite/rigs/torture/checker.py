"""The verdict on a run, from the records of clients, faults and the final store. No I/O.

What must hold, for each queue:

- nothing is lost: a message that was confirmed, or delivered, was acknowledged or is in the store; a
  topic's message is in all of its queues or in none;
- nothing unexpected: every body was published, and to this queue;
- a message is given out again only when something explains it: it was returned, or a fault came between; all faults
  together explain at most so many repetitions as may have been in flight;
- one producer's messages come in order on each connection, but those that had waited when a fault came, and those
  that another listener may have held for consumers that went away; their order is that of the producer's connection,
  and over its connections that of messages which were confirmed before the next one was sent;
- a message is in one place at the end, in one state, and nothing but dead letters waits; dead letters were returned;
- the archive has what was acknowledged, once, and the counts are those of the rows;
- an audited queue's chain follows from its hashes; it tells of each message that there was one publish, first of all,
  of each in the archive one settlement, last of all, and as many dead letters as there are. Deliveries may lack a row
  after a fault, or have it late.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from brokersite.rigs.torture.history import (
    Delivery,
    InjectedFault,
    InjectedFaultKind,
    MessageId,
    Publish,
    QueueRules,
    RunHistory,
    Store,
    StoredMessage,
    StoredState,
)
from queues.engine.api import COLD_SHARED

SHOWN = 8
DEAD = (StoredState.DEAD, StoredState.DEAD_LEASED)


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that was broken: which, where, and for which messages."""

    name: str
    queue: str
    messages: tuple[str, ...]
    detail: str = ""

    def __str__(self) -> str:
        shown = ", ".join(self.messages[:SHOWN]) + (", …" if len(self.messages) > SHOWN else "")
        where = f"{self.name} in {self.queue}" if self.queue else self.name
        counted = f"{len(self.messages)} ({shown})" if self.messages else ""
        return ": ".join(part for part in (where, counted, self.detail) if part)


def check(history: RunHistory, store: Store, rules: Sequence[QueueRules], in_flight: int) -> list[BrokenPromise]:
    """Everything that is wrong; nothing when all promises were kept.

    `in_flight` is how many messages of a queue one fault may cause to be given out again.
    """
    found = [BrokenPromise("trouble", "", (), trouble) for trouble in history.troubles]
    publishes = {publish.message: publish for publish in history.publishes}
    known = {rule.name for rule in rules}
    used = {delivery.queue for delivery in history.deliveries} | {stored.queue for stored in store.messages}
    found.extend(BrokenPromise("unknown queue", name, ()) for name in sorted(used - known))
    for rule in rules:
        found += QueueCheck(history, store, rule, publishes, in_flight).violations()
    return found


class QueueCheck:
    """The checks of one queue."""

    def __init__(
        self, history: RunHistory, store: Store, rules: QueueRules, publishes: dict[MessageId, Publish], in_flight: int
    ) -> None:
        self.rules = rules
        self.history = history
        self.publishes = publishes
        self.in_flight = in_flight
        self.faults = [fault for fault in history.faults if fault.kind.loses_leases]
        self._of_database = [fault for fault in self.faults if fault.kind.is_of_database]
        self.deliveries: dict[MessageId, list[Delivery]] = {}
        for delivery in history.deliveries:
            if delivery.queue == rules.name:
                self.deliveries.setdefault(delivery.message, []).append(delivery)
        for group in self.deliveries.values():
            group.sort(key=lambda delivery: delivery.at)
        self.stored = [stored for stored in store.messages if stored.queue == rules.name]
        self.archive = [archived for archived in store.archive if archived.queue == rules.name]
        self.counts = store.counts.get(rules.name)
        self.unproven = rules.name in store.unproven
        self.record: dict[int, list[str]] = {}
        for recorded in store.record:
            if recorded.queue == rules.name:
                self.record.setdefault(recorded.first_id, []).append(recorded.event)
        #: Whether several listeners have delivered its messages.
        self.shared = (
            len({delivery.connection.listener for group in self.deliveries.values() for delivery in group}) > 1
        )
        self.in_store = {stored.message for stored in self.stored}
        #: Proof that a message was committed, whether or not its producer knows: it came out, or is in, somewhere.
        self.seen_anywhere = {delivery.message for delivery in history.deliveries} | {
            stored.message for stored in store.messages
        }
        self.acked = {
            message for message, group in self.deliveries.items() if any(delivery.acked for delivery in group)
        }

    def violations(self) -> list[BrokenPromise]:
        """All of this queue's."""
        found = [
            self._named("lost", self._lost()),
            self._named("unexpected", self._unexpected()),
            self._named("given out again without a cause", self._unexplained()),
            self._too_many_repetitions(),
            self._named("out of order", self._out_of_order()),
            self._named("in two places", self._in_two_places()),
            self._named("left undelivered", self._undelivered()),
            self._named("dead without a cause", self._dead_without_cause()),
            *self._archive_violations(),
            self._wrong_counts(),
            *(self._record_violations() if self.rules.audited else ()),
        ]
        return [violation for violation in found if violation is not None]

    def _named(self, name: str, messages: Iterable[object]) -> BrokenPromise | None:
        texts = tuple(str(message) for message in messages)
        return BrokenPromise(name, self.rules.name, texts) if texts else None

    def _is_ours(self, message: MessageId) -> bool:
        return message.producer in self.rules.producers

    # Messages.

    def _lost(self) -> Iterator[MessageId]:
        for message, publish in self.publishes.items():
            durable = publish.confirmed is not None or message in self.seen_anywhere
            if durable and self._is_ours(message) and message not in self.acked and message not in self.in_store:
                yield message

    def _unexpected(self) -> list[MessageId]:
        archived = {row.message for row in self.archive if row.message is not None}
        here = self.deliveries.keys() | self.in_store | archived
        return sorted(m for m in here if m not in self.publishes or not self._is_ours(m))

    def _repetitions(self) -> Iterator[tuple[Delivery, Delivery]]:
        for group in self.deliveries.values():
            yield from pairwise(group)

    def _unexplained(self) -> list[MessageId]:
        return [
            again.message
            for first, again in self._repetitions()
            if not (self.rules.timed or first.let_go or self._fault_between(first, again))
        ]

    def _too_many_repetitions(self) -> BrokenPromise | None:
        count = sum(not first.let_go for first, _ in self._repetitions())
        most = len(self.faults) * self.in_flight
        if self.rules.timed or count <= most:
            return None
        detail = f"{count} repetitions; {len(self.faults)} faults explain at most {most}"
        return BrokenPromise("given out again too often", self.rules.name, (), detail)

    def _fault_between(self, first: Delivery, again: Delivery) -> bool:
        """Whether a fault explains that a message which `first` got came to `again`."""
        publish = self.publishes.get(first.message)
        for fault in self.faults:
            if fault.begin > again.at:
                continue
            if fault.kind.is_of_database:
                # It may also have cut off the answer to a commit, so that the message was stored once more.
                explains = publish is None or publish.at <= fault.end
            else:
                hit = fault.listener == first.connection.listener and first.connection.opened <= fault.end
                # A stop writes down every acknowledgement that it has read.
                explains = hit and not (fault.kind is InjectedFaultKind.STOP and first.taken)
            if explains:
                return True
        return False

    def _out_of_order(self) -> Iterator[str]:
        """First deliveries on a connection that follow a later message of the same producer."""
        firsts = {id(group[0]) for group in self.deliveries.values()}
        latest: dict[tuple[int, str], dict[int, int]] = {}  # by the producer's connections
        for delivery in self.history.deliveries:  # in each client's own order; a burst has one time
            if id(delivery) not in firsts:
                continue
            message, publish = delivery.message, self.publishes.get(delivery.message)
            seen = latest.setdefault((id(delivery.connection), message.producer), {})
            sent_on = id(None if publish is None else publish.connection)
            later = [n for on, n in seen.items() if n > message.sequence and (on == sent_on or self._came(publish, n))]
            seen[sent_on] = max(seen.get(sent_on, -1), message.sequence)
            if later and not (self._waited_through_fault(delivery) or self._may_have_been_held(delivery)):
                yield f"{message} after {max(later)}"

    def _came(self, publish: Publish | None, sequence: int) -> bool:
        """Whether a message was confirmed before its producer sent a later one, on another connection."""
        if publish is None or publish.confirmed is None:
            return False
        later = self.publishes.get(MessageId(publish.message.producer, sequence))
        return later is None or publish.confirmed <= later.at

    def _waited_through_fault(self, delivery: Delivery) -> bool:
        publish = self.publishes.get(delivery.message)
        return publish is None or any(publish.at <= fault.end and fault.begin <= delivery.at for fault in self.faults)

    def _may_have_been_held(self, delivery: Delivery) -> bool:
        """Whether another listener may have had the message and handed it back for lack of consumers."""
        publish = self.publishes.get(delivery.message)
        return self.shared and (publish is None or delivery.at - publish.at >= COLD_SHARED)

    def _copies_allowed(self, message: MessageId) -> int:
        """One, and one more for each time the database went away while the message was being committed."""
        publish = self.publishes.get(message)
        return 1 + (0 if publish is None else sum(_unclear(publish, fault) for fault in self._of_database))

    def _in_two_places(self) -> list[MessageId]:
        copies = Counter(stored.message for stored in self.stored)
        copies.update(row.message for row in self.archive if row.message is not None)
        return [m for m, count in copies.items() if count > 1 and count > self._copies_allowed(m)]

    def _undelivered(self) -> list[str]:
        return [f"{stored.message} is {stored.state}" for stored in self.stored if stored.state not in DEAD]

    def _dead_without_cause(self) -> list[MessageId]:
        return [stored.message for stored in self.stored if stored.state in DEAD and not self._was_let_go(stored)]

    def _was_let_go(self, stored: StoredMessage) -> bool:
        return any(delivery.let_go for delivery in self.deliveries.get(stored.message, ()))

    # The archive and the counts.

    def _archive_violations(self) -> list[BrokenPromise | None]:
        if self.rules.retention == "none":
            return [self._named("archived though nothing is kept", [row.first_id for row in self.archive])]
        times = Counter(row.first_id for row in self.archive)
        settled = self.acked - self.in_store
        found = [
            self._named("settled twice", [id for id, count in times.items() if count > 1]),
            self._named("settled and in the store", [s.first_id for s in self.stored if s.first_id in times]),
            self._named(
                "finished without an acknowledgement", [row.first_id for row in self.archive if not row.acknowledged]
            ),
            self._wrong_archive_size(settled),
        ]
        if self.rules.retention == "full":
            kept = {row.message for row in self.archive if row.message is not None}
            found.append(self._named("settled and not archived", sorted(settled - kept)))
            found.append(self._named("archived and never acknowledged", sorted(kept - self.acked)))
        return found

    def _wrong_archive_size(self, settled: set[MessageId]) -> BrokenPromise | None:
        rows = sum(row.acknowledged for row in self.archive)
        copies = rows - len(settled)
        allowed = accumulate(self._copies_allowed(message) - 1 for message in settled)
        if copies == 0 or (copies > 0 and any(copies <= most for most in allowed)):
            return None
        detail = f"{rows} rows for {len(settled)} acknowledged messages"
        return BrokenPromise("wrong number of archive rows", self.rules.name, (), detail)

    def _wrong_counts(self) -> BrokenPromise | None:
        counts, states = self.counts, Counter(stored.state for stored in self.stored)
        if counts is None:
            return BrokenPromise("no counts", self.rules.name, ())
        dead = states[StoredState.DEAD] + states[StoredState.DEAD_LEASED]
        rows = (states[StoredState.READY], states[StoredState.LEASED], states[StoredState.DELAYED], dead)
        said = (counts.ready, counts.leased, counts.delayed, counts.dead)
        if said == rows and counts.published - counts.settled == len(self.stored):
            return None
        detail = f"{counts}; there are {rows} ready, leased, delayed, dead"
        return BrokenPromise("wrong counts", self.rules.name, (), detail)


    # The record.

    def _record_violations(self) -> list[BrokenPromise | None]:
        finished = {row.first_id for row in self.archive if row.acknowledged}
        dead = {stored.first_id for stored in self.stored if stored.state in DEAD}
        there = finished | {stored.first_id for stored in self.stored}
        kept = {
            id: [event for event in events if event != "deliver"] or ["deliver"] for id, events in self.record.items()
        }
        wrong = {
            id: self.record[id] for id, events in kept.items()
            if (events[0], events.count("publish")) != ("publish", 1)
            or (events[-1] == "settle", events.count("settle")) != (id in finished, int(id in finished))
            or (events[-1] == "dead-letter") != (id in dead)
        }  # fmt: skip
        return [
            BrokenPromise("wrong chain", self.rules.name, ()) if self.unproven else None,
            self._named("not recorded", sorted(there - self.record.keys())),
            self._named("recorded and nowhere", sorted(self.record.keys() - there)),
            self._named("wrongly recorded", (f"{id}: {' '.join(events)}" for id, events in sorted(wrong.items()))),
        ]


def _unclear(publish: Publish, fault: InjectedFault) -> bool:
    """Whether a fault of the database may have hidden from the broker that the message was committed already."""
    return publish.at <= fault.end and (publish.confirmed is None or publish.confirmed >= fault.begin)
