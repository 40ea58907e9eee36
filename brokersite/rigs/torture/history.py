"""The record of a run: messages published and delivered, faults of the broker, the final store.

Plain records without I/O. All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple
from zlib import crc32

from queues.store.counts import QueueCounts

LARGE = 8000


class MessageId(NamedTuple):
    """The publisher of a message, and the message's number, counted from 0."""

    producer: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.producer}/{self.sequence}"


def make_body(message: MessageId) -> bytes:
    """The one body that this message has; most have up to 200 bytes, one in 64 has 8000."""
    text = f"{message.producer}/{message.sequence}/".encode()
    mark = crc32(text)
    size = LARGE if mark % 64 == 0 else mark % 200
    return text + (b"%08x" % mark) * (size // 8)


def parse_body(body: bytes) -> MessageId:
    """The message of this body; a foreign body gets an id that was never published."""
    words = body.split(b"/", 2)
    if len(words) == 3 and words[1].isdigit():
        message = MessageId(words[0].decode(errors="replace"), int(words[1]))
        if make_body(message) == body:
            return message
    return MessageId(f"unknown body {body[:60]!r}", len(body))


@dataclass(slots=True, eq=False)
class RecordedConnection:
    """One connection of a client, from just before it was asked for."""

    client: str
    listener: int
    opened: float


@dataclass(slots=True, eq=False)
class Publish:
    """An attempt to publish. `confirmed` is when the broker's barrier came; None if it never did."""

    message: MessageId
    at: float
    confirmed: float | None = None
    #: The producer's connection.
    connection: RecordedConnection | None = None


@dataclass(slots=True, eq=False)
class Delivery:
    """A message as a consumer got it."""

    queue: str
    message: MessageId
    connection: RecordedConnection
    at: float
    #: The consumer has acknowledged it.
    acked: bool = False
    #: A later answer on the same connection shows that the broker has read the acknowledgement.
    taken: bool = False
    #: The consumer has returned it, or left it alone, on purpose.
    let_go: bool = False


class InjectedFaultKind(StrEnum):
    """A fault of the broker, its database, or the cluster that the database is."""

    KILL = "kill -9 of a listener"
    STOP = "orderly stop of a listener"
    DATABASE_KILL = "kill -9 of PostgreSQL"
    CUT = "cut of the engine's database connections"
    FREEZE = "freeze of PostgreSQL"
    SWITCHOVER = "switchover to a standby"
    PRIMARY_LOST = "kill -9 of the primary's Patroni and PostgreSQL"
    PRIMARY_FROZEN = "freeze of the primary until it is replaced"
    PATRONI_KILLED = "kill -9 of the primary's Patroni alone"
    STANDBY_LOST = "kill -9 of standbys"
    STANDBY_REBUILT = "loss of a standby's data"
    ETCD_AWAY = "freeze of etcd"

    @property
    def loses_leases(self) -> bool:
        """Whether what consumers hold may be given out again."""
        return self is not InjectedFaultKind.FREEZE

    @property
    def is_of_database(self) -> bool:
        return self not in (InjectedFaultKind.KILL, InjectedFaultKind.STOP)


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault between `begin` and `end`, of one listener or of the database (None)."""

    kind: InjectedFaultKind
    begin: float
    end: float
    listener: int | None = None


class StoredState(StrEnum):
    """States of a stored message."""

    READY = "ready"
    LEASED = "leased"
    DELAYED = "delayed"
    DEAD = "dead"
    DEAD_LEASED = "dead, leased"


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message in the store. `first_id` is the row's id before it was ever returned."""

    queue: str
    message: MessageId
    first_id: int
    state: StoredState


@dataclass(frozen=True, slots=True)
class Archived:
    """A finished message. Without a kept payload it is unknown which: `message` is None."""

    queue: str
    first_id: int
    acknowledged: bool
    message: MessageId | None = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event of a message in the audit chain of its queue."""

    queue: str
    event: str
    first_id: int


@dataclass(slots=True)
class Store:
    """The store at the end."""

    messages: list[StoredMessage] = field(default_factory=list)
    archive: list[Archived] = field(default_factory=list)
    #: The queues' counts, which nothing was counted for.
    counts: dict[str, QueueCounts] = field(default_factory=dict)
    #: In the order of each chain.
    record: list[Recorded] = field(default_factory=list)
    #: Queues whose chains do not follow from their hashes.
    unproven: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RunHistory:
    """The records of clients and faults; each list in order of time for each client."""

    publishes: list[Publish] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    faults: list[InjectedFault] = field(default_factory=list)
    #: Failures that no client or process should meet: protocol errors, silence, a process that ends by itself.
    troubles: list[str] = field(default_factory=list)

    def add(self, publishes: Iterable[Publish], deliveries: Iterable[Delivery], troubles: Iterable[str]) -> None:
        """Add what one client has seen."""
        self.publishes += publishes
        self.deliveries += deliveries
        self.troubles += troubles


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The promises of a queue."""

    name: str
    #: Producers whose messages it gets, all of them.
    producers: frozenset[str]
    #: The retention of the archive: "none", "metadata" or "full".
    retention: str = "metadata"
    #: Deliveries come back by themselves after so short a time that a slow machine can be the cause.
    timed: bool = False
    #: All that happens to its messages is recorded.
    audited: bool = False
