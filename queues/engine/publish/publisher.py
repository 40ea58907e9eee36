"""Publishes that wait for the next commit: one `Publisher` for each destination and API key, all in one `OpenBatch`.

Sessions call a publisher's methods; the writer takes the open batch when the one before is committed, and the next one
begins. A message belongs to the batch whose number its publish returned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

from queues.engine.errors import EngineError
from queues.engine.message import DetailedMessage
from queues.engine.publish.destination import Destination

#: A producer's own reference to a message; the engine only passes it back.
Token = Any


class Producer(Protocol):
    """A connection that publishes: told when one of its messages could not be stored."""

    def publish_failed(self, token: Any, error: EngineError) -> None:
        """The message published with `token` was not stored."""


class AnsweredProducer(Producer, Protocol):
    """A producer that wants to know the id of each message published with `answered`."""

    def published(self, tokens: list[Token], ids: Sequence[int | None]) -> None:
        """The messages are durable and are found by these ids for ever; None: its key is another's.

        Called at the commit, before replies are released.
        """


@dataclass(slots=True)
class Segment:
    """Consecutive publishes that are stored alike, and for each the producer that is told if that fails.

    With `answered` all producers are `AnsweredProducer`s.
    """

    max_attempts: int | None
    transient: bool = False
    detailed: bool = False
    content: int | None = None
    answered: bool = False
    bodies: list[bytes] = field(default_factory=list)
    outgoing: list[DetailedMessage] = field(default_factory=list)
    producers: list[Producer] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        """The keys of its messages."""
        return [message.key for message in self.outgoing if message.key is not None]

    def is_like(self, max_attempts: int | None, content: int | None, answered: bool) -> bool:
        """Whether a plain publish of this kind may join."""
        return (
            self.max_attempts == max_attempts
            and self.content == content
            and self.answered is answered
            and not (self.detailed or self.transient)
        )

    def extend(self, bodies: list[bytes], producer: Producer, tokens: list[Token]) -> None:
        """Add messages of one producer."""
        self.bodies += bodies
        self.producers += [producer] * len(bodies)
        self.tokens += tokens

    def cut(self, start: int, stop: int | None = None) -> Segment:
        """A part of it."""
        part = slice(start, stop)
        return Segment(
            self.max_attempts, self.transient, self.detailed, self.content, self.answered, self.bodies[part],
            self.outgoing[part], self.producers[part], self.tokens[part],
        )  # fmt: skip


class OpenBatch:
    """Publishes that the writer has not taken yet; `filled()` is called for each publisher that joins."""

    __slots__ = ("_filled", "bytes", "number", "publishers")

    def __init__(self, filled: Callable[[], None]) -> None:
        self._filled = filled
        self.number = 1
        self.bytes = 0
        self.publishers: list[Publisher] = []

    def add(self, size: int) -> int:
        """Count the bytes of a publish; returns the batch's number."""
        self.bytes += size
        return self.number

    def join(self, publisher: Publisher) -> None:
        """A publisher has its first message in this batch."""
        self.publishers.append(publisher)
        self._filled()

    def take(self) -> list[tuple[Publisher, list[Segment]]]:
        """All of it; the next batch begins."""
        publishers, self.publishers = self.publishers, []
        self.bytes = 0
        self.number += 1
        return [(publisher, publisher.take()) for publisher in publishers]


class Publisher:
    """The publishes of one producer to one destination that wait to be written; their order is kept. Every method
    returns the number of the batch whose commit makes the message durable."""

    __slots__ = ("_batch", "_open", "destination", "key", "segments")

    def __init__(self, batch: OpenBatch, destination: Destination, key: int | None) -> None:
        self._batch = batch
        self.destination = destination
        self.key = key
        self.segments: list[Segment] = []
        self._open: Segment | None = None

    def publish(self, body: bytes, producer: Producer, token: int, max_attempts: int | None = None) -> int:
        """Publish a plain message."""
        segment = self._open
        if segment is None or not segment.is_like(max_attempts, None, False):
            segment = self._new_segment(Segment(max_attempts))
        return self._add(segment, body, producer, token)

    def publish_answered(
        self, body: bytes, content: int | None, producer: AnsweredProducer, token: Token, max_attempts: int | None
    ) -> int:
        """Publish a message that has at most a content type and attempts of its own; its id is told."""
        segment = self._open
        if segment is None or not segment.is_like(max_attempts, content, True):
            segment = self._new_segment(Segment(max_attempts, content=content, answered=True))
        return self._add(segment, body, producer, token)

    def publish_many_answered(
        self, bodies: list[bytes], content: int | None, producer: AnsweredProducer, tokens: list[Token]
    ) -> int:
        """Publish messages that have at most a content type, one token each; their ids are told."""
        segment = self._open
        if segment is None or not segment.is_like(None, content, True):
            segment = self._new_segment(Segment(None, content=content, answered=True))
        return self._add_many(segment, bodies, producer, tokens)

    def publish_many(self, bodies: list[bytes], producer: Producer, tokens: list[int]) -> int:
        """Publish plain messages, one token each."""
        segment = self._open
        if segment is None or not segment.is_like(None, None, False):
            segment = self._new_segment(Segment(None))
        return self._add_many(segment, bodies, producer, tokens)

    @overload
    def publish_detailed(self, message: DetailedMessage, producer: Producer, token: Token) -> int: ...

    @overload
    def publish_detailed(
        self, message: DetailedMessage, producer: AnsweredProducer, token: Token, answered: Literal[True]
    ) -> int: ...

    def publish_detailed(
        self, message: DetailedMessage, producer: Producer, token: Token, answered: bool = False
    ) -> int:
        """Publish a message that carries more than a body; with `answered` its id is told."""
        segment = self._open
        if segment is None or not segment.detailed or segment.answered is not answered:
            segment = self._new_segment(Segment(None, detailed=True, answered=answered))
        segment.outgoing.append(message)
        return self._add(segment, message.payload, producer, token)

    def publish_transient(self, body: bytes, producer: Producer, token: Token) -> int:
        """Publish to memory only (QoS 0): to the subscribers of this moment, without a promise."""
        segment = self._open
        if segment is None or not segment.transient:
            segment = self._new_segment(Segment(None, transient=True))
        return self._add(segment, body, producer, token)

    def _add(self, segment: Segment, body: bytes, producer: Producer, token: Token) -> int:
        segment.bodies.append(body)
        segment.producers.append(producer)
        segment.tokens.append(token)
        return self._batch.add(len(body))

    def _add_many(self, segment: Segment, bodies: list[bytes], producer: Producer, tokens: list[Token]) -> int:
        segment.extend(bodies, producer, tokens)
        return self._batch.add(sum(map(len, bodies)))

    def _new_segment(self, segment: Segment) -> Segment:
        if not self.segments:
            self._batch.join(self)
        self.segments.append(segment)
        self._open = segment
        return segment

    def take(self) -> list[Segment]:
        """Take all segments that wait."""
        segments, self.segments, self._open = self.segments, [], None
        return segments
