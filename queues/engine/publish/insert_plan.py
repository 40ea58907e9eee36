"""The plan of a batch's statements: for which queues, and which of these take their messages in memory.

`Plan.add` turns a segment and its targets into `Write`s; the writer executes them in one transaction, and each
`Write` keeps its statement's result until the messages are delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

from queues.engine.consume.local_queue import LocalQueue
from queues.engine.consume.low_watermark import LOWEST
from queues.engine.consume.memory import detail_weight
from queues.engine.errors import EngineError, QueueNotFound, TopologyMoved
from queues.engine.health import Health
from queues.engine.message import CONTENT_ONLY, ROWS_PER_STATEMENT, Content, Detail, Message, Outgoing
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination
from queues.engine.publish.publisher import AnsweredProducer, Segment
from queues.engine.publish.routing import Targets
from queues.engine.statements import array


@dataclass(slots=True, eq=False)
class Write:
    """One statement: a segment's messages for some of its queues. `store` fills in the last two."""

    segment: Segment
    #: The producer's API key.
    key: int | None
    queues: tuple[int, ...]
    buffers: tuple[LocalQueue | None, ...]
    ttl: float = 0.0
    first: int = 0
    leased: tuple[bool, ...] = ()
    stored: frozenset[int] | None = None
    delayed: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        return len(self.queues)

    @property
    def statement(self) -> str:
        if self.segment.detailed or self.ttl:
            return "publish_detailed"
        return "publish_one" if self.width == 1 else "publish"

    @property
    def own_detail(self) -> Detail | None:
        """The detail in memory of a plain message of this segment."""
        attempts, content = self.segment.max_attempts, self.segment.content
        if attempts is None:
            return None if content is None else CONTENT_ONLY[Content(content)]
        return Detail(max_attempts=attempts, content=content)

    def parameters(self, version: int, node: int) -> dict[str, Any]:
        """The statement's parameters."""
        count = len(self.segment.bodies)
        if self.statement == "publish_one":
            buffer = self.buffers[0]
            return {
                "version": version,
                "node": node,
                "producer": self.key,
                "queue": self.queues[0],
                "wanted": buffer is not None,
                "low": buffer.backlog.watermark.value if buffer else LOWEST,
                "bodies": self.segment.bodies,
                "max_attempts": self.segment.max_attempts,
                "content": self.segment.content,
                "size": count,
            }
        common: dict[str, Any] = {
            "version": version,
            "node": node,
            "producer": self.key,
            "queues": array(self.queues),
            "wanted": array("t" if buffer else "f" for buffer in self.buffers),
            "lows": array(buffer.backlog.watermark.value if buffer else LOWEST for buffer in self.buffers),
            "width": self.width,
            "bodies": self.segment.bodies,
        }
        if self.statement == "publish":
            return common | {
                "max_attempts": self.segment.max_attempts, "content": self.segment.content, "size": count,
            }  # fmt: skip
        outgoing = self.segment.outgoing
        if not self.segment.detailed:
            attempts = [self.segment.max_attempts] * count
            nothing: list[Any] = [None] * count
            ttls = array([self.ttl] * count)
            return common | {
                "keys": nothing, "headers": nothing, "delays": array([0] * count), "ttls": ttls, "attempts": attempts,
                "priorities": array([0] * count), "intervals": nothing, "contents": [self.segment.content] * count,
                "dues": nothing,
            }  # fmt: skip
        return common | {
            "keys": [message.key for message in outgoing],
            "headers": [message.headers_json() for message in outgoing],
            "delays": array(message.delay for message in outgoing),
            "ttls": array(message.ttl or self.ttl for message in outgoing),
            "attempts": [message.max_attempts for message in outgoing],
            "priorities": array(message.priority for message in outgoing),
            "intervals": [message.retry_interval for message in outgoing],
            "contents": [message.content for message in outgoing],
            "dues": [message.due for message in outgoing],
        }

    def store(self, row: tuple[Any, ...] | None) -> None:
        """Take the statement's result. Raises TopologyMoved when it stored nothing."""
        if row is None:
            raise TopologyMoved()
        self.first = row[0]
        self.leased = (row[1],) if isinstance(row[1], bool) else tuple(row[1])
        if len(row) > 2:
            self.stored, self.delayed = frozenset(row[2] or ()), frozenset(row[3] or ())

    def keep(self, count: int) -> None:
        """Write only the first `count` messages."""
        if count < len(self.segment.bodies):
            self.segment = self.segment.cut(0, count)

    def leased_details(self, ids: range) -> list[Message]:
        """The messages that were stored as leased, with their details, in order of their ids."""
        stored = self.stored or frozenset()
        leased: list[Message] = [
            (id - (message.priority << 56), message.payload, 0, _detail(id, message))
            for id, message in zip(ids, self.segment.outgoing, strict=True)
            if id in stored and id not in self.delayed
        ]
        leased.sort(key=itemgetter(0))
        return leased

    @property
    def lowest(self) -> int:
        """The lowest id that was stored, for the first of the queues."""
        highest = max((message.priority for message in self.segment.outgoing), default=0)
        return self.first - (max(highest, 0) << 56)

    def first_ids(self, queue: int) -> Sequence[int | None]:
        """The id of each message in one of the queues; None: it was not stored there, its key was taken."""
        start = self.first + self.queues.index(queue)
        ids, stored = range(start, start + len(self.segment.bodies) * self.width, self.width), self.stored
        return ids if stored is None else [id if id in stored else None for id in ids]

    def answer(self, queue: int, health: Health) -> None:
        """Tell each producer the id that its message has in the queue which it was published to."""
        segment, known = self.segment, self.first_ids(queue)
        at = 0
        for producer, group in groupby(segment.producers):
            end = at + sum(1 for _ in group)
            published = cast(AnsweredProducer, producer).published
            health.guard("session", producer, published, segment.tokens[at:end], known[at:end])
            at = end


