"""Hands the messages of one local queue to its consumers.

A consumer grants credits: while it has some, messages are pushed to it as they come, in turns with the other consumers
of the queue, and each push takes a credit. A message that it does not finish by its deadline is returned. A `Waiter` is
a consumer with one credit and without a deadline; waiters have their turn in the order of their arrival, before others.

Of a queue with a single active consumer only that one is served: the credits of the others count from their turn on.

The local queue calls `dispatch` when it has messages. `Dispatched` lists the members of a queue that a dispatcher uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple, Protocol

from queues.engine.clock import now
from queues.engine.consume.backlog import Backlog
from queues.engine.consume.message_runs import UnackedMessages
from queues.engine.faults import told
from queues.engine.health import Health
from queues.engine.message import Delivery, Detail, Message
from queues.engine.policies import QueuePolicy

#: Most messages pushed to one consumer before the next one's turn, and most bytes pushed at once.
TURN = 100
TURN_BYTES = 256 * 1024
MAX_CREDITS = 2**32 - 1


class Push(NamedTuple):
    """A message on its way to a consumer. `id` is the one that it was published with."""

    tag: int
    id: int
    payload: bytes
    attempts: int
    detail: Detail | None


@dataclass(slots=True, eq=False)
class PushRun:
    """Messages on their way to a consumer that have attempts and detail in common; `ids` as `Push` has them."""

    tags: Sequence[int]
    ids: Sequence[int]
    payloads: list[bytes]
    attempts: int
    detail: Detail | None

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Push]:
        for tag, id, payload in zip(self.tags, self.ids, self.payloads, strict=True):
            yield Push(tag, id, payload, self.attempts, self.detail)


class PushConsumer(ABC):
    """A consumer that is pushed to. `key` is its API key; `credits` are granted by `Dispatcher.grant`."""

    __slots__ = ("credits", "key")

    #: Whether it waits for one message, without a deadline and before those with more credits.
    waits: ClassVar[bool] = False

    def __init__(self, key: int | None) -> None:
        self.key = key
        self.credits = 0

    @abstractmethod
    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        """Take messages, due back at `deadline` (monotonic; None: never)."""

    @abstractmethod
    def expired(self, tags: list[int]) -> None:
        """Deliveries were not finished in time: they are no longer this consumer's."""

    def refuse(self) -> None:  # noqa: B027
        """Its credits are taken back: the queue was removed. Workers need not know."""

    def add_credits(self, count: int) -> None:
        """The dispatcher may push so many more messages, or fewer when `count` is negative."""
        self.credits += count


