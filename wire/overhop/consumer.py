"""A worker's subscription to a queue, made by SUBSCRIBE: its jobs are pushed as QUESTs, each for a credit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from time import monotonic, time
from typing import Protocol
from uuid import uuid4

from queues.engine import ClientConnection, Content, LocalQueue, PushConsumer, PushRun
from wire.net.connection import Connection, contained
from wire.overhop.assignments import Assignments, Pushed
from wire.overhop.codec.encoder import Unencodable
from wire.overhop.codec.hot_frames import QuestWriter
from wire.overhop.codec.timestamps import format_timestamp
from wire.overhop.payloads import AllJobNames, payload_value

logger = logging.getLogger(__name__)

MSGPACK = int(Content.MSGPACK)


class ConsumerOwner(Protocol):
    """The deliveries of the connection that a consumer belongs to."""

    connection: Connection
    client: ClientConnection
    assignments: Assignments[Consumer]
    names: AllJobNames

    def send_quests(self, frames: list[bytes | bytearray], count: int) -> None:
        """Send so many frames."""

    def note_change(self) -> None:
        """The credits or the jobs of a consumer have changed, and no message of the client's was why."""


class Consumer(PushConsumer):
    """A subscription: a consumer that is pushed to."""

    __slots__ = (
        "_owner", "_writer", "active", "buffer", "client", "connection", "kept_credits", "largest",
        "queue", "sid",
    )  # fmt: skip

    def __init__(self, owner: ConsumerOwner, queue: str, buffer: LocalQueue, largest: int, key: int | None) -> None:
        """`largest` is the most bytes that a payload may have to go into a frame, `key` the client's API key."""
        super().__init__(key)
        self.sid = str(uuid4())
        self.queue = queue
        self.buffer = buffer
        #: Credits set aside while the worker does not read.
        self.kept_credits = 0
        self.active = 0
        self.largest = largest
        self.connection = owner.connection
        self.client = owner.client
        self._owner = owner
        self._writer = QuestWriter(self.sid, queue)

    # Called by the engine.

    @contained
    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        """Send jobs to the worker."""
        since = time()
        due = None if deadline is None else since + deadline - monotonic()
        text = None if due is None else format_timestamp(datetime.fromtimestamp(due, UTC))
        usual = self.buffer.policy.max_attempts
        frames: list[bytes | bytearray] = []
        count = 0
        for run in runs:
            detail, pushed = run.detail, Pushed(self, run.attempts + 1, since, due)
            own = None if detail is None else detail.max_attempts
            most = usual if own is None else own
            tags, ids, values = run.tags, run.ids, run.payloads
            if detail is None or detail.content != MSGPACK or max(map(len, values)) > self.largest:
                tags, ids, values = self._values(run, None if detail is None else detail.content)
            if values:
                frames.append(self._push_alike(pushed, text, most, tags, ids, values))
                count += len(values)
        if count:
            self.active += count
            self._owner.send_quests(frames, count)

    def _values(self, run: PushRun, content: int | None) -> tuple[list[int], list[int], list[bytes]]:
        """The tags, ids and encoded payloads of those that a frame can have."""
        tags, ids, values = list[int](), list[int](), list[bytes]()
        for tag, id, payload in zip(run.tags, run.ids, run.payloads, strict=True):
            if (value := self._value(tag, id, payload, content)) is not None:
                tags.append(tag)
                ids.append(id)
                values.append(value)
        return tags, ids, values

    def _push_alike(
        self, pushed: Pushed[Consumer], deadline: str | None, most: int, tags: Sequence[int], ids: Sequence[int],
        payloads: Sequence[bytes],
    ) -> bytes | bytearray:  # fmt: skip
        """Assign jobs that have all but their payloads in common; returns their QUESTs."""
        owner, names = self._owner, self._owner.names.of(self.queue, self.buffer.policy.uuid)
        jids = names.jids(ids)
        owner.assignments.add(pushed, tags, jids)
        return self._writer.write(deadline, pushed.attempt, most, names.head, jids, payloads)

    def _value(self, tag: int, id: int, payload: bytes, content: int | None) -> bytes | None:
        """A payload as a frame has it; None for one that no frame can have, which is a dead letter."""
        try:
            value = payload if content == MSGPACK else payload_value(payload, content)
        except Unencodable as error:
            self.buffer.bury(tag, str(error))
            return None
        except Exception as error:  # this message costs itself only, and is not tried again
            self.connection.listener.session_failed()
            logger.exception("%s: message %d of %s cannot be delivered", self.connection.name, id, self.queue)
            self.buffer.bury(tag, f"it cannot be delivered: {type(error).__name__}")
            return None
        if len(value) > self.largest:
            self.buffer.bury(tag, f"its payload of {len(value)} bytes does not fit into a frame")
            return None
        return value

    @contained
    def expired(self, tags: list[int]) -> None:
        """Jobs have been taken away, unless they were finished."""
        self.active -= self._owner.assignments.take_tags(self, tags)
        self._owner.note_change()

    def refuse(self) -> None:
        self._owner.note_change()

    # Called by the session.

    def finished(self, count: int) -> None:
        """Count jobs as no longer the worker's."""
        self.active -= count

    def wall_time(self, moment: float) -> float:
        """A monotonic time as a Unix time."""
        return moment + time() - monotonic()

    def grant(self, credits: int) -> None:
        """Let so many more jobs be pushed."""
        if self.kept_credits:
            self.kept_credits += credits
        else:
            self.buffer.dispatcher().grant(self, credits)

    def withdraw(self) -> None:
        """Take no more jobs; those at work may be finished."""
        self.kept_credits = 0
        self.buffer.dispatcher().withdraw(self)
        self.buffer.leave(self, finish=True)

    def lose(self) -> None:
        """The worker is gone: of a queue with a single active consumer its jobs go back in place."""
        self.buffer.leave(self)

    def set_aside(self) -> None:
        """Take no more jobs for now."""
        self.kept_credits += self.credits
        self.buffer.dispatcher().withdraw(self)

    def go_on(self) -> None:
        """Take jobs again."""
        credits, self.kept_credits = self.kept_credits, 0
        if credits:
            self.buffer.dispatcher().grant(self, credits)


