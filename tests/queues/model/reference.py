"""The plain model of queues that the broker is compared with: what each promises, without time, nodes and batches.

A message has a place, `at`: a number that grows with each arrival. Order is promised for each producer, and for a
message that returns to the tail: it comes after all that were ready then. A message that is handed back keeps its
place. All of that within a priority: those of a higher one come first. With a single active consumer the first one in
line has all deliveries, and what it had when it ends keeps its place.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

READY, HELD, DEAD = "ready", "held", "dead"
_places = itertools.count(1)


class Difference(AssertionError):
    """The broker has done something that the model does not allow."""


@dataclass(slots=True, eq=False)
class Message:
    """One message of one queue. `producer` None: it has come to the tail by other ways than a publish."""

    label: str
    producer: str | None
    #: Deliveries it may have; 0 without limit, None: the queue's.
    limit: int | None = None
    key: str | None = None
    priority: int = 0
    attempts: int = 0
    state: str = READY
    at: int = field(default_factory=lambda: next(_places))

    def follows(self, other: Message) -> bool:
        """Whether it must not be delivered while the other one is ready."""
        if self.priority != other.priority:
            return self.priority < other.priority
        return other.at < self.at and self.producer in (None, other.producer)

    def to_tail(self) -> None:
        """It is ready behind all others."""
        self.producer, self.state, self.at = None, READY, next(_places)


class Queue:
    """One queue."""

    def __init__(self, name: str, max_attempts: int) -> None:
        self.name = name
        self.max_attempts = max_attempts
        self.target: Queue | None = None
        self.paused = False
        self.max_length: int | None = None
        self.drops_oldest = False
        self.concurrency: int | None = None
        #: The consumers of a queue with a single active one, in the order in which they came; None: all are active.
        self.line: list[object] | None = None
        self.messages: dict[str, Message] = {}
        #: The number of acknowledged messages.
        self.settled = 0

    def of(self, state: str) -> list[Message]:
        """The messages in a state, by their places."""
        return sorted((one for one in self.messages.values() if one.state == state), key=lambda one: one.at)

    # Arrivals.

    def accepts(self) -> bool:
        """Whether a publish is not refused."""
        living = len(self.messages) - len(self.of(DEAD))
        return self.max_length is None or self.drops_oldest or living < self.max_length

    def has_key(self, key: str | None) -> bool:
        return key is not None and any(one.key == key for one in self.messages.values())

    def add(
        self, label: str, producer: str | None, limit: int | None = None, key: str | None = None, priority: int = 0
    ) -> None:
        """A message is stored."""
        self.messages[label] = Message(label, producer, limit, key, priority)

    # Deliveries.

    def enter(self, consumer: object) -> None:
        """A consumer has come."""
        if self.line is not None and consumer not in self.line:
            self.line.append(consumer)

    def leave(self, consumer: object) -> None:
        """A consumer has ended."""
        if self.line is not None and consumer in self.line:
            self.line.remove(consumer)

    def serves(self, consumer: object) -> bool:
        """Whether a consumer is given messages."""
        return self.line is None or self.line[:1] == [consumer]

    def deliverable(self, wanted: int) -> int:
        """The number of messages that `wanted` credits bring now."""
        if self.paused:
            return 0
        room = wanted if self.concurrency is None else self.concurrency - len(self.of(HELD))
        return max(0, min(wanted, room, len(self.of(READY))))

    def deliver(self, batch: Iterable[tuple[object, str, int | None]]) -> None:
        """Messages were delivered: consumer, label and, if it was told, the attempt; in order for each consumer. Raises
        Difference."""
        delivered: list[tuple[object, Message]] = []
        for consumer, label, attempt in batch:
            message = self.messages.get(label)
            if not self.serves(consumer):
                raise Difference(f"{self.name}: {label} was delivered to a consumer that waits for its turn")
            if message is None:
                raise Difference(f"{self.name}: {label} was delivered, and is not there any more")
            if message.state != READY or any(message is other for _, other in delivered):
                raise Difference(f"{self.name}: {label} was delivered, and is {message.state}")
            if attempt is not None and attempt != message.attempts + 1:
                raise Difference(f"{self.name}: {label} came as attempt {attempt}, and had {message.attempts} before")
            delivered.append((consumer, message))
        if len(delivered) > self.deliverable(len(delivered)):
            raise Difference(f"{self.name}: {len(delivered)} delivered, {self.deliverable(len(delivered))} allowed")
        left = set(self.of(READY)) - {message for _, message in delivered}
        for n, (consumer, message) in enumerate(delivered):
            later = {other for taker, other in delivered[n + 1 :] if taker is consumer}
            for other in left | later:
                if message.follows(other):
                    came = [one.label for _, one in delivered]
                    raise Difference(f"{self.name}: {message.label} was delivered before {other.label}, of {came}")
        for _, message in delivered:
            message.state = HELD

    # Ends of deliveries.

    def settle(self, label: str) -> None:
        """A message was acknowledged."""
        del self.messages[label]
        self.settled += 1

    def fail(self, label: str, in_place: bool = False) -> None:
        """A delivery failed: the message goes to the tail, or keeps its place, or it is given up."""
        message = self.messages[label]
        message.attempts += 1
        limit = self.max_attempts if message.limit is None else message.limit
        if not limit or message.attempts < limit:
            if in_place:
                message.state = READY
            else:
                message.to_tail()
        elif self.target is not None:
            del self.messages[label]
            self.target.add(label, None)
        else:
            message.state, message.at = DEAD, next(_places)

    def hand_back(self, label: str) -> None:
        """A delivery does not count: the message is ready in its place."""
        self.messages[label].state = READY

    # Operators.

    def remove(self, labels: Collection[str]) -> None:
        for label in labels:
            del self.messages[label]

    def put_back(self) -> None:
        """Dead letters begin anew, at the tail."""
        for message in self.of(DEAD):
            message.attempts = 0
            message.to_tail()

    def drop_surplus(self, left: Collection[str]) -> None:
        """The oldest ready messages beyond the maximum length were dropped; `left` are those in the store."""
        ready = self.of(READY)
        surplus = len(ready) + len(self.of(HELD)) - (self.max_length or 0)
        gone = [one for one in ready if one.label not in left]
        if len(gone) != max(0, min(surplus, len(ready))):
            raise Difference(f"{self.name}: {len(gone)} dropped, {surplus} too many")
        for one in gone:
            for other in ready:
                lower = other.priority < one.priority
                if other.label in left and (lower or (other.priority == one.priority and one.follows(other))):
                    raise Difference(f"{self.name}: {one.label} was dropped before {other.label}")
        self.remove([one.label for one in gone])
