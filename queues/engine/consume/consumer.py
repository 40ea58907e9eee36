"""Consumers that messages are pushed to.

A consumer grants credits: while it has some, messages are pushed to it as they come, in turns with the other consumers
of the queue, and each push takes a credit. A message that it does not finish by its deadline is returned. A `Waiter` is
a consumer with one credit and without a deadline; waiters have their turn in the order of their arrival, before others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from queues.engine.consume.message_runs import PushRun
from queues.engine.message import Delivery


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
        """Its credits are taken back, because the queue was removed. Workers may ignore this."""

    def add_credits(self, count: int) -> None:
        """The dispatcher's credits change by `count`."""
        self.credits += count


class Waiter(PushConsumer):
    """A consumer that waits for one message: `PrefetchedQueue.wait` gives it its one credit."""

    __slots__ = ()

    waits = True

    @abstractmethod
    def deliver(self, delivery: Delivery) -> None:
        """Take a message; called once for each `PrefetchedQueue.wait`."""

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
