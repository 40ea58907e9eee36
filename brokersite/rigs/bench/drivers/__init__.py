"""The protocols that can be loaded. A driver is a value that load processes are given; each makes its own ends."""

from __future__ import annotations

import secrets
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


class BrokerDriver(Protocol):
    """A broker, its protocol, a queue of the run's own, and the size of messages."""

    @property
    def run(self) -> int:
        """The number of the measurement, by which its messages are known."""

    @property
    def confirms(self) -> bool:
        """Whether producers hear that a message is durable; else `confirmed` says what was sent."""

    @property
    def ordered(self) -> bool:
        """Whether a consumer gets a producer's messages in order."""

    def producer(self, index: int) -> BenchProducer:
        """A connection that publishes as producer `index`. Raises BenchError."""

    def consumer(self, index: int) -> BenchConsumer:
        """A connection that consumes as consumer `index`. Raises BenchError."""


def _new_run() -> int:
    return 1 + secrets.randbelow((1 << 15) - 1)


@dataclass(frozen=True, kw_only=True)
class RunDriver:
    """What every driver knows: a number of its own, the size of messages, and how many a consumer may have."""

    run: int = field(default_factory=_new_run)
    size: int
    prefetch: int
    confirms: ClassVar[bool] = True
    ordered: ClassVar[bool] = True


class FanoutDriver(BrokerDriver, Protocol):
    """A broker that gives each consumer every message."""

    def consumer(self, index: int) -> BenchSubscriber:
        """A connection that consumes as subscriber `index`. Raises BenchError."""
