"""The part of a queue that this node holds in memory.

A `LocalQueue` joins four parts: `HeldMessages` (prefetched and delivered messages), the `Backlog` (what the store may
have beyond them), the `Dispatcher` (consumers that are pushed to) and the settlement writer, which takes
acknowledgements and returns. Consumers either ask (`deliver`) or are pushed to (`wait` for one message, `dispatcher`
for more). When few messages are prefetched and the store has more, the queue asks the fetcher for a claim; when no
consumer has asked for a while, its messages go back to the store. The publish writer adds messages that it stored
already leased (`add`), the fetcher those that it claimed (`begin_claim`, `add_claimed`, `end_claim`).

Of a queue with a single active consumer (`line`) each consumer is known by the object that it calls itself (`by`, a
waiter, a worker). It stands in line from its first call on until `leave`.

Messages are delivered in the order of their ids, to consumers of every kind: a prefetched message waits while the store
has one that belongs before it, of a higher priority or handed back (`overtaken`), until a claim has brought that.

Other objects read the public attributes; only methods of this class change them. Times are monotonic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice, takewhile
from typing import Protocol

from queues.engine.consume.backlog import Backlog, ClaimResult
from queues.engine.consume.claim_path import ASK, Action, Event
from queues.engine.consume.deadlines import Burst, Deadlines
from queues.engine.consume.dispatch import TURN_BYTES, Dispatcher, Push, PushConsumer, PushRun, Waiter
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.interest import Interest
from queues.engine.consume.line import Line, LineChanges
from queues.engine.consume.low_watermark import FIRST, LOWEST
from queues.engine.consume.memory import BATCH, FlowLimits
from queues.engine.consume.message_runs import MessageRun, UnackedMessages
from queues.engine.health import Health
from queues.engine.message import Delivery, Detail, Failure, Message
from queues.engine.node import LocalNode
from queues.engine.policies import QueuePolicy
from queues.engine.settle.audited_queues import AuditedQueue
from queues.engine.settle.batches import Completion, Settlements
from queues.engine.settle.writer import SettlementWriter

#: Messages taken for workers at once, at least, while there is room.
FEW = 100
#: Most messages taken beyond the room: they belong before prefetched ones.
OVERTAKING = 100
#: Most messages of one claim for demand from a queue that other nodes serve too, so that all of them are busy.
SHARED_BATCH = 200
#: More messages than any transaction stores.
UNLIMITED = 2**31


class QueueSchedule:
    """When a node looks at its local queues: for deliveries that are due, for messages without consumers, and for
    consumers that stand in line."""

    def __init__(self) -> None:
        self.lines: LineChanges[LocalQueue] = LineChanges()
        self.deliveries: Deadlines[Burst] = Deadlines()
        self.idle: Deadlines[LocalQueue] = Deadlines()


class Claims(Protocol):
    """The fetcher, as local queues use it."""

    limits: FlowLimits
    node: LocalNode

    def want(self, queue: LocalQueue) -> None: ...


class LocalQueue:
    """A queue, or its dead letters, as this node serves them."""

    dead = False

    def __init__(
        self, policy: QueuePolicy, settlements: SettlementWriter, fetcher: Claims, schedule: QueueSchedule,
        first_tag: int = 1,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.id = policy.id
        self.backlog = Backlog()
        # A prefetched message outlived its time: the store's sweep takes it.
        self.held = HeldMessages(fetcher.limits.memory, first_tag, lambda id: settlements.hand_back([(id, None)]))
        #: Prefetched messages; delivered messages by tag. Both are views.
        self.ready: Sequence[Message] = self.held.ready
        self.unacked: UnackedMessages = self.held.unacked
        #: Whether it was removed.
        self.closed = False
        #: The record of an audited queue.
        self.audited = settlements.audited(policy)
        self._settlements = settlements
        #: The health record in which faults of its consumers are counted.
        self.health: Health = settlements.health
        self._fetcher = fetcher
        self._limits = fetcher.limits
        self._node = fetcher.node
        self._schedule = schedule
        self._dispatcher = Dispatcher(self)
        #: The settlement writer's round that returns messages of this queue to the store.
        self._returned_in = 0
        #: A purge during the claim under way: it is for the claimed messages too. When that claim has failed (third),
        #: it is for those of the next ones, until one brings none.
        self._purged: tuple[int, str, bool] | None = None
        #: Messages that a consumer asked for since the last claim and did not get.
        self._shortage = 0
        self._on_refill: list[Callable[[], None]] = []
        #: The last burst of deliveries to those who asked: its time and number of attempts.
        self._burst_key: tuple[float, int] | None = None
        self._last_burst: list[Sequence[int]] = []
        self._batches: dict[int | None, Settlements] = {}
        #: Its consumers here, if only one of all is active.
        self.line: Line | None = None
        self.interest = Interest(policy, self.held, self._dispatcher, lambda time: schedule.idle.at(time, self))
        if policy.single_active_consumer:
            self._begin_line()

    # Delivering to consumers that ask.

    def deliver(
        self, now: float, timed: bool = False, consumer: int | None = None, by: object = None
    ) -> Delivery | None:
        """The next message, or None when none is prefetched; then `may_refill` tells whether waiting could help.

        With `timed` the message comes back unless it is acknowledged within the queue's ack timeout and, on top, the
        backoff of its attempt. `consumer` is the API key of the consumer, which is `by`.
        """
        if self.line is not None and not self.serves(by):
            return None
        found = self._take(now, 1, consumer, timed)
        return found[0] if found else None

    def deliver_many(
        self, now: float, count: int, consumer: int | None = None, by: object = None
    ) -> list[tuple[Sequence[int], list[bytes]]]:
        """Up to `count` messages, with the deadline that `deliver` gives with `timed`: tags and payloads of runs."""
        if self.line is not None and not self.serves(by):
            return []
        self.interest.asked_for(count)
        taken: list[tuple[Sequence[int], list[bytes]]] = []
        while count > 0:
            run = self._take_run(now, count, consumer) or self._take_some(now, count, consumer)
            if not run[1]:
                break
            taken.append(run)
            count -= len(run[1])
        return taken

    def _take_run(self, now: float, count: int, consumer: int | None) -> tuple[Sequence[int], list[bytes]] | None:
        """Messages at the head that go together; None if there are none, or it is not as simple as that."""
        held = self.held
        if not held.ready or self.overtaken or self.policy.paused or time.monotonic() >= self._node.trusted_until:
            return None
        if (found := held.deliver_plain(now, count)) is None:
            return None
        tags, run = found
        self.note_demand(now)
        self._add_deadline(tags, 0, now)
        if self.audited is not None:
            self.audited.delivered(run.ids, run.ids, consumer)
        self._refill()
        return tags, run.payloads

    def _take_some(self, now: float, count: int, consumer: int | None) -> tuple[Sequence[int], list[bytes]]:
        """Messages of any kind; what is missing is claimed."""
        found = self._take(now, count, consumer, True)
        return [delivery[0] for delivery in found], [delivery[1] for delivery in found]

    def _take(self, now: float, count: int, consumer: int | None, timed: bool) -> list[Delivery]:
        """Messages of any kind for a consumer that asks; what is missing is claimed."""
        self.note_demand(now)
        found: list[Delivery] = []
        while len(found) < count and not self.policy.paused and (runs := self.push(now, count - len(found), consumer)):
            found += [(tag, payload, attempts, detail) for run in runs for tag, _, payload, attempts, detail in run]
        if timed:
            for tag, _, attempts, _ in found:
                self._add_deadline((tag,), attempts, now)
        if missing := count - len(found):
            if self.backlog.unclaimed:
                self._shortage += 1
                self._fetcher.want(self)
            self._shortage = max(self._shortage, missing)
        return found

    def _refill(self) -> None:
        """Have messages claimed when few are left."""
        if self.backlog.unclaimed and (self.overtaken or len(self.ready) < self._limits.low_water):
            self._fetcher.want(self)

    @property
    def may_refill(self) -> bool:
        """Whether the store may have a message for a consumer that found none."""
        return self.backlog.unclaimed and not self.policy.paused

    def may_refill_for(self, consumer: object) -> bool:
        """As `may_refill`, for this consumer: it may be about to become the active one."""
        if self.line is not None and not self.line.may_serve(consumer):
            return False
        return self.may_refill

    def on_refill(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the next claim has come back, with messages or without."""
        self._on_refill.append(resume)

    def note_demand(self, now: float) -> None:
        """A consumer looked for a message."""
        self.interest.came(now)

    def demand_ended(self) -> None:
        """The last consumer that waited has left."""
        self.interest.look_at(self.interest.look_again_at(time.monotonic()))

    def want(self) -> None:
        """Have messages claimed soon."""
        self._fetcher.want(self)

    # Delivering to consumers that wait.

    def wait(self, waiter: Waiter) -> None:
        """Deliver the next message to `waiter`, now or when there is one."""
        self._dispatcher.grant(waiter, 1)

    def cancel(self, waiter: Waiter) -> None:
        """Wait no longer; a no-op when the waiter has been served."""
        self._dispatcher.withdraw(waiter)

    def dispatch(self) -> None:
        """Hand prefetched messages to consumers that wait."""
        self._dispatcher.dispatch()

    def dispatcher(self) -> Dispatcher:
        """The dispatcher, for workers. From now on room and idle times are those of a queue with workers."""
        if not self._dispatcher.with_workers:
            self._dispatcher.expect_workers()
            self.interest.tidy_soon()
        return self._dispatcher

    def push(self, now: float, most: int, key: int | None = None) -> list[PushRun]:
        """Up to `most` messages for a consumer with this API key, fewer of large ones."""
        if now >= self._node.trusted_until:
            return []
        held = self.held
        if self.overtaken:
            first = self.backlog.first
            most = sum(1 for _ in takewhile(lambda message: message[0] <= first, islice(held.ready, most)))
        taken = held.push(now, most, TURN_BYTES)
        if taken and self.audited is not None:
            for run in taken:
                returned = run.detail is not None and run.detail.origin is not None
                ids = [held.unacked[tag][0] for tag in run.tags] if returned else run.ids
                self.audited.delivered(ids, run.ids, key)
        self._refill()
        return taken

    @property
    def demand(self) -> int:
        """Messages that consumers wait for."""
        return self._dispatcher.demand

    # A single active consumer.

    def enter(self, consumer: object) -> None:
        """A consumer has come: of a queue with a single active one it stands in line from now on, until `leave`."""
        if self.line is not None and self.line.enter(consumer):
            self._schedule.lines.note(self)

    def serves(self, consumer: object) -> bool:
        """Whether this consumer, which has come now at the latest, may be given messages."""
        if self.line is None:
            return True
        if consumer is None:
            return False
        self.enter(consumer)
        return consumer is self.line.active

    def leave(self, consumer: object, *, finish: bool = False, count: bool = True, keep_tags: bool = False) -> None:
        """A consumer takes nothing more: another one is active once nothing of what it had is under way. It may
        `finish` that, or it goes back in place; with `count` that was an attempt, with `keep_tags` it may still be
        acknowledged. A no-op unless it stands in line, or had the last turn."""
        if self.line is None:
            return
        was_active = consumer is self.line.active
        if number := self.line.end(consumer):
            self._schedule.lines.remove([number])
        if was_active:
            self._dispatcher.serve_only(None)
            self.return_prefetched()
        if self.line.is_former(consumer):
            if not finish:
                self._return_deliveries(count, keep_tags)
            self._schedule.lines.note(self)

    def _return_deliveries(self, count: bool, keep_tags: bool) -> None:
        """The consumer that had all deliveries is gone: they go back in place, or are given up."""
        taken: list[tuple[int, int | None]] = []
        attempted: list[int] = []
        for tag in sorted(self.unacked, key=lambda tag: self.unacked[tag][0]):
            id, attempts, _, detail = self.unacked[tag]
            attempts += count
            self.unacked.release(tag)
            if count and self.policy.exhausted(attempts, None if detail is None else detail.max_attempts):
                self._bury(Failure(id, attempts, error="its consumer is gone"))
            else:
                taken.append((id, tag if keep_tags else None))
                attempted.append(attempts)
        self._dispatcher.forget_deadlines()
        self._burst_key = None
        self._put_back(taken, self.audited, attempted)

    def hand_over(self) -> int:
        """The number of the consumer that had the last turn, once all that it had is settled or back in the store; 0
        before."""
        line = self.line
        assert line is not None
        if self.ready:  # they were on their way
            self.return_prefetched()
        if self.unacked or self.backlog.claiming or self.in_transit:
            return 0
        round = line.settled_in
        if round is None:
            round = self._settlements.round if self.audited is None else self.audited.settling
            line.settles_in(round)
            self._settlements.hurry()
        return 0 if self._settlements.settles(round) else line.hand_over()

    @property
    def awaits_turn(self) -> bool:
        """Whether one of the consumers that stand in line here may become the active one."""
        return self.line is not None and bool(self.line) and self.line.active is None and self.line.former is None

    @property
    def stands_by(self) -> bool:
        """Whether the active consumer is not here: no message may be leased to this node."""
        return self.line is not None and self.line.active is None

    def obey_line(self, number: int | None) -> None:
        """The consumer of this number is the active one; None: it is not here."""
        if self.line is not None and number is not None and (active := self.line.elect(number)) is not None:
            self._dispatcher.serve_only(active)
            self.more_in_store(FIRST)
        else:
            self.refilled()

    def _begin_line(self) -> None:
        """From now on a single consumer is active. Messages that others have stay with them."""
        self.line = Line()
        for consumer in self._dispatcher.serve_only(None):
            self.enter(consumer)
        self.return_prefetched()

    def _end_line(self) -> None:
        """Every consumer is served again."""
        assert self.line is not None
        self._schedule.lines.remove(self.line.numbers)
        self.line = None
        self._dispatcher.serve_all()

    # Settling.

    def complete(self, tag: int, result: bytes | None, refuse: Callable[[int], None] | None = None) -> bool:
        """A worker has finished a job; False when the job is no longer its. `result` goes to the archive;
        `refuse(tag)` is called if the store does not take the settlement."""
        entry, late = self.unacked.release(tag), False
        if entry is None:
            entry, late = self.held.release_stale(tag), True
        if entry is None:
            return False
        batch = self._settlements.job_batch(self.policy, late, results=result is not None)
        batch.add_many([entry[0]], [entry[2]], () if result is None else (result,))
        self._completed(batch, (entry[0],), (tag,), refuse)
        return True

    def complete_many(self, tags: Sequence[int], refuse: Callable[[int], None] | None = None) -> list[int]:
        """Complete several deliveries, without results; returns the tags that are no longer the worker's."""
        batch = self._settlements.job_batch(self.policy)
        runs, left = self.unacked.release_runs(tags)
        for ids, delivered in runs:
            batch.add_run(ids, delivered)
            self._completed(batch, ids, tags[: len(ids)], refuse)
            tags = tags[len(ids) :]
        found, times, unknown = self.unacked.release_many(left)
        if found:
            gone = set(unknown)
            batch.add_many(found, times)
            self._completed(batch, found, [tag for tag in left if tag not in gone] if gone else left, refuse)
        return [tag for tag in unknown if not self.complete(tag, None, refuse)]

    def _completed(
        self, batch: Settlements, ids: Sequence[int], tags: Sequence[int], refuse: Callable[[int], None] | None
    ) -> None:
        """Jobs with these ids and tags were added to a batch."""
        if refuse is not None:
            batch.tell(Completion(ids, tags, refuse))
        self._dispatcher.completed(tags)
        if self.policy.concurrency_limit is not None:
            self._settlements.hurry()  # other consumers may wait for the places

    def ack(self, tag: int, consumer: int | None = None) -> bool:
        """Settle a delivery; False when the tag is not outstanding here."""
        return not self.ack_many([tag], consumer)

    def ack_many(self, tags: Sequence[int], consumer: int | None = None) -> list[int]:
        """Settle deliveries; returns the tags that are not outstanding here."""
        runs, left = self.unacked.release_runs(tags)
        ids, times, unknown = self.unacked.release_many(left) if left else ((), (), ())
        if runs or ids:
            batch = self._batches.get(consumer)
            if batch is None:
                batch = self._batches[consumer] = self._settlements.batch(self.policy, consumer)
            for run in runs:
                batch.add_run(*run)
            if ids:
                batch.add_many(ids, times)
            if self.policy.concurrency_limit is not None:
                self._settlements.hurry()  # other consumers may wait for the places
            if self.backlog.unclaimed and self._dispatcher.demand:
                self._fetcher.want(self)  # there may be room in memory now
        return [tag for tag in unknown if not self._ack_late(tag, consumer)]

    def _ack_late(self, tag: int, consumer: int | None) -> bool:
        """Settle by a tag that is not outstanding: its message is prefetched again, or its lease was lost."""
        if (id := self.held.settle_prefetched(tag)) is not None:
            self._settlements.batch(self.policy, consumer).add(id, time.monotonic())
        elif (entry := self.held.release_stale(tag)) is not None:  # the id may be another message's by now
            self._settlements.batch(self.policy, consumer, late=True).add(entry[0], entry[2])
        else:
            return False
        return True

    def settle_late(self, id: int, delivered: float, consumer: int | None) -> None:
        """Settle a message that the store has and that was delivered then, though its lease may not be this node's. It
        is not delivered again, even if this node claims it before the settlement is written."""
        self.held.settle_undelivered(id)
        self._settlements.batch(self.policy, consumer, late=True).add(id, delivered)

    def give_back(
        self, tag: int, *, delay: float | None = None, error: str | None = None, keep_tag: bool = False,
        refuse: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Return a delivery to the tail after `delay` seconds (None: the queue's backoff), or to the dead letters
        when its attempts are used up. `refuse` is called if the lease is lost before that is stored: the message comes
        again without this attempt."""
        entry = self.unacked.release(tag)
        if entry is None:
            return
        id, attempts, _, detail = entry
        attempts += 1
        if self.policy.exhausted(attempts, None if detail is None else detail.max_attempts):
            self._bury(Failure(id, attempts, error=error, refuse=refuse))
            return
        if delay is None:
            delay = self._backoff(attempts, detail)
        failure = Failure(id, attempts, delay, tag if keep_tag else None, error, refuse)
        self._settlements.give_back(failure, self.audited)

    def _backoff(self, attempts: int, detail: Detail | None) -> float:
        own = None if detail is None else detail.retry_interval
        return self.policy.backoff(attempts, None if own is None else own / 1000)

    def bury(self, tag: int, error: str) -> None:
        """Make a delivery a dead letter at once: it could never be delivered."""
        entry = self.unacked.release(tag)
        if entry is not None:
            if self.audited is not None:
                self.audited.not_delivered(published_id(entry[0], entry[3]))
            self._bury(Failure(entry[0], entry[1] + 1, error=error))

    def _bury(self, failure: Failure) -> None:
        self._settlements.bury(self.policy, failure)
        if self.backlog.unclaimed and self.demand:
            self._fetcher.want(self)  # there may be room in memory now

    def hand_back(self, tag: int) -> None:
        """Return a delivery to its place, as if it had never been made: it is the next one again."""
        entry = self.unacked.release(tag)
        if entry is not None:
            self._put_back([(entry[0], None)], self.audited)

    def undeliver(self, pushes: Sequence[Push]) -> None:
        """Prefetch again messages that were pushed and that no consumer has seen."""
        if any(push.tag in self.unacked for push in pushes):
            if self.audited is not None:
                self.audited.not_seen([entry[0] for push in pushes if (entry := self.unacked.get(push.tag))])
            self.held.take_back(pushes)
            self._added()

    # Prefetching.

    def wanted(self, now: float) -> int:
        """The number of new messages that may be leased to this node as they are stored: any while memory has room, but
        of a queue that other nodes serve too no more than its own consumers ask for, or take in half a second."""
        if not self.backlog.caught_up or self.room <= 0 or not self.policy.may_lease_on_publish:
            return 0
        if self.stands_by:
            return 0
        if self.interest.shared:
            return max(0, min(self.room, self.interest.asked(now) - len(self.held.ready)))
        return UNLIMITED if self.interest.is_warm(now) else 0

    def end_storing(self) -> None:
        """The transaction has ended."""
        self._obey(self.backlog.end_storing())

    @property
    def in_transit(self) -> bool:
        """Whether messages are on their way into memory or back to the store, and a claim would break the order."""
        return (
            self.backlog.storing
            or self._settlements.handed_back < self._returned_in
            or (self.audited is not None and self.audited.handing_back)
        )

    @property
    def room(self) -> int:
        """Free room in memory, in messages."""
        limits, held = self._limits, self.held
        if held.bytes >= limits.queue_bytes or not limits.memory.room(held.bytes):
            return 0
        if self._dispatcher.with_workers:  # their deliveries are bounded by credits, and take no memory for payloads
            return limits.prefetch - len(held.ready)
        return limits.prefetch - len(held.ready) - len(held.unacked)

    def claim_limit(self) -> int:
        """Messages that the claim that begins now may take."""
        limits, held = self._limits, self.held
        room = min(limits.queue_bytes - held.bytes, limits.memory.room(held.bytes))
        most = min(BATCH, self.room, max(1, room // max(1, held.mean_bytes)))
        overtaking = OVERTAKING
        if self.dead or self.interest.shared or self.policy.taken_as_asked:
            ahead = 0 if self.dead else self.interest.ahead(time.monotonic())
            asked = max(self.demand, self._shortage)  # other consumers may want the rest
            now_wanted = min(asked, SHARED_BATCH) if len(held.ready) < asked else 0
            most = min(most, max(now_wanted, ahead - len(held.ready)))
            overtaking = min(asked, OVERTAKING)
        elif self._dispatcher.with_workers:  # workers are slow: messages that they cannot take soon wait in the store
            most = min(most, max(2 * (self.demand + len(held.unacked)), self._shortage, FEW))
        self._shortage = 0
        return max(most, overtaking) if self.overtaken else most

    @property
    def most_packed(self) -> int:
        """Bytes of one segment, as memory counts them, that a claim may take though it is for fewer messages: none if
        others may want them."""
        limits, held = self._limits, self.held
        if self.dead or self.interest.shared or self.policy.taken_as_asked:
            return 0
        return max(0, min(limits.queue_bytes - held.bytes, limits.memory.room(held.bytes)))

    def abort_claim(self) -> None:
        """The claim under way has failed. A purge passed over its messages, which are ready in the store again."""
        self.backlog.on(Event.CLAIM_FAILED)
        if self._purged is not None:
            self._purged = *self._purged[:2], True

    def end_claim(self, result: ClaimResult, limit: int, horizon: int) -> None:
        """The claim under way has come back."""
        # When a concurrency limit was met there is more, but not now.
        limited = result.taken < limit and self.policy.concurrency_limit is not None
        self.backlog.end_claim(result, LOWEST if self.dead else horizon, limited=limited)

    def add_run(self, ids: Sequence[int], payloads: list[bytes], detail: Detail | None, size: int) -> None:
        """Take messages leased to this node, in order of id, on their first delivery and with this detail, which have
        `size` bytes together, as `weight` counts."""
        self.held.add_run(ids, payloads, detail, size)
        self._added()

    def add_claimed(self, *claimed: MessageRun | list[Message]) -> None:
        """Take messages in order of id; they may carry the tag of an earlier delivery, or belong before those here."""
        for messages in claimed:
            if isinstance(messages, MessageRun):
                self.held.add_claimed_run(messages)
            else:
                self.held.add_claimed(messages)
        if self._purged is not None:
            high, by, failed = self._purged
            gone = self.held.purge(high)
            self._settlements.purge(gone, by)
            if not (gone and failed):
                self._purged = None
        self._added()

    def _added(self) -> None:
        self._give_way()
        self.interest.prefetched()
        self.dispatch()

    def refilled(self) -> None:
        """A claim has come back, with messages or without."""
        waiting, self._on_refill = self._on_refill, []
        for resume in waiting:
            self.health.guard("session", getattr(resume, "__self__", None), resume)

    def exhaust(self) -> None:
        """The store has nothing that can be claimed: consumers get what is here, until messages arrive."""
        self.backlog.exhaust()
        self.refilled()
        self.dispatch()

    @property
    def overtaken(self) -> bool:
        """Whether the store has a message that belongs before prefetched ones: of a higher priority, or handed back.
        Prefetched messages above `backlog.first` wait until it is claimed."""
        ready = self.ready
        return self.backlog.unclaimed and bool(ready) and self.backlog.first < ready[-1][0]

    def _give_way(self) -> None:
        """If what is here counts as being worked on and is overtaken, it goes back: it may hold the place that the
        other one needs."""
        if self.policy.taken_as_asked and self.overtaken:
            self.return_prefetched()

    def more_in_store(self, first_id: int) -> None:
        """Messages from `first_id` on became ready in the store."""
        action = self.backlog.arrived(first_id)
        self._give_way()
        self._obey(action)

    def _obey(self, action: Action) -> None:
        if action is ASK and (self.demand or self._on_refill):
            self._fetcher.want(self)

    # Returning prefetched messages.

    def announced(self) -> None:
        """The store knows that this node serves the queue. What became ready before was not announced to it: it may
        belong before all that this node has, and lie below the low watermark."""
        self.more_in_store(FIRST)

    def take_all(self) -> list[tuple[int, int | None]]:
        """Remove every prefetched message; returns (id, tag of an earlier delivery)."""
        self.backlog.returned()
        self.interest.forget_surplus()
        return self.held.take_all()

    def return_prefetched(self) -> None:
        """Return every prefetched message to its place in the store."""
        self._put_back(self.take_all())

    def purge(self, high: int, by: str) -> None:
        """An operator purged the queue up to this id, without its priority. Prefetched messages, and those that were on
        their way here or back to the store as the purge looked for ready ones, are removed."""
        self.backlog.returned()
        self._settlements.purge(self.held.purge(high) + self.held.find_handed_back(high), by)
        if self.backlog.claiming:
            self._purged = high, by, False
        self._added()

    def change_policy(self, policy: QueuePolicy | None) -> None:
        """An operator changed the queue, or (None) removed it."""
        if policy is None:
            self.closed = True
            self.interest.tell(False)
            self.take_all()
            self.held.forget_deliveries()
            self._dispatcher.close()
            self.line = None
            return
        self.policy = policy
        self.audited = self._settlements.audited(policy)
        self._batches.clear()
        self.interest.obey(policy)
        if policy.single_active_consumer and self.line is None:
            self._begin_line()
        elif self.line is not None and not policy.single_active_consumer:
            self._end_line()
        if policy.taken_as_asked:
            self.return_prefetched()
        self.more_in_store(self.backlog.watermark.value + 1)
        self.dispatch()

    def decline(self, messages: Iterable[Message]) -> None:
        """Return at once messages that were leased before the queue's policy forbade it."""
        self._put_back([(id, None if detail is None else detail.tag) for id, _, _, detail in messages])
        self.backlog.returned()

    def _put_back(
        self, taken: list[tuple[int, int | None]], audited: AuditedQueue | None = None, attempts: Sequence[int] = ()
    ) -> None:
        if taken:
            ids = [id for id, _ in taken]
            self.held.remember_handed_back(ids)
            self._settlements.hand_back(taken, audited, attempts)
            self._returned_in = self._settlements.round
            self.backlog.returned(min(ids))
            self._give_way()

    def lose_leases(self) -> None:
        """The leases are no longer this node's: forget prefetched messages, settle late acknowledgements by id."""
        self.held.lose_leases()
        self.backlog.restart()
        self._returned_in = 0  # messages on their way back are reaped
        self._dispatcher.forget_deadlines()
        self._burst_key = None
        self.interest.tell(False)
        if self.line is not None:
            self.line.lose()
            self._dispatcher.serve_only(None)
            self._schedule.lines.note(self)

    def forget_history(self) -> None:
        """The store has another past: ids of earlier deliveries may belong to other messages."""
        self.held.forget_stale()

    # Deadlines.

    def due_back(self, deadline: float, tags: Sequence[int], consumer: PushConsumer) -> None:
        """Deliveries to a consumer are due back at this time."""
        self._schedule.deliveries.at(deadline, Burst(self, consumer, [tags]))

    def _add_deadline(self, tags: Sequence[int], attempts: int, now: float) -> None:
        """Note the deadline of deliveries to those who asked; those of one moment and attempt share an entry."""
        if self._burst_key != (now, attempts):
            self._burst_key, self._last_burst = (now, attempts), []
            deadline = now + (self.policy.ack_timeout or 0.0) + self.policy.backoff(attempts + 1)
            self._schedule.deliveries.at(deadline, Burst(self, None, self._last_burst, now))
        self._last_burst.append(tags)

    def expire(self, burst: Burst, time: float) -> None:
        """Return deliveries that were not acknowledged in time: those to who asked keep their tags."""
        if burst.consumer is not None:
            for tags in burst.tags:
                self._dispatcher.expire(tags, burst.consumer, time)
            return
        unacked, made = self.unacked, burst.made
        for tag in chain.from_iterable(map(unacked.among, burst.tags)):
            if (entry := unacked.get(tag)) is not None and entry[2] == made:
                self.give_back(tag, delay=0.0, error="not acknowledged in time", keep_tag=True)


def published_id(id: int, detail: Detail | None) -> int:
    """The id that a message was published with."""
    return (None if detail is None else detail.origin) or id


class LocalDeadLetters(LocalQueue):
    """The dead letters of a queue, for consumers that read them one at a time. Nothing is prefetched."""

    dead = True

    def _begin_line(self) -> None:
        """All of its consumers are served."""

    @property
    def room(self) -> int:
        return self.demand

    def wanted(self, now: float) -> int:
        return 0

    def _added(self) -> None:
        self.dispatch()
        self.demand_ended()

    def demand_ended(self) -> None:
        """Return dead letters whose consumers left while they were claimed."""
        if self.ready and not self.demand:
            self._settlements.hand_back(self.take_all())

    def give_back(
        self, tag: int, *, delay: float | None = None, error: str | None = None, keep_tag: bool = False,
        refuse: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """A dead letter goes back unchanged, behind the others."""
        entry = self.unacked.release(tag)
        if entry is None:
            return
        self._settlements.give_back(Failure(entry[0], entry[1], refuse=refuse), self.audited)
        self.backlog.returned()
