"""Pushing messages to workers: each push takes a credit, and what is not finished by its deadline comes back.

A worker grants credits for a queue; while it has some, messages are pushed to it as they come, in turns with the
other workers of the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from queues.engine.clock import now
from queues.engine.deadlines import MovableDeadlines
from queues.engine.faults import told
from queues.engine.message import Detail

if TYPE_CHECKING:
    from queues.engine.buffer import QueueBuffer

#: Most messages pushed to one worker before the next one's turn.
TURN = 100
TURN_BYTES = 256 * 1024
MOST_CREDITS = 2**32 - 1


class Push(NamedTuple):
    """A message on its way to a worker. `id` is the one by which it is found for ever."""

    tag: int
    id: int
    payload: bytes
    attempts: int
    detail: Detail | None


class Worker(Protocol):
    """A consumer that is pushed to. `credits` is kept by the pusher; `key` is its API key."""

    credits: int
    key: int | None

    def push(self, messages: list[Push], deadline: float | None) -> None:
        """Take messages, due back at `deadline` (monotonic; None: never)."""

    def expired(self, tags: list[int]) -> None:
        """These were not finished in time: they are no longer this worker's."""


class Pusher:
    """The workers of one queue on this node."""

    def __init__(self, buffer: QueueBuffer) -> None:
        self.buffer = buffer
        #: Workers with credits, in the order of their turns.
        self.workers: deque[Worker] = deque()
        self.credits = 0
        self.deadlines = MovableDeadlines()

    def grant(self, worker: Worker, credits: int) -> None:
        """Let so many more messages be pushed to a worker, up to 2³²-1 in all; push what is there."""
        credits = min(credits, MOST_CREDITS - worker.credits)
        if not credits:
            return
        if not worker.credits:
            self.workers.append(worker)
        worker.credits += credits
        self.credits += credits
        buffer = self.buffer
        buffer.last_demand = now()
        buffer.dispatch()
        if self.credits and buffer.backlog:
            buffer.claimer.want(buffer)

    def withdraw(self, worker: Worker) -> None:
        """Push nothing more to a worker."""
        if worker.credits:
            self.workers.remove(worker)
            self.credits -= worker.credits
            worker.credits = 0

    def push(self) -> None:
        """Hand out what is in memory."""
        buffer, workers = self.buffer, self.workers
        time = now()
        if workers:
            buffer.last_demand = time
        if buffer.urgent and workers:  # what is claimed now comes first, and then this is called again
            buffer.claimer.want(buffer)
            return
        share = -(-len(buffer.ready) // max(1, len(workers)))
        while workers and buffer.ready and not buffer.policy.paused:
            worker = workers[0]
            messages = buffer.take(time, min(worker.credits, share, TURN), worker.key)
            if not messages:
                break
            worker.credits -= len(messages)
            self.credits -= len(messages)
            workers.popleft()
            if worker.credits:
                workers.append(worker)
            deadline = self._time(worker, messages, time)
            try:
                worker.push(messages, deadline)
            except Exception as error:  # the deliveries count, so that what everybody fails on is given up
                buffer.settler.health.broken("session", worker, error)
                self.withdraw(worker)
                for message in messages:
                    buffer.give_back(message.tag, error=told(error))

    def _time(self, worker: Worker, messages: list[Push], time: float) -> float | None:
        timeout = self.buffer.policy.ack_timeout
        if timeout is None:
            return None
        first, last = messages[0].tag, messages[-1].tag
        consecutive = last - first == len(messages) - 1
        tags: Sequence[int] = range(first, last + 1) if consecutive else [message.tag for message in messages]
        self.deadlines.add(time + timeout, tags, worker)
        self.buffer.settler.timed.at(self.buffer, time + timeout)
        return time + timeout

    def beat(self, tag: int) -> float | None:
        """The worker is still at it: move the deadline, and return it. Raises KeyError when it is not its any more."""
        self.buffer.unacked[tag]
        timeout = self.buffer.policy.ack_timeout
        if timeout is None:
            return None
        deadline = now() + timeout
        self.deadlines.move(tag, deadline)
        return deadline

    def expire(self, time: float) -> None:
        """Take back what was not finished in time."""
        for tags, worker in self.deadlines.expired(time):
            late = [tag for tag in tags if tag in self.buffer.unacked]
            for tag in late:
                self.buffer.give_back(tag, error="not finished by its deadline")
            if late:
                self.buffer.settler.health.guard("session", worker, worker.expired, late)

    def close(self) -> None:
        """The queue is gone, or the leases are: nothing here is anybody's any more."""
        self.deadlines.clear()
