"""The protocols that can be loaded. A driver is a value that load processes are given; each makes its own ends."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


class BenchProducer(Protocol):
    """One publishing connection. Messages are published in the order of their positions."""

    def publish(self, first: int, count: int) -> None:
        """Publish so many messages, from position `first` on, in one go. They are durable when confirmed."""

    def confirmed(self, wait: float) -> int:
        """The number of messages confirmed so far; waits at most `wait` seconds for the broker's next confirmation."""

    def fileno(self) -> int:
        """The socket's, to wait for many."""

    def close(self) -> None:
        """Drop the connection."""


class BenchConsumer(Protocol):
    """One consuming connection."""

    def receive(self, wait: float) -> bytes | bytearray:
        """Take and acknowledge what has come: the column of its numbers. Waits at most so many seconds for it."""

    def settle(self) -> None:
        """Return when the broker is known to have taken all acknowledgements, as far as the protocol tells."""

    def close(self) -> None:
        """Drop the connection."""


class BenchSubscriber(BenchConsumer, Protocol):
    """A consuming connection that is one of many in a process."""

    def ask(self, count: int) -> None:
        """Ask for so many messages, and acknowledge those that were taken. A broker that pushes is asked nothing."""

    def collect(self) -> bytes | bytearray | None:
        """Read what has come: the column of its numbers, or None while what was asked for is not complete."""

    def fileno(self) -> int:
        """The socket's, to wait for many."""


@dataclass(frozen=True, kw_only=True)
class RunDriver(ABC):
    """A broker, its protocol, a queue of the run's own, the size of messages, and how many a consumer may have."""

    #: The number of the measurement, by which its messages are known.
    run: int = field(default_factory=lambda: 1 + secrets.randbelow((1 << 15) - 1))
    size: int
    prefetch: int
    #: Whether producers hear that a message is durable; else `confirmed` says what was sent.
    confirms: ClassVar[bool] = True
    #: Whether a consumer gets a producer's messages in order.
    ordered: ClassVar[bool] = True

    @abstractmethod
    def producer(self, index: int) -> BenchProducer:
        """A connection that publishes as producer `index`. Raises BenchError."""

    @abstractmethod
    def consumer(self, index: int) -> BenchConsumer:
        """A connection that consumes as consumer `index`. Raises BenchError."""


class FanoutDriver(RunDriver):
    """A broker that gives each consumer every message."""

    @abstractmethod
    def consumer(self, index: int) -> BenchSubscriber:
        """A connection that consumes as subscriber `index`. Raises BenchError."""
