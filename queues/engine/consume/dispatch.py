"""Hands the messages of one local queue to its consumers.

Two kinds of consumers wait. A `Waiter` takes one message; waiters are served in the order of their arrival, before
workers. A worker, a `PushConsumer`, grants credits: while it has some, messages are pushed to it as they come, in turns
with the other workers of the queue, and each push takes a credit. A message that a worker does not finish by its
deadline is returned.

The local queue calls `dispatch` when it has messages. `Dispatched` lists the members of a queue that a dispatcher uses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from queues.engine.clock import now
from queues.engine.consume.backlog import Backlog
from queues.engine.consume.deadlines import MovableDeadlines
from queues.engine.faults import told
from queues.engine.health import Health
from queues.engine.message import Delivery, Detail
from queues.engine.policies import QueuePolicy

#: Most messages pushed to one worker before the next one's turn, and most bytes pushed at once.
TURN = 100
TURN_BYTES = 256 * 1024
MOST_CREDITS = 2**32 - 1


class Push(NamedTuple):
    """A message on its way to a worker. `id` is the one that it was published with."""

    tag: int
    id: int
    payload: bytes
    attempts: int
    detail: Detail | None


class Waiter(Protocol):
    """A consumer that waits for one message."""

    def deliver(self, delivery: Delivery) -> None:
        """Take a message; called once for each `LocalQueue.wait`."""

    def refuse(self) -> None:
        """Nothing will come: the queue is paused and refuses, or the node is stopping."""


class PushConsumer(ABC):
    """A consumer that is pushed to. `key` is its API key; `credits` are granted by `Dispatcher.grant`."""

    __slots__ = ("credits", "key")

    def __init__(self, key: int | None) -> None:
        self.key = key
        self.credits = 0

    @abstractmethod
    def push(self, messages: list[Push], deadline: float | None) -> None:
        """Take messages, due back at `deadline` (monotonic; None: never)."""

    @abstractmethod
    def expired(self, tags: list[int]) -> None:
        """Deliveries were not finished in time: they are no longer this worker's."""

    def add_credits(self, count: int) -> None:
        """The dispatcher may push so many more messages, or fewer when `count` is negative."""
        self.credits += count


class Dispatched(Protocol):
    """The queue of a dispatcher."""

    policy: QueuePolicy
    backlog: Backlog

    @property
    def health(self) -> Health:
        """Where faults of consumers are counted."""

    @property
    def ready(self) -> Sequence[object]:
        """The prefetched messages."""

    @property
    def unacked(self) -> Mapping[int, object]:
        """The delivered messages, by their tags."""

    def deliver(self, now: float) -> Delivery | None:
        """Deliver the next message."""

    def push(self, now: float, most: int, key: int | None) -> list[Push]:
        """Deliver messages to a worker with this API key."""

    def give_back(self, tag: int, *, error: str) -> None:
        """A delivery failed."""

    def note_demand(self, now: float) -> None:
        """A consumer waits."""

    def demand_ended(self) -> None:
        """No consumer waits any more: the last one has left."""

    def want(self) -> None:
        """Have messages claimed soon."""

    def expires_at(self, time: float) -> None:
        """Call `expire_deliveries` at this time."""


