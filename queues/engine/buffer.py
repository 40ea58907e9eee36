"""The part of a queue that this node holds in memory.

A message is in one of three places here: `ready`, leased to this node and not yet delivered; `unacked`, delivered
and neither acknowledged nor returned; or a batch on its way back to the store. Consumers either ask (`deliver`) or
wait (`wait`). When memory runs low and the store has more, the buffer asks the claimer; when nobody has asked for a
while, what it holds goes back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from queues.engine.batches import Completion
from queues.engine.deadlines import BurstDeadlines
from queues.engine.faults import told
from queues.engine.floor import Floor
from queues.engine.memory import OVERHEAD, weight
from queues.engine.message import POSITION, Delivery, Detail, Failure, Message
from queues.engine.policy import QueuePolicy
from queues.engine.pusher import TURN_BYTES, Push, Pusher

if TYPE_CHECKING:
    from queues.engine.batches import AckBatch
    from queues.engine.claimer import Claimer
    from queues.engine.settler import Settler

#: Seconds without a consumer after which a node no longer takes new messages for a queue, and hands back its own:
#: soon where others wait for them.
WARM = 1.0
COLD = 5.0
COLD_SHARED = 0.2
#: Bytes of a message of which none has been claimed: the first claim takes few, in case they are large.
UNKNOWN_BYTES = 1 << 16

new_push = tuple.__new__  # a NamedTuple's own constructor takes twice as long

#: id, attempts that failed before, time of delivery, detail.
Unacked = tuple[int, int, float, Detail | None]


class Waiter(Protocol):
    """A consumer that waits for one message."""

    def deliver(self, delivery: Delivery) -> None:
        """Take a message; called once for each `QueueBuffer.wait`."""

    def refuse(self) -> None:
        """Nothing will come: the queue is paused and refuses, or the node is stopping."""


class QueueBuffer:
    """A queue, or its dead letters, as this node serves them."""

    dead = False

    def __init__(self, policy: QueuePolicy, settler: Settler, claimer: Claimer, first_tag: int = 1) -> None:
        self.policy = policy
        self.id = policy.id
        self.settler = settler
        self.claimer = claimer
        self.ready: deque[Message] = deque()
        self.unacked: dict[int, Unacked] = {}
        #: Deliveries of before the engine lost its leases: a late acknowledgement still settles the message.
        self.stale: dict[int, Unacked] = {}
        #: Buffered messages that keep the tag of an earlier delivery.
        self.tagged: dict[int, Message] = {}
        self.skip: set[int] = set()
        self.waiters: deque[Waiter] = deque()
        self.ready_bytes = 0
        #: Bytes of a message, as the last claim had them in the mean.
        self.mean_bytes = UNKNOWN_BYTES
        self.next_tag = first_tag
        self.last_tag: int | None = None
        #: Whether the store may have ready messages that this node has not claimed; `news` counts reasons to think so.
        self.backlog = True
        self.news = 0
        #: What lies at and below needs no look.
        self.floor = Floor()
        #: A claim took everything it saw, and more has come since: the next publish takes the rest along.
        self.nearly_done = False
        self.claiming = False
        self.storing = 0
        #: The settler's round after which what went back from memory is in the store.
        self.back_with = 0
        self.shared = False
        self.interested = False
        self.closed = False
        self.last_demand = -1e9
        #: Messages that a consumer asked for since the last claim and did not get.
        self.shortage = 0
        self.on_refill: list[Callable[[], None]] = []
        #: Something came that is to go before what is in memory.
        self.urgent = False
        self.pusher: Pusher | None = None
        #: Where deliveries are noted, if the queue is audited.
        self.audited = settler.audited(policy)
        self._deadlines = BurstDeadlines()
        self._batches: dict[int | None, AckBatch] = {}

    # What consumers do.

    def deliver(self, now: float, timed: bool = False, consumer: int | None = None) -> Delivery | None:
        """The next message, or None when none is in memory; then `may_refill` tells whether waiting could help.

        With `timed` the message comes back by itself unless it is acknowledged within the queue's ack timeout
        and, on top, the backoff of its attempt. `consumer` is the API key of who asks.
        """
        self.last_demand = now
        ready = self.ready
        while ready and not self.policy.paused and now < self.claimer.trusted_until:
            id, payload, attempts, detail = ready.popleft()
            self._hold(-OVERHEAD - len(payload) - (0 if detail is None else detail.weight))
            if detail is None:
                tag = self.next_tag
                self.next_tag = tag + 1
                self.unacked[tag] = (id, attempts, now, None)
            else:
                if id in self.skip or self._expired(detail.expires_at, id):
                    self.skip.discard(id)
                    continue
                if detail.tag is None:
                    tag = self.next_tag
                    self.next_tag = tag + 1
                else:
                    tag = detail.tag
                    self.tagged.pop(tag, None)
                self.unacked[tag] = (id, attempts, now, detail)
            if self.audited is not None:
                self.audited.delivered(id, detail, consumer)
            if timed:
                self._time((tag,), attempts, now)
            if self.backlog and (self.urgent or len(ready) < self.claimer.low_water):
                self.claimer.want(self)
            return tag, payload, attempts, detail
        if self.backlog:
            self.shortage += 1
            self.claimer.want(self)
        return None

    def deliver_many(self, now: float, count: int, consumer: int | None = None) -> list[Delivery]:
        """Up to `count` messages, each with a deadline as `deliver` gives it with `timed`."""
        ready = self.ready
        plain = self._plain(count) if ready else 0
        if not plain:
            found: list[Delivery] = []
            while len(found) < count and (delivery := self.deliver(now, True, consumer)) is not None:
                found.append(delivery)
            self.shortage = max(self.shortage, count - len(found))
            return found
        self.last_demand = now
        messages = [ready.popleft() for _ in range(plain)]
        self._hold(-OVERHEAD * plain - sum([len(message[1]) for message in messages]))
        first = self.next_tag
        self.next_tag = first + plain
        tags = range(first, first + plain)
        self.unacked.update(zip(tags, [(message[0], 0, now, None) for message in messages], strict=True))
        self._time(tags, 0, now)
        if self.audited is not None:
            for message in messages:
                self.audited.delivered(message[0], None, consumer)
        if self.backlog and len(ready) < self.claimer.low_water:
            self.claimer.want(self)
        taken: list[Delivery] = [(tag, message[1], 0, None) for tag, message in zip(tags, messages, strict=True)]
        return taken if plain == count else taken + self.deliver_many(now, count - plain, consumer)

    def _plain(self, most: int) -> int:
        """How many messages at the head are on their first delivery and carry nothing but a body."""
        if self.policy.paused or time.monotonic() >= self.claimer.trusted_until:
            return 0
        count = 0
        for _, _, attempts, detail in islice(self.ready, most):
            if attempts or detail is not None:
                break
            count += 1
        return count

    @property
    def may_refill(self) -> bool:
        """Whether the store may have a message for a consumer that found none."""
        return self.backlog and not self.policy.paused

    def wait(self, waiter: Waiter) -> None:
        """Deliver the next message to `waiter`, now or when there is one."""
        self.last_demand = time.monotonic()
        self.waiters.append(waiter)
        self.dispatch()

    def cancel(self, waiter: Waiter) -> None:
        """Wait no longer; a no-op when it has been served."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def pushing(self) -> Pusher:
        """The part that pushes to workers."""
        if self.pusher is None:
            self.pusher = Pusher(self)
            self.tidy_soon()
        return self.pusher

    def take(self, now: float, count: int, consumer: int | None = None) -> list[Push]:
        """Up to `count` messages for a worker with this API key, fewer of large ones."""
        taken: list[Push] = []
        ready, unacked, size, released = self.ready, self.unacked, 0, 0
        if now >= self.claimer.trusted_until:
            return taken
        while len(taken) < count and ready and size < TURN_BYTES:
            id, payload, attempts, detail = ready[0]
            origin = None if detail is None else detail.origin
            if detail is None or (detail.tag is None and detail.expires_at is None):  # as `deliver`, but faster
                ready.popleft()
                released += OVERHEAD + len(payload) + (0 if detail is None else detail.weight)
                tag = self.next_tag
                self.next_tag = tag + 1
                unacked[tag] = (id, attempts, now, detail)
                if self.audited is not None:
                    self.audited.delivered(id, detail, consumer)
            else:
                delivery = self.deliver(now, consumer=consumer)
                if delivery is None:
                    break
                tag, payload, attempts, detail = delivery
                id, origin = unacked[tag][0], None if detail is None else detail.origin
            size += len(payload)
            taken.append(new_push(Push, (tag, origin or id, payload, attempts, detail)))
        self._hold(-released)
        if self.backlog and len(ready) < self.claimer.low_water:
            self.claimer.want(self)
        return taken

    def complete(self, tag: int, result: bytes | None, refuse: Callable[[int], None] | None = None) -> bool:
        """A worker has done what it was pushed; False when it is no longer its. `result` goes to the archive;
        `refuse(tag)` is called if the store does not take it."""
        entry, late = self.unacked.pop(tag, None), False
        if entry is None:
            entry, late = self.stale.pop(tag, None), True
        if entry is None:
            return False
        completion = None if refuse is None else Completion((entry[0],), (tag,), refuse)
        self.settler.job_batch(self.policy, late).add_job(entry[0], entry[2], result, completion)
        self._completed((tag,))
        return True

    def complete_many(self, tags: list[int], refuse: Callable[[int], None] | None = None) -> list[int]:
        """As `complete` for several, without results; returns the tags that are no longer the worker's."""
        entries = [self.unacked.pop(tag, None) for tag in tags]
        known = [entry for entry in entries if entry is not None]
        if known:
            batch, ids = self.settler.job_batch(self.policy), [entry[0] for entry in known]
            here = tags if len(known) == len(tags) else [
                tag for tag, entry in zip(tags, entries, strict=True) if entry is not None
            ]  # fmt: skip
            completion = None if refuse is None else Completion(ids, here, refuse)
            batch.add_jobs(ids, [entry[2] for entry in known], completion)
            self._completed(tags)
        if len(known) == len(tags):
            return []
        late = [tag for tag, entry in zip(tags, entries, strict=True) if entry is None]
        return [tag for tag in late if not self.complete(tag, None, refuse)]

    def _completed(self, tags: Iterable[int]) -> None:
        if self.pusher is not None and self.pusher.deadlines.moved:
            for tag in tags:
                self.pusher.deadlines.drop(tag)
        if self.policy.concurrency_limit is not None:
            self.settler.hurry()  # their places may be wanted

    def ack(self, tag: int, consumer: int | None = None) -> bool:
        """Settle a delivery; False when the tag is not outstanding here."""
        return not self.ack_many([tag], consumer)

    def ack_many(self, tags: list[int], consumer: int | None = None) -> list[int]:
        """Settle deliveries; returns the tags that are not outstanding here."""
        entries = [self.unacked.pop(tag, None) for tag in tags]
        known = [entry for entry in entries if entry is not None]
        if known:
            batch = self._batches.get(consumer)
            if batch is None:
                batch = self._batches[consumer] = self.settler.batch(self.policy, consumer)
            batch.add_many([entry[0] for entry in known], [entry[2] for entry in known])
            if self.policy.concurrency_limit is not None:
                self.settler.hurry()  # their places may be wanted
            if self.backlog and self.demand:
                self.claimer.want(self)  # there was no room in memory, perhaps
        if len(known) == len(tags):
            return []
        late = [tag for tag, entry in zip(tags, entries, strict=True) if entry is None]
        return [tag for tag in late if not self._ack_late(tag, consumer)]

    def give_back(
        self,
        tag: int,
        *,
        count: bool = True,
        delay: float | None = None,
        error: str | None = None,
        keep_tag: bool = False,
    ) -> None:
        """Return a delivery to the tail after `delay` seconds (None: the queue's backoff), or to the dead letters
        when its attempts are used up. Without `count` the delivery is not held against the message."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            self._give_back(tag, entry, count, delay, error, keep_tag)

    def hand_back(self, tag: int) -> None:
        """Return a delivery to its place, as if it had never been made."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            self.settler.hand_back([(entry[0], None)], self.audited)

    def undeliver(self, pushes: Sequence[Push]) -> None:
        """Take back what was pushed, and what no consumer has seen: in memory it is the next again."""
        messages: list[Message] = []
        for push in pushes:
            if (entry := self.unacked.pop(push.tag, None)) is not None:
                messages.append((entry[0], push.payload, entry[1], entry[3]))
        if messages:
            self.add_claimed(sorted(messages, key=itemgetter(0)))

    def bury(self, tag: int, error: str) -> None:
        """Make a delivery a dead letter at once: it could never be delivered."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            if self.audited is not None:
                self.audited.not_delivered(entry[0], entry[3])
            self._bury(Failure(entry[0], entry[1] + 1, error=error))

    def _bury(self, failure: Failure) -> None:
        self.settler.bury(self.policy, failure)
        if self.backlog and self.demand:
            self.claimer.want(self)  # there was no room in memory, perhaps

    def _give_back(
        self, tag: int, entry: Unacked, count: bool, delay: float | None, error: str | None, keep_tag: bool
    ) -> None:
        id, attempts, _, detail = entry
        attempts += count
        if count and self.policy.exhausted(attempts, None if detail is None else detail.max_attempts):
            self._bury(Failure(id, attempts, error=error))
            return
        if delay is None:
            delay = self._backoff(attempts, detail) if count else 0.0
        self.settler.give_back(Failure(id, attempts, delay, tag if keep_tag else None, error), self.audited)

    def _backoff(self, attempts: int, detail: Detail | None) -> float:
        own = None if detail is None else detail.retry_interval
        return self.policy.backoff(attempts, None if own is None else own / 1000)

    def _ack_late(self, tag: int, consumer: int | None) -> bool:
        """Settle by a tag that is not outstanding: its message waits here to go out again, or its lease was lost."""
        if (message := self.tagged.pop(tag, None)) is not None:
            self.skip.add(message[0])
            self.settler.batch(self.policy, consumer).add(message[0], time.monotonic())
        elif (entry := self.stale.pop(tag, None)) is not None:
            self.settle_late(entry[0], entry[2], consumer)
        else:
            return False
        return True

    def settle_late(self, id: int, delivered: float, consumer: int | None) -> None:
        """Settle a message whose lease may no longer be this node's; it was delivered then, or must be there now."""
        self.settler.batch(self.policy, consumer, late=True).add(id, delivered)

    # What the engine does.

    def wants(self, now: float) -> bool:
        """Whether new messages should be leased to this node as they are stored."""
        return (
            not self.backlog
            and not self.claiming
            and not self.shared
            and (bool(self.demand) or now - self.last_demand < (WARM if self.pusher is None else COLD_SHARED))
            and self.room > 0
            and self.policy.may_lease_on_publish
        )

    @property
    def demand(self) -> int:
        """How many messages consumers wait for."""
        return len(self.waiters) + (0 if self.pusher is None else self.pusher.credits)

    @property
    def room(self) -> int:
        """How many more messages memory may take."""
        if self.ready_bytes >= self.claimer.most_bytes or not self.claimer.memory.room(self.ready_bytes):
            return 0
        if self.pusher is not None:  # what workers have is bounded by their credits, and no payload is kept of it
            return self.claimer.prefetch - len(self.ready)
        return self.claimer.prefetch - len(self.ready) - len(self.unacked)

    def add(self, messages: Iterable[Message], size: int) -> None:
        """Take messages leased to this node, which have `size` bytes together, as `weight` counts."""
        self.ready.extend(messages)
        self._hold(size)
        if self._rare or not self.interested:
            self.tidy_soon()
        if self.waiters or self.pusher is not None:
            self.dispatch()

    def add_claimed(self, messages: list[Message]) -> None:
        """Take messages in order of id; they may carry the tag of an earlier delivery, or belong before those here."""
        if messages:
            self.mean_bytes = sum(map(weight, messages)) // len(messages)
        for message in messages:
            if message[3] is not None and message[3].tag is not None:
                self.tagged[message[3].tag] = message
        if messages and self.ready and messages[0][0] < self.ready[-1][0]:
            messages = sorted([*self.ready, *messages], key=itemgetter(0))
            self.ready.clear()
            self._hold(-self.ready_bytes)
        self.add(messages, sum(map(weight, messages)))

    def _hold(self, size: int) -> None:
        """Note that memory holds so many more bytes."""
        self.ready_bytes += size
        self.claimer.memory.used += size

    def refilled(self) -> None:
        """Tell those who wait for a claim that it has come back, whatever it brought."""
        waiting, self.on_refill = self.on_refill, []
        for resume in waiting:
            self.settler.health.guard("session", getattr(resume, "__self__", None), resume)

    def more_in_store(self, first_id: int) -> None:
        """Messages from `first_id` on became ready in the store."""
        self.backlog = True
        self.news += 1
        self.floor.lower(first_id)
        if self.ready and first_id < self.ready[-1][0]:
            self.urgent = True
        if self.demand or self.on_refill:
            self.claimer.want(self)

    @property
    def _rare(self) -> bool:
        """Whether others may want what is here: it goes back soon when it is not consumed."""
        return self.shared or self.policy.taken_as_asked or self.pusher is not None

    def is_cold(self, now: float) -> bool:
        """Whether nobody has consumed for so long that what is here should go back."""
        return not self.demand and now - self.last_demand > (COLD_SHARED if self._rare else COLD)

    def look_again_at(self, now: float) -> float:
        """When it may have become cold."""
        if not self.demand:
            return self.last_demand + (COLD_SHARED if self._rare else COLD)
        return now + (COLD if not self._rare else COLD_SHARED if self.ready else WARM)

    def tidy_soon(self) -> None:
        """It may become cold sooner than was to be expected."""
        self.settler.tidying.at(self, time.monotonic() + COLD_SHARED)

    def dispatch(self) -> None:
        """Hand messages to those who wait, first come, first served; then to workers."""
        now = time.monotonic()
        while self.waiters:
            if self.policy.paused and self.policy.refuse_when_paused:
                self._refuse(self.waiters.popleft())
                continue
            delivery = self.deliver(now)
            if delivery is None:
                return
            waiter = self.waiters.popleft()
            try:
                waiter.deliver(delivery)
            except Exception as error:  # the delivery counts, so that a message on which everybody fails is given up
                self.settler.health.broken("session", waiter, error)
                self.give_back(delivery[0], error=told(error))
        if self.pusher is not None:
            self.pusher.push()

    def _refuse(self, waiter: Waiter) -> None:
        self.settler.health.guard("session", waiter, waiter.refuse)

    def take_all(self) -> list[tuple[int, int | None]]:
        """Empty the buffer: the (id, tag) of everything that was not delivered."""
        messages, self.ready = self.ready, deque()
        self._hold(-self.ready_bytes)
        self.tagged.clear()
        self.backlog = True
        self.news += 1
        taken = [(id, None if detail is None else detail.tag) for id, _, _, detail in messages if id not in self.skip]
        self.skip.clear()
        return taken

    def purge(self, high: int) -> list[int]:
        """Forget what was not delivered and is no newer than this id, without its priority; returns the ids."""
        newer = [message for message in self.ready if message[0] & POSITION > high and message[0] not in self.skip]
        kept = {message[0] for message in newer}
        gone = [id for id, _ in self.take_all() if id not in kept]
        self.add_claimed(newer)
        return gone

    def change_policy(self, policy: QueuePolicy | None) -> None:
        """An operator changed the queue, or (None) removed it."""
        if policy is None:
            self.closed = True
            self.take_all()
            self.unacked.clear()
            if self.pusher is not None:
                self.pusher.close()
            while self.waiters:
                self._refuse(self.waiters.popleft())
            return
        self.policy = policy
        self.audited = self.settler.audited(policy)
        self._batches.clear()
        self.tidy_soon()
        if policy.taken_as_asked:
            self._put_back(self.take_all())
        self.more_in_store(self.floor.value + 1)
        self.dispatch()

    def decline(self, messages: Iterable[Message]) -> None:
        """Give back at once what was leased before the queue's policy forbade it."""
        self._put_back([(id, None if detail is None else detail.tag) for id, _, _, detail in messages])
        self.backlog = True
        self.news += 1

    def _put_back(self, taken: list[tuple[int, int | None]]) -> None:
        if taken:
            self.settler.hand_back(taken)
            self.back_with = self.settler.round

    def lose_leases(self) -> None:
        """The leases are no longer this node's: forget what was not delivered, settle late acknowledgements by id."""
        self.take_all()
        self.back_with = 0  # what was on its way back is reaped
        self.stale = self.unacked
        self.unacked = {}
        self._deadlines.clear()
        if self.pusher is not None:
            self.pusher.close()
        self.floor.reset()

    # Deadlines.

    def _time(self, tags: Sequence[int], attempts: int, now: float) -> None:
        """Note the deadline of deliveries; those of one burst share an entry."""
        if not self._deadlines.is_open(now, attempts):
            deadline = now + (self.policy.ack_timeout or 0.0) + self.policy.backoff(attempts + 1)
            self._deadlines.begin(now, attempts, deadline)
            self.settler.timed.at(self, deadline)
        self._deadlines.join(tags)

    def expire_deliveries(self, now: float) -> None:
        """Return what was delivered with `timed` and not acknowledged in time, keeping its tag; and what was pushed."""
        for tag in self._deadlines.expired(now):
            entry = self.unacked.pop(tag, None)
            if entry is not None:
                self._give_back(tag, entry, True, 0.0, "not acknowledged in time", keep_tag=True)
        if self.pusher is not None:
            self.pusher.expire(now)

    @property
    def next_deadline(self) -> float | None:
        """When deliveries are to be looked at next."""
        times = [self._deadlines.next, None if self.pusher is None else self.pusher.deadlines.next]
        return min((time for time in times if time is not None), default=None)

    def _expired(self, expires_at: float | None, id: int) -> bool:
        """Whether a buffered message has outlived its time; the store's sweep then takes it."""
        if expires_at is None or expires_at > time.monotonic():
            return False
        self.settler.hand_back([(id, None)])
        return True


class DeadLetterBuffer(QueueBuffer):
    """The dead letters of a queue, for consumers that read them one at a time. Nothing is prefetched."""

    dead = True

    @property
    def room(self) -> int:
        return len(self.waiters)

    def wants(self, now: float) -> bool:
        return False

    def _give_back(
        self, tag: int, entry: Unacked, count: bool, delay: float | None, error: str | None, keep_tag: bool
    ) -> None:
        """A dead letter goes back unchanged: behind the others, or with `count` off, unseen, to its place."""
        if count:
            self.settler.give_back(Failure(entry[0], entry[1]), self.audited)
        else:
            self.settler.hand_back([(entry[0], None)], self.audited)
        self.backlog = True