def _detail(id: int, message: Outgoing) -> Detail:
    return Detail(
        message.headers, message.key, message.max_attempts, origin=id if message.priority else None,
        content=message.content, retry_interval=message.retry_interval,
        weight=detail_weight(message.headers_size, message.key),
    )  # fmt: skip


@dataclass(slots=True)
class Plan:
    """The contents of one transaction, and the messages that it does not store."""

    writes: list[Write] = field(default_factory=list)
    #: Queues with a maximum length, and the segments that go to one of them.
    limited: set[int] = field(default_factory=set)
    drop_oldest: set[int] = field(default_factory=set)
    #: Audited queues and their names.
    audited: dict[int, str] = field(default_factory=dict)
    limited_segments: list[tuple[Segment, list[Write]]] = field(default_factory=list)
    #: How many of the writes come before, the queue, the bodies.
    transient: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    rejected: list[tuple[Segment, EngineError]] = field(default_factory=list)
    unroutable: int = 0
    #: Writes whose producers want to know the ids, in the queue which they published to.
    answers: list[tuple[Write, int]] = field(default_factory=list)
    storing: list[LocalQueue] = field(default_factory=list)

    def add(
        self, segment: Segment, destination: Destination, targets: Targets, key: int | None,
        policies: Mapping[int, QueuePolicy], buffers: Mapping[int, LocalQueue], now: float,
    ) -> None:  # fmt: skip
        """Add a segment."""
        if destination.kind == "queue" and targets.own is None:
            self.reject(segment, QueueNotFound(repr(destination.name.decode("utf-8", "replace"))))
            return
        stored = targets.stored
        if targets.audited:
            self.audited.update(targets.audited)
        if segment.transient:  # subscribers get it in memory; a queue that a route feeds stores it
            self.transient += [(len(self.writes), queue, segment.bodies) for queue in targets.subscribed]
            stored = tuple(queue for queue in stored if queue not in targets.subscribed)
        else:
            self.transient += [(len(self.writes), queue, segment.bodies) for queue in targets.transient]
        if not stored and not targets.subscribed:
            self.unroutable += len(segment.bodies)
        known = [policies[queue] for queue in stored if queue in policies]
        plain = tuple(policy.id for policy in known if policy.message_ttl is None)
        groups = [(plain, 0.0)] if plain else []
        groups += [((policy.id,), policy.message_ttl) for policy in known if policy.message_ttl is not None]
        limited = {policy.id for policy in known if policy.max_length is not None}
        self.limited |= limited
        self.drop_oldest |= {policy.id for policy in known if policy.id in limited and policy.overflow == "drop-oldest"}
        for part in _parts(segment, max((len(queues) for queues, _ in groups), default=1)):
            writes = []
            for queues, ttl in groups:
                for start in range(0, len(queues), ROWS_PER_STATEMENT):
                    some = queues[start : start + ROWS_PER_STATEMENT]
                    wanting = tuple(_wanting(buffers.get(queue), now, bool(ttl)) for queue in some)
                    writes.append(Write(part, key, some, wanting, ttl))
            self.writes += writes
            if part.answered and targets.own is not None:
                self.answers += [(write, targets.own) for write in writes if targets.own in write.queues]
            if limited:
                self.limited_segments.append((part, writes))

    def reject(self, segment: Segment, error: EngineError) -> None:
        """These messages are not stored."""
        self.rejected.append((segment, error))

    def drop_empty(self) -> None:
        """Forget writes that have no messages left."""
        self.writes = [write for write in self.writes if write.segment.bodies]

    def begin(self) -> None:
        """Nothing is claimed for a buffer while messages may be leased to it: they would overtake each other."""
        self.storing = [buffer for write in self.writes for buffer in write.buffers if buffer is not None]
        for buffer in self.storing:
            buffer.begin_storing()

    def end(self) -> None:
        """Leased messages are about to be in memory, or there are none."""
        for buffer in self.storing:
            buffer.end_storing()
        self.storing = []

    def forget_producers(self) -> None:
        """The producers of this have been told that its fate is unknown, and are told no more."""
        self.answers.clear()
        self.rejected.clear()


def _parts(segment: Segment, width: int) -> list[Segment]:
    """A segment in parts small enough for one statement."""
    most = max(1, ROWS_PER_STATEMENT // width)
    count = len(segment.bodies)
    if count <= most:
        return [segment]
    return [segment.cut(start, start + most) for start in range(0, count, most)]


def _wanting(buffer: LocalQueue | None, now: float, expires: bool) -> LocalQueue | None:
    """The buffer, if new messages should be leased to it. Messages that expire wait in the store, for the sweep."""
    return buffer if buffer is not None and not expires and buffer.wants(now) else None
