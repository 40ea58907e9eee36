"""Publishes that wait for the next commit: one `Publisher` for each destination and API key, all in one `OpenBatch`.

Sessions call a publisher's methods; the writer takes the open batch when the one before is committed, and the next one
begins. A message belongs to the batch whose number its publish returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, overload

from queues.engine.errors import EngineError
from queues.engine.message import DetailedMessage
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination

#: A producer's own reference to a message; the engine only passes it back.
Token = Any


class Producer(Protocol):
    """A connection that publishes: told when one of its messages could not be stored."""

    def publish_failed(self, token: Any, error: EngineError) -> None:
        """The message published with `token` was not stored."""


class AnsweredProducer(Producer, Protocol):
    """A producer that wants to know the id of each message published with `answered`: these are jobs."""

    def published(self, tokens: list[Token], ids: Sequence[int | None], queue: QueuePolicy) -> None:
        """The messages are durable in `queue`, and are found by these ids for ever; None: its key is another's.

        Called at the commit, before replies are released.
        """


@dataclass(slots=True)
class PublishGroup:
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

    @property
    def sizes(self) -> list[int]:
        """The bytes of each body, or the one number that all have."""
        sizes = list(map(len, self.bodies))
        return sizes[:1] if sizes.count(sizes[0]) == len(sizes) else sizes

    def is_like(self, max_attempts: int | None, content: int | None, answered: bool) -> bool:
        """Whether a plain publish of this kind may join."""
        return (
            self.max_attempts == max_attempts
            and self.content == content
            and self.answered is answered
            and not (self.detailed or self.transient)
        )

    def without_overrides(self) -> PublishGroup:
        """The group as stored in a queue that sets attempts and intervals itself."""
        if not self.detailed:
            return self if self.max_attempts is None else replace(self, max_attempts=None)
        return replace(
            self, outgoing=[replace(message, max_attempts=None, retry_interval=None) for message in self.outgoing]
        )

    def extend(self, bodies: list[bytes], producer: Producer, tokens: Sequence[Token]) -> None:
        """Add messages of one producer."""
        self.bodies += bodies
        self.producers += [producer] * len(bodies)
        self.tokens += tokens

    def cut(self, start: int, stop: int | None = None) -> PublishGroup:
        """A part of it."""
        part = slice(start, stop)
        return PublishGroup(
            self.max_attempts, self.transient, self.detailed, self.content, self.answered, self.bodies[part],
            self.outgoing[part], self.producers[part], self.tokens[part],
        )  # fmt: skip


class OpenBatch:
    """Publishes that the writer has not taken yet."""

    __slots__ = ("_joined", "bytes", "number", "publishers")

    def __init__(self) -> None:
        self._joined = asyncio.Event()
        self.number = 1
        self.bytes = 0
        self.publishers: list[Publisher] = []

    def add(self, size: int) -> int:
        """Count the bytes of a publish; returns the batch's number."""
        self.bytes += size
        return self.number

    def join(self, publisher: Publisher) -> None:
        """Add a publisher that has its first message in this batch."""
        self.publishers.append(publisher)
        self._joined.set()

    async def filled(self) -> None:
        """Wait for the next publisher that joins."""
        self._joined.clear()
        await self._joined.wait()

    def take(self) -> list[tuple[Publisher, list[PublishGroup]]]:
        """All of it; the next batch begins."""
        publishers, self.publishers = self.publishers, []
        self.bytes = 0
        self.number += 1
        return [(publisher, publisher.take()) for publisher in publishers]


@dataclass(slots=True, eq=False)
class Publisher:
    """The waiting publishes to one destination by one API key, in order. Every method returns the number of the batch
    whose commit makes the message durable."""

    _batch: OpenBatch
    destination: Destination
    key: int | None
    groups: list[PublishGroup] = field(default_factory=list)
    _open: PublishGroup | None = None

    def publish(self, body: bytes, producer: Producer, token: int, max_attempts: int | None = None) -> int:
        """Publish a plain message."""
        group = self._open
        if group is None or not group.is_like(max_attempts, None, False):
            group = self._new_group(PublishGroup(max_attempts))
        return self._add(group, body, producer, token)

    def publish_answered(
        self, body: bytes, content: int | None, producer: AnsweredProducer, token: Token, max_attempts: int | None
    ) -> int:
        """Publish a message that has at most a content type and attempts of its own; its id is told."""
        group = self._open
        if group is None or not group.is_like(max_attempts, content, True):
            group = self._new_group(PublishGroup(max_attempts, content=content, answered=True))
        return self._add(group, body, producer, token)

    def publish_many_answered(
        self, bodies: list[bytes], content: int | None, producer: AnsweredProducer, tokens: Sequence[Token]
    ) -> int:
        """Publish messages that have at most a content type, one token each; their ids are told."""
        return self._add_many(content, True, bodies, producer, tokens)

    def publish_many(self, bodies: list[bytes], producer: Producer, tokens: Sequence[int]) -> int:
        """Publish plain messages, one token each."""
        return self._add_many(None, False, bodies, producer, tokens)

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
        group = self._open
        if group is None or not group.detailed or group.answered is not answered:
            group = self._new_group(PublishGroup(None, detailed=True, answered=answered))
        group.outgoing.append(message)
        return self._add(group, message.payload, producer, token)

    def publish_transient(self, body: bytes, producer: Producer, token: Token) -> int:
        """Publish to memory only (QoS 0): to the subscribers of this moment, without a promise."""
        group = self._open
        if group is None or not group.transient:
            group = self._new_group(PublishGroup(None, transient=True))
        return self._add(group, body, producer, token)

    def _add(self, group: PublishGroup, body: bytes, producer: Producer, token: Token) -> int:
        group.bodies.append(body)
        group.producers.append(producer)
        group.tokens.append(token)
        return self._batch.add(len(body))

    def _add_many(
        self, content: int | None, answered: bool, bodies: list[bytes], producer: Producer, tokens: Sequence[Token]
    ) -> int:
        group = self._open
        if group is None or not group.is_like(None, content, answered):
            group = self._new_group(PublishGroup(None, content=content, answered=answered))
        group.extend(bodies, producer, tokens)
        return self._batch.add(sum(map(len, bodies)))

    def _new_group(self, group: PublishGroup) -> PublishGroup:
        if not self.groups:
            self._batch.join(self)
        self.groups.append(group)
        self._open = group
        return group

    def take(self) -> list[PublishGroup]:
        """Take all groups that wait."""
        groups, self.groups, self._open = self.groups, [], None
        return groups