class Waiter(PushConsumer):
    """A consumer that waits for one message: `LocalQueue.wait` gives it its one credit."""

    __slots__ = ()

    waits = True

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Take a message; called once for each `LocalQueue.wait`."""

    @abstractmethod
    def refuse(self) -> None:
        """Nothing will come: the queue is paused and refuses, or was removed."""

    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        """Take the one message."""
        [run] = runs
        [tag], [payload] = run.tags, run.payloads
        self.deliver((tag, payload, run.attempts, run.detail))

    def expired(self, tags: list[int]) -> None:
        """It has no deadline."""


class Dispatched(Protocol):
    """The queue of a dispatcher: `LocalQueue` says what each member is."""

    policy: QueuePolicy
    backlog: Backlog
    health: Health
    ready: Sequence[Message]
    unacked: UnackedMessages

    def push(self, now: float, most: int, key: int | None) -> list[PushRun]: ...
    def give_back(self, tag: int, *, error: str) -> None: ...
    def enter(self, consumer: object) -> None: ...
    def note_demand(self, now: float) -> None: ...
    def demand_ended(self) -> None: ...
    def want(self) -> None: ...
    def due_back(self, deadline: float, tags: Sequence[int], consumer: PushConsumer) -> None: ...


class Dispatcher:
    """The consumers of one queue that wait on this node."""

    def __init__(self, queue: Dispatched) -> None:
        self._queue = queue
        #: Consumers with credits: first the waiters, then the others in the order of their turns.
        self._consumers: deque[PushConsumer] = deque()
        self._waiters = 0
        #: Messages that consumers wait for.
        self.demand = 0
        self._dispatching = False
        #: Deadlines that consumers have moved, by tag.
        self._moved: dict[int, float] = {}
        #: Whether workers have come.
        self.with_workers = False
        #: The only consumer that is served, and the others that have credits; the latter is None if all are served.
        self._active: object | None = None
        self._standby: dict[PushConsumer, None] | None = None

    def expect_workers(self) -> None:
        """Workers have come."""
        self.with_workers = True

    # A single active consumer.

    def serve_only(self, active: object | None) -> list[PushConsumer]:
        """Of all consumers serve this one alone, or none for now. Returns those with credits that have to wait."""
        waiting = [*self._consumers, *(self._standby or ())]
        self._active, self._standby = active, {}
        self._serve(waiting)
        return list(self._standby)

    def serve_all(self) -> None:
        """Serve every consumer."""
        waiting, self._active, self._standby = [*self._consumers, *(self._standby or ())], None, None
        self._serve(waiting)

    def _serve(self, consumers: Iterable[PushConsumer]) -> None:
        """Serve those with credits, all there are, or let them stand by."""
        self._consumers.clear()
        self._waiters = self.demand = 0
        for consumer in consumers:
            if self._stands_by(consumer):
                assert self._standby is not None
                self._standby[consumer] = None
            else:
                self._line_up(consumer)
                self.demand += consumer.credits
        if self.demand:
            self._queue.note_demand(now())
        else:
            self._queue.demand_ended()
        self.dispatch()

    def _stands_by(self, consumer: object) -> bool:
        return self._standby is not None and consumer is not self._active

    # Credits.

    def grant(self, consumer: PushConsumer, credits: int) -> None:
        """Let so many more messages be pushed to a consumer, up to 2³²-1 in all; push the prefetched ones."""
        credits = min(credits, MAX_CREDITS - consumer.credits)
        if not credits:
            return
        if self._standby is not None and self._stands_by(consumer):
            consumer.add_credits(credits)
            self._standby[consumer] = None
            self._queue.enter(consumer)
            self.dispatch()
            return
        if not consumer.credits:
            self._line_up(consumer)
        consumer.add_credits(credits)
        self.demand += credits
        self._queue.note_demand(now())
        self.dispatch()
        if self.demand and self._queue.backlog.unclaimed:
            self._queue.want()

    def _line_up(self, consumer: PushConsumer) -> None:
        if consumer.waits:
            self._consumers.insert(self._waiters, consumer)
            self._waiters += 1
        else:
            self._consumers.append(consumer)

    def withdraw(self, consumer: PushConsumer) -> None:
        """Push nothing more to a consumer; a no-op when it has no credits."""
        if self._standby is not None and consumer in self._standby:
            del self._standby[consumer]
            consumer.add_credits(-consumer.credits)
        if consumer.credits:
            self._consumers.remove(consumer)
            self._waiters -= consumer.waits
            self.demand -= consumer.credits
            consumer.add_credits(-consumer.credits)
            if not self.demand:
                self._queue.demand_ended()

    def dispatch(self) -> None:
        """Hand prefetched messages to consumers."""
        queue, consumers = self._queue, self._consumers
        if self._standby and queue.policy.paused and queue.policy.refuse_when_paused:
            self._refuse([consumer for consumer in self._standby if consumer.waits])
        if not consumers or self._dispatching:  # a consumer that asks for more while it is given one has its turn
            return
        if queue.policy.paused:
            if queue.policy.refuse_when_paused:
                self._refuse(islice(consumers, self._waiters))
            return
        time = now()
        queue.note_demand(time)
        self._dispatching = True
        try:
            share = -(-len(queue.ready) // len(consumers))
            while consumers and queue.ready and self._push(share, time):
                pass
        finally:
            self._dispatching = False

    def _push(self, share: int, time: float) -> bool:
        """Give the next consumer its turn; returns whether there was a message for it."""
        queue, consumers = self._queue, self._consumers
        consumer = consumers[0]
        turn = min(consumer.credits, share, TURN if len(consumers) > 1 else share)
        runs = queue.push(time, turn, consumer.key)
        if not runs:
            return False
        count = sum(map(len, runs))
        consumer.add_credits(-count)
        self.demand -= count
        consumers.popleft()
        self._waiters -= consumer.waits
        if consumer.credits:
            self._line_up(consumer)
        deadline = None if consumer.waits else self._add_deadline(consumer, runs, time)
        try:
            consumer.push(runs, deadline)
        except Exception as error:  # the deliveries count: a message that fails with every consumer is given up
            queue.health.broken("session", consumer, error)
            self.withdraw(consumer)
            for tag in [tag for run in runs for tag in run.tags]:
                queue.give_back(tag, error=told(error))
        return True

    def close(self) -> None:
        """The queue was removed: refuse every consumer, and forget deadlines."""
        self.forget_deadlines()
        self._refuse([*self._consumers, *(self._standby or ())])

    def _refuse(self, consumers: Iterable[PushConsumer]) -> None:
        """Take back the credits of consumers."""
        for consumer in tuple(consumers):
            self.withdraw(consumer)
            self._queue.health.guard("session", consumer, consumer.refuse)

    # Deadlines.

    def _add_deadline(self, consumer: PushConsumer, runs: list[PushRun], time: float) -> float | None:
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        for run in runs:  # each by itself: its tags are consecutive
            self._queue.due_back(time + timeout, run.tags, consumer)
        return time + timeout

    def beat(self, tag: int) -> float | None:
        """The worker goes on: move the deadline, and return it. Raises KeyError when the delivery is no longer its."""
        self._queue.unacked[tag]
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        deadline = self._moved[tag] = now() + timeout
        return deadline

    def completed(self, tags: Iterable[int]) -> None:
        """Remove finished deliveries."""
        if self._moved:
            for tag in tags:
                self._moved.pop(tag, None)

    def expire(self, tags: Sequence[int], consumer: PushConsumer, time: float) -> None:
        """Take back those of these deliveries that are unfinished, and whose deadline was not moved."""
        late = []
        for tag in self._queue.unacked.among(tags):
            moved = self._moved.pop(tag, time)
            if moved > time:
                self._queue.due_back(moved, (tag,), consumer)
            else:
                late.append(tag)
        self.completed(tags)
        for tag in late:
            self._queue.give_back(tag, error="not finished by its deadline")
        if late:
            self._queue.health.guard("session", consumer, consumer.expired, late)

    def forget_deadlines(self) -> None:
        """The queue is gone, or the leases are: no delivery is this node's any more."""
        self._moved.clear()
