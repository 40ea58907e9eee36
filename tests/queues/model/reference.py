"""The plain model of queues that the broker is compared with: what each promises, without time, nodes and batches.

A message has a place, `at`: a number that grows with each arrival. Order is promised for each producer, and for a
message that returns to the tail: it comes after all that were ready then. A message that is handed back keeps its
place. All of that within a priority: those of a higher one come first. With a single active consumer the first one in
line has all deliveries, and what it had when it ends keeps its place.

Where several nodes serve a queue, a message that one of them holds for its own consumers keeps none back that another
node delivers.
"""

from __future__ import annotations

import itertools
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

READY, HELD, DEAD = "ready", "held", "dead"
_places = itertools.count(1)


class Difference(AssertionError):
    """The broker has done something that the model does not allow."""


class Delivery(NamedTuple):
    """A delivery, of the attempt with this number, if that was told."""

    consumer: object
    node: object
    label: str
    attempt: int | None


@dataclass(slots=True, eq=False)
class Message:
    """One message of one queue."""

    label: str
    producer: str
    #: Deliveries it may have; 0 without limit, None: the queue's.
    limit: int | None = None
    key: str | None = None
    priority: int = 0
    attempts: int = 0
    state: str = READY
    at: int = field(default_factory=lambda: next(_places))
    #: It comes after all that have lower places than this, whatever their producer.
    after: int = 0
    #: The nodes that were seen to hold it in memory, though no consumer has it, since the last deliveries.
    nodes: set[object] = field(default_factory=set)

    def follows(self, other: Message) -> bool:
        """Whether it must not be delivered while the other one is ready."""
        if self.priority != other.priority:
            return self.priority < other.priority
        return other.at < self.after or (other.at < self.at and other.producer == self.producer)

    def to_tail(self) -> None:
        """It is ready behind all others. What its producer publishes from now on may come before it or after it."""
        self.producer, self.state, self.at = "returned", READY, next(_places)
        self.after = self.at

    def is_elsewhere(self, node: object) -> bool:
        """Whether another node may have had it when this one made its deliveries."""
        return bool(self.nodes - {node})


class Front:
    """The first ones of ready messages, which tell whether another one may be delivered while these are ready."""

    def __init__(self, messages: Iterable[Message]) -> None:
        #: By priority and producer; of each priority also of all producers, None.
        self._firsts: dict[tuple[int, str | None], Message] = {}
        for message in messages:
            self.add(message)

    def copy(self) -> Front:
        return Front(self._firsts.values())

    def add(self, message: Message) -> None:
        for producer in (message.producer, None):
            first = self._firsts.setdefault((message.priority, producer), message)
            if message.at < first.at:
                self._firsts[message.priority, producer] = message

    def overtaken_by(self, message: Message) -> Message | None:
        """One that the message must not be delivered before."""
        return next((one for one in self._firsts.values() if message.follows(one)), None)


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
        #: Whether the attempts of a message are promised. Those of a mailbox are not: there is no limit to them.
        self.counts_attempts = True
        #: The number of acknowledged messages.
        self.settled = 0

    def of(self, state: str) -> list[Message]:
        """The messages in a state, by their places."""
        return sorted((one for one in self.messages.values() if one.state == state), key=lambda one: one.at)

    # Arrivals.

    def room(self) -> int:
        """The number of messages that are not refused."""
        if self.max_length is None or self.drops_oldest:
            return sys.maxsize
        return max(0, self.max_length - len(self.messages) + len(self.of(DEAD)))

    def has_key(self, key: str | None) -> bool:
        return key is not None and any(one.key == key for one in self.messages.values())

    def add(
        self, label: str, producer: str, limit: int | None = None, key: str | None = None, priority: int = 0
    ) -> None:
        """A message is stored."""
        self.messages[label] = Message(label, producer, limit, key, priority)

    def receive(self, messages: Sequence[Message]) -> None:
        """Messages of another queue come to the tail, ready, in this order: the one that they had there for each
        producer, but for those that a node had, which may have come back while others were moved. Raises Difference."""
        front = Front(())
        for message in reversed(messages):
            if (other := front.overtaken_by(message)) is not None:
                raise Difference(f"{self.name}: {message.label} was moved before {other.label}")
            if not message.nodes:
                front.add(message)
        after = next(_places)
        for message in messages:
            message.at, message.after, message.state = next(_places), after, READY
            message.nodes.clear()
            self.messages[message.label] = message

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

    def deliver(self, batch: Iterable[Delivery]) -> None:
        """Messages were delivered, in order for each consumer. Raises Difference."""
        delivered: dict[Message, Delivery] = {}
        for one in batch:
            message = self.messages.get(one.label)
            if not self.serves(one.consumer):
                raise Difference(f"{self.name}: {one.label} was delivered to a consumer that waits for its turn")
            if message is None:
                raise Difference(f"{self.name}: {one.label} was delivered, and is not there any more")
            if message.state != READY or message in delivered:
                raise Difference(f"{self.name}: {one.label} was delivered, and is {message.state}")
            if one.attempt is not None and one.attempt != message.attempts + 1:
                raise Difference(
                    f"{self.name}: {one.label} came as attempt {one.attempt}, and had {message.attempts} before"
                )
            delivered[message] = one
        if len(delivered) > self.deliverable(len(delivered)):
            raise Difference(f"{self.name}: {len(delivered)} delivered, {self.deliverable(len(delivered))} allowed")
        self._check_order(delivered)
        for message in delivered:
            message.state = HELD
        for message in self.messages.values():
            message.nodes.clear()

    def note_holder(self, label: str, node: object) -> None:
        """A node holds a message, or has held it since the last deliveries. No order is promised to another one's."""
        message = self.messages.get(label)
        if message is not None and message.state == READY:
            message.nodes.add(node)

    def _check_order(self, delivered: dict[Message, Delivery]) -> None:
        by_consumer: defaultdict[tuple[object, object], list[Message]] = defaultdict(list)
        for message, one in delivered.items():
            by_consumer[one.node, one.consumer].append(message)
        left = set(self.of(READY)) - delivered.keys()
        fronts: dict[object, Front] = {}
        for (node, _), came in by_consumer.items():
            if node not in fronts:
                fronts[node] = Front(one for one in left if not one.is_elsewhere(node))
            front = fronts[node].copy()
            for message in reversed(came):
                if (other := front.overtaken_by(message)) is not None:
                    labels = [one.label for one in came]
                    raise Difference(f"{self.name}: {message.label} was delivered before {other.label}, of {labels}")
                if not message.is_elsewhere(node):
                    front.add(message)

    # Ends of deliveries.

    def settle(self, label: str) -> None:
        """A message was acknowledged."""
        del self.messages[label]
        self.settled += 1

    def gives_up(self, label: str) -> bool:
        """Whether a message may have no delivery after the one that it has."""
        message = self.messages[label]
        limit = self.max_attempts if message.limit is None else message.limit
        return bool(limit) and message.attempts + 1 >= limit

    def fail(self, label: str, in_place: bool = False, gives_up: bool = False) -> None:
        """A delivery failed: the message goes to the tail, or keeps its place, or it is given up."""
        message = self.messages[label]
        given_up = gives_up or self.gives_up(label)
        message.attempts += 1
        if not given_up:
            if in_place:
                message.state = READY
            else:
                message.to_tail()
        elif self.target is not None:
            del self.messages[label]
            self.target.messages[label] = letter = Message(label, "dead letters")
            letter.to_tail()
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