class Dispatcher:
    """The consumers of one queue that wait on this node."""

    def __init__(self, queue: Dispatched) -> None:
        self._queue = queue
        self._waiters: deque[Waiter] = deque()
        #: Workers with credits, in the order of their turns.
        self._workers: deque[PushConsumer] = deque()
        self._credits = 0
        self._deadlines = MovableDeadlines()

    @property
    def demand(self) -> int:
        """Messages that consumers wait for."""
        return len(self._waiters) + self._credits

    @property
    def waiting(self) -> int:
        """Waiters."""
        return len(self._waiters)

    # Waiters.

    def wait(self, waiter: Waiter) -> None:
        """Deliver the next message to `waiter`, now or when there is one."""
        self._waiters.append(waiter)
        self.dispatch()

    def cancel(self, waiter: Waiter) -> None:
        """Wait no longer; a no-op when the waiter has been served."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            if not self.demand:
                self._queue.demand_ended()

    def dispatch(self) -> None:
        """Hand messages to waiters, first come, first served; then to workers."""
        time, queue, waiters = now(), self._queue, self._waiters
        while waiters:
            if queue.policy.paused and queue.policy.refuse_when_paused:
                self._refuse(waiters.popleft())
                continue
            delivery = queue.deliver(time)
            if delivery is None:
                return
            waiter = waiters.popleft()
            try:
                waiter.deliver(delivery)
            except Exception as error:  # the delivery counts: a message that fails with every consumer is given up
                queue.health.broken("session", waiter, error)
                queue.give_back(delivery[0], error=told(error))
        if self._workers:
            self.push()

    def close(self) -> None:
        """The queue was removed: refuse every waiter, and forget deadlines."""
        self.forget_deadlines()
        while self._waiters:
            self._refuse(self._waiters.popleft())

    def _refuse(self, waiter: Waiter) -> None:
        self._queue.health.guard("session", waiter, waiter.refuse)

    # Workers.

    def grant(self, worker: PushConsumer, credits: int) -> None:
        """Let so many more messages be pushed to a worker, up to 2³²-1 in all; push the prefetched ones."""
        credits = min(credits, MOST_CREDITS - worker.credits)
        if not credits:
            return
        if not worker.credits:
            self._workers.append(worker)
        worker.add_credits(credits)
        self._credits += credits
        self._queue.note_demand(now())
        self.dispatch()
        if self._credits and self._queue.backlog.unclaimed:
            self._queue.want()

    def withdraw(self, worker: PushConsumer) -> None:
        """Push nothing more to a worker."""
        if worker.credits:
            self._workers.remove(worker)
            self._credits -= worker.credits
            worker.add_credits(-worker.credits)
            if not self.demand:
                self._queue.demand_ended()

    def push(self) -> None:
        """Hand prefetched messages to workers."""
        queue, workers = self._queue, self._workers
        time = now()
        if workers:
            queue.note_demand(time)
        share = -(-len(queue.ready) // max(1, len(workers)))
        while workers and queue.ready and not queue.policy.paused:
            worker = workers[0]
            turn = TURN if len(workers) > 1 else share
            messages = queue.push(time, min(worker.credits, share, turn), worker.key)
            if not messages:
                break
            worker.add_credits(-len(messages))
            self._credits -= len(messages)
            workers.popleft()
            if worker.credits:
                workers.append(worker)
            deadline = self._add_deadline(worker, messages, time)
            try:
                worker.push(messages, deadline)
            except Exception as error:  # the deliveries count: a message that fails with every worker is given up
                queue.health.broken("session", worker, error)
                self.withdraw(worker)
                for message in messages:
                    queue.give_back(message.tag, error=told(error))

    def _add_deadline(self, worker: PushConsumer, messages: list[Push], time: float) -> float | None:
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        first, last = messages[0].tag, messages[-1].tag
        consecutive = last - first == len(messages) - 1
        tags: Sequence[int] = range(first, last + 1) if consecutive else [message.tag for message in messages]
        self._deadlines.add(time + timeout, tags, worker)
        self._queue.expires_at(time + timeout)
        return time + timeout

    def beat(self, tag: int) -> float | None:
        """The worker goes on: move the deadline, and return it. Raises KeyError when the delivery is no longer its."""
        self._queue.unacked[tag]
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        deadline = now() + timeout
        self._deadlines.move(tag, deadline)
        return deadline

    def completed(self, tags: Iterable[int]) -> None:
        """Remove finished deliveries."""
        if self._deadlines.moved:
            for tag in tags:
                self._deadlines.drop(tag)

    @property
    def next_deadline(self) -> float | None:
        """The earliest time at which `expire` has work."""
        return self._deadlines.next

    def expire(self, time: float) -> None:
        """Take back deliveries that were not finished in time."""
        for tags, worker in self._deadlines.expired(time):
            late = [tag for tag in tags if tag in self._queue.unacked]
            for tag in late:
                self._queue.give_back(tag, error="not finished by its deadline")
            if late:
                self._queue.health.guard("session", worker, worker.expired, late)

    def forget_deadlines(self) -> None:
        """The queue is gone, or the leases are: no delivery is this node's any more."""
        self._deadlines.clear()
