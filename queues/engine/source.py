"""Where publishes wait for the next commit: one `Source` for each address and producer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload

from queues.engine.errors import EngineError
from queues.engine.message import Outgoing

if TYPE_CHECKING:
    from queues.engine.writer import Writer


@dataclass(frozen=True, slots=True)
class Address:
    """Where something is published: `kind` is "queue" or "topic", `name` its exact bytes, UTF-8."""

    kind: str
    name: bytes

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read "queue:NAME" or "topic:NAME"; a bare NAME is a queue's. Raises ValueError when the name is empty."""
        kind, colon, name = text.partition(":")
        if not colon or kind not in ("queue", "topic"):
            kind, name = "queue", text
        if not name:
            raise ValueError(f"{text!r} names no queue and no topic")
        return cls(kind, name.encode())

    def __str__(self) -> str:
        return f"{self.kind}:{self.name.decode('utf-8', 'replace')}"


#: What a publisher knows a message by: whatever it likes.
Token = Any


class Publisher(Protocol):
    """A connection that publishes: told when one of its messages could not be stored."""

    def publish_failed(self, token: Any, error: EngineError) -> None:
        """The message published with `token` was not stored."""


class AnsweredPublisher(Publisher, Protocol):
    """A publisher that wants to know the id of each message published with `answered`."""

    def published(self, tokens: list[Token], ids: Sequence[int | None]) -> None:
        """The messages are durable and are found by these ids for ever; None: its key is another's.

        Called at the commit, before replies are released.
        """


@dataclass(slots=True)
class Segment:
    """Consecutive publishes that are stored alike, and for each who is to be told if that fails.

    With `answered` all publishers are `AnsweredPublisher`s.
    """

    max_attempts: int | None
    transient: bool = False
    detailed: bool = False
    content: int | None = None
    answered: bool = False
    bodies: list[bytes] = field(default_factory=list)
    outgoing: list[Outgoing] = field(default_factory=list)
    publishers: list[Publisher] = field(default_factory=list)
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

    def cut(self, start: int, stop: int | None = None) -> Segment:
        """A part of it."""
        part = slice(start, stop)
        return Segment(
            self.max_attempts, self.transient, self.detailed, self.content, self.answered, self.bodies[part],
            self.outgoing[part], self.publishers[part], self.tokens[part],
        )  # fmt: skip


class Source:
    """The publishes of one producer to one address that wait to be written; their order is kept."""

    __slots__ = ("_open", "_writer", "address", "key", "segments")

    def __init__(self, writer: Writer, address: Address, key: int | None) -> None:
        self._writer = writer
        self.address = address
        self.key = key
        self.segments: list[Segment] = []
        self._open: Segment | None = None

    def publish(self, body: bytes, publisher: Publisher, token: int, max_attempts: int | None = None) -> int:
        """Publish a plain message; returns the number of the batch whose commit makes it durable."""
        segment = self._open
        if segment is None or not segment.is_like(max_attempts, None, False):
            segment = self._new_segment(Segment(max_attempts))
        segment.bodies.append(body)
        segment.publishers.append(publisher)
        segment.tokens.append(token)
        writer = self._writer
        writer.pending_bytes += len(body)
        return writer.open_batch

    def publish_answered(
        self, body: bytes, content: int | None, publisher: AnsweredPublisher, token: Token, max_attempts: int | None
    ) -> int:
        """Publish a message that has at most a content type and attempts of its own; its id is told."""
        segment = self._open
        if segment is None or not segment.is_like(max_attempts, content, True):
            segment = self._new_segment(Segment(max_attempts, content=content, answered=True))
        segment.bodies.append(body)
        segment.publishers.append(publisher)
        segment.tokens.append(token)
        writer = self._writer
        writer.pending_bytes += len(body)
        return writer.open_batch

    def publish_many_answered(
        self, bodies: list[bytes], content: int | None, publisher: AnsweredPublisher, tokens: list[Token]
    ) -> int:
        """Publish messages that have at most a content type, one token each; their ids are told."""
        segment = self._open
        if segment is None or not segment.is_like(None, content, True):
            segment = self._new_segment(Segment(None, content=content, answered=True))
        segment.bodies += bodies
        segment.publishers += [publisher] * len(bodies)
        segment.tokens += tokens
        self._writer.pending_bytes += sum(map(len, bodies))
        return self._writer.open_batch

    def publish_many(self, bodies: list[bytes], publisher: Publisher, tokens: list[int]) -> int:
        """Publish plain messages, one token each; returns their batch."""
        segment = self._open
        if segment is None or not segment.is_like(None, None, False):
            segment = self._new_segment(Segment(None))
        segment.bodies += bodies
        segment.publishers += [publisher] * len(bodies)
        segment.tokens += tokens
        self._writer.pending_bytes += sum(map(len, bodies))
        return self._writer.open_batch

    @overload
    def publish_detailed(self, message: Outgoing, publisher: Publisher, token: Token) -> int: ...

    @overload
    def publish_detailed(
        self, message: Outgoing, publisher: AnsweredPublisher, token: Token, answered: Literal[True]
    ) -> int: ...

    def publish_detailed(
        self, message: Outgoing, publisher: Publisher, token: Token, answered: bool = False
    ) -> int:
        """Publish a message that carries more than a body; with `answered` its id is told."""
        segment = self._open
        if segment is None or not segment.detailed or segment.answered is not answered:
            segment = self._new_segment(Segment(None, detailed=True, answered=answered))
        segment.bodies.append(message.payload)
        segment.outgoing.append(message)
        segment.publishers.append(publisher)
        segment.tokens.append(token)
        self._writer.pending_bytes += len(message.payload)
        return self._writer.open_batch

    def publish_transient(self, body: bytes, publisher: Publisher, token: Token) -> int:
        """Publish to memory only (QoS 0): to whoever subscribes now, without a promise."""
        segment = self._open
        if segment is None or not segment.transient:
            segment = self._new_segment(Segment(None, transient=True))
        segment.bodies.append(body)
        segment.publishers.append(publisher)
        segment.tokens.append(token)
        self._writer.pending_bytes += len(body)
        return self._writer.open_batch

    def _new_segment(self, segment: Segment) -> Segment:
        if not self.segments:
            self._writer.open(self)
        self.segments.append(segment)
        self._open = segment
        return segment

    def take(self) -> list[Segment]:
        """What waits, leaving nothing."""
        segments, self.segments, self._open = self.segments, [], None
        return segments
