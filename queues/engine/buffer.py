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
from itertools import chain, islice
from typing import TYPE_CHECKING, Protocol

from queues.engine.message import Delivery, Failure, Message
from queues.engine.policy import QueuePolicy

if TYPE_CHECKING:
    from queues.engine.claimer import Claimer
    from queues.engine.settler import AckBatch, Settler

#: Seconds without a consumer after which a node no longer takes new messages for a queue, and hands back its own:
#: soon where others wait for them.
WARM = 1.0
COLD = 5.0
COLD_SHARED = 0.2

#: id, attempts that failed before, delivery tag kept in the store or None, own limit of attempts, time of delivery.
Unacked = tuple[int, int, int | None, int | None, float]


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
        self.next_tag = first_tag
        self.last_tag: int | None = None
        #: Whether the store may have ready messages that this node has not claimed; `news` counts reasons to think so.
        self.backlog = True
        self.news = 0
        self.low = 0
        #: A claim took everything it saw, and more has come since: the next publish takes the rest along.
        self.nearly_done = False
        self.claiming = False
        self.storing = 0
        self.shared = False
        self.interested = False
        self.closed = False
        self.last_demand = -1e9
        #: Messages that a consumer asked for since the last claim and did not get.
        self.shortage = 0
        self.on_refill: list[Callable[[], None]] = []
        #: For each number of earlier attempts: bursts of (deadline, tags), in order of deadline.
        self._deadlines: dict[int, deque[tuple[float, list[Sequence[int]]]]] = {}
        self._burst: list[Sequence[int]] = []
        self._burst_key: tuple[float, int] | None = None
        self._batches: dict[int | None, AckBatch] = {}

    # What consumers do.

    def deliver(self, now: float, timed: bool = False) -> Delivery | None:
        """The next message, or None when none is in memory; then `may_refill` tells whether waiting could help.

        With `timed` the message comes back by itself unless it is acknowledged within the queue's ack timeout
        and, on top, the backoff of its attempt.
        """
        self.last_demand = now
        ready = self.ready
        while ready and not self.policy.paused:
            id, payload, attempts, detail = ready.popleft()
            self.ready_bytes -= len(payload)
            if detail is None:
                tag = self.next_tag
                self.next_tag = tag + 1
                self.unacked[tag] = (id, attempts, None, None, now)
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
                self.unacked[tag] = (id, attempts, detail.tag, detail.max_attempts, now)
            if timed:
                self._time((tag,), attempts, now)
            if self.backlog and len(ready) < self.claimer.low_water:
                self.claimer.want(self)
            return tag, payload, attempts, detail
        if self.backlog:
            self.shortage += 1
            self.claimer.want(self)
        return None

    def deliver_many(self, now: float, count: int) -> list[Delivery]:
        """Up to `count` messages, each with a deadline as `deliver` gives it with `timed`."""
        ready = self.ready
        plain = self._plain(count) if ready else 0
        if not plain:
            found: list[Delivery] = []
            while len(found) < count and (delivery := self.deliver(now, timed=True)) is not None:
                found.append(delivery)
            self.shortage = max(self.shortage, count - len(found))
            return found
        self.last_demand = now
        messages = [ready.popleft() for _ in range(plain)]
        self.ready_bytes -= sum([len(message[1]) for message in messages])
        first = self.next_tag
        self.next_tag = first + plain
        tags = range(first, first + plain)
        self.unacked.update(zip(tags, [(message[0], 0, None, None, now) for message in messages], strict=True))
        self._time(tags, 0, now)
        if self.backlog and len(ready) < self.claimer.low_water:
            self.claimer.want(self)
        taken: list[Delivery] = [(tag, message[1], 0, None) for tag, message in zip(tags, messages, strict=True)]
        return taken if plain == count else taken + self.deliver_many(now, count - plain)

    def _plain(self, most: int) -> int:
        """How many messages at the head are on their first delivery and carry nothing but a body."""
        if self.policy.paused:
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
                batch = self._batches[consumer] = self.settler.batch(self.policy.retention, consumer)
            batch.add_many([entry[0] for entry in known], [entry[4] for entry in known])
            if self.policy.concurrency_limit is not None:
                self.settler.hurry()  # their places may be wanted
            if self.waiters and self.backlog:
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

    def bury(self, tag: int, error: str) -> None:
        """Make a delivery a dead letter at once: it could never be delivered."""
        entry = self.unacked.pop(tag, None)
        if entry is not None:
            self.settler.bury(self.policy, Failure(entry[0], entry[1] + 1, error=error))

    def _give_back(
        self, tag: int, entry: Unacked, count: bool, delay: float | None, error: str | None, keep_tag: bool
    ) -> None:
        id, attempts, _, own_limit, _ = entry
        attempts += count
        if count and self.policy.exhausted(attempts, own_limit):
            self.settler.bury(self.policy, Failure(id, attempts, error=error))
            return
        wait = (self.policy.backoff(attempts) if count else 0.0) if delay is None else delay
        self.settler.give_back(Failure(id, attempts, wait, tag if keep_tag else None, error))

    def _ack_late(self, tag: int, consumer: int | None) -> bool:
        """Settle by a tag that is not outstanding: its message waits here to go out again, or its lease was lost."""
        if (message := self.tagged.pop(tag, None)) is not None:
            self.skip.add(message[0])
            id, delivered = message[0], time.monotonic()
        elif (entry := self.stale.pop(tag, None)) is not None:
            id, delivered = entry[0], entry[4]
        else:
            return False
        self.settler.batch(self.policy.retention, consumer).add(id, delivered)
        return True

    # What the engine does.

    def wants(self, now: float) -> bool:
        """Whether new messages should be leased to this node as they are stored."""
        return (
            not self.backlog
            and not self.claiming
            and not self.shared
            and (bool(self.waiters) or now - self.last_demand < WARM)
            and self.room > 0
            and self.policy.may_lease_on_publish
        )

    @property
    def room(self) -> int:
        """How many more messages memory may take."""
        if self.ready_bytes >= self.claimer.most_bytes:
            return 0
        return self.claimer.prefetch - len(self.ready) - len(self.unacked)

    def add(self, messages: Iterable[Message], size: int) -> None:
        """Take messages leased to this node, whose payloads have `size` bytes together."""
        self.ready.extend(messages)
        self.ready_bytes += size
        if self.waiters:
            self.dispatch()

    def add_claimed(self, messages: list[Message]) -> None:
        """Take claimed messages, which may carry the tag of an earlier delivery."""
        for message in messages:
            if message[3] is not None and message[3].tag is not None:
                self.tagged[message[3].tag] = message
        self.add(messages, sum(len(message[1]) for message in messages))

    def refilled(self) -> None:
        """Tell those who wait for a claim that it has come back, whatever it brought."""
        waiting, self.on_refill = self.on_refill, []
        for resume in waiting:
            resume()

    def more_in_store(self, first_id: int) -> None:
        """Messages from `first_id` on became ready in the store."""
        self.backlog = True
        self.news += 1
        self.low = min(self.low, first_id - 1)
        if self.waiters or self.on_refill:
            self.claimer.want(self)

    def is_cold(self, now: float) -> bool:
        """Whether nobody has consumed for so long that what is here should go back."""
        rare = self.shared or self.policy.concurrency_limit is not None
        return not self.waiters and now - self.last_demand > (COLD_SHARED if rare else COLD)

    def dispatch(self) -> None:
        """Hand messages to those who wait, first come, first served."""
        now = time.monotonic()
        while self.waiters:
            if self.policy.paused and self.policy.refuse_when_paused:
                self.waiters.popleft().refuse()
                continue
            delivery = self.deliver(now)
            if delivery is None:
                return
            self.waiters.popleft().deliver(delivery)

    def take_all(self) -> list[tuple[int, int | None]]:
        """Empty the buffer: the (id, tag) of everything that was not delivered."""
        messages, self.ready = self.ready, deque()
        self.ready_bytes = 0
        self.tagged.clear()
        self.backlog = True
        taken = [(id, None if detail is None else detail.tag) for id, _, _, detail in messages if id not in self.skip]
        self.skip.clear()
        return taken

    def change_policy(self, policy: QueuePolicy | None) -> None:
        """An operator changed the queue, or (None) removed it."""
        if policy is None:
            self.closed = True
            self.take_all()
            self.unacked.clear()
            while self.waiters:
                self.waiters.popleft().refuse()
            return
        self.policy = policy
        self._batches.clear()
        self.more_in_store(self.low + 1)
        self.dispatch()

    def lose_leases(self) -> None:
        """The leases are no longer this node's: forget what was not delivered, settle late acknowledgements by id."""
        self.take_all()
        self.stale = self.unacked
        self.unacked = {}
        self._deadlines.clear()
        self._burst_key = None
        self.low = 0

    # Deadlines.

    def _time(self, tags: Sequence[int], attempts: int, now: float) -> None:
        """Note the deadline of deliveries; those of one burst share an entry."""
        if self._burst_key != (now, attempts):
            self._burst_key = (now, attempts)
            self._burst = []
            deadline = now + (self.policy.ack_timeout or 0.0) + self.policy.backoff(attempts + 1)
            self._deadlines.setdefault(attempts, deque()).append((deadline, self._burst))
            self.settler.timed.add(self)
        self._burst.append(tags)

    def expire_deliveries(self, now: float) -> None:
        """Return what was delivered with `timed` and not acknowledged in time; it keeps its tag."""
        for bursts in self._deadlines.values():
            while bursts and bursts[0][0] <= now:
                for tag in chain.from_iterable(bursts.popleft()[1]):
                    entry = self.unacked.pop(tag, None)
                    if entry is not None:
                        self._give_back(tag, entry, True, 0.0, "not acknowledged in time", keep_tag=True)

    @property
    def has_deadlines(self) -> bool:
        return any(self._deadlines.values())

    def _expired(self, expires_at: float | None, id: int) -> bool:
        """Whether a buffered message has outlived its time; the store's sweep then takes it."""
        if expires_at is None or expires_at > time.time():
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
        """A dead letter goes back unchanged."""
        self.settler.hand_back([(entry[0], None)])
        self.backlog = True
