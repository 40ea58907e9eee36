"""A worker's subscription to a queue, made by SUBSCRIBE: its jobs are pushed as QUESTs, each for a credit."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from time import monotonic, time
from typing import NamedTuple, Protocol
from uuid import uuid4

from queues.engine import Content, LocalQueue, Push, Worker
from wire.net.connection import Connection, contained
from wire.overhop.codec.encoder import Unencodable
from wire.overhop.codec.hot_frames import JOB_PAYLOAD, QuestWriter
from wire.overhop.codec.timestamps import format_timestamp
from wire.overhop.payloads import DIGITS, HEX, JobNames, payload_value

logger = logging.getLogger(__name__)

MSGPACK = int(Content.MSGPACK)
_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long


class Assignment(NamedTuple):
    """A job that a worker has: its consumer, the delivery's tag, the job's first id, and since when (Unix time)."""

    consumer: Consumer
    tag: int
    id: int
    attempt: int
    since: float
    deadline: float | None


class ConsumerOwner(Protocol):
    """The deliveries of the connection that a consumer belongs to."""

    connection: Connection
    assignments: dict[str, Assignment]

    def send_quests(self, frames: list[bytes]) -> None:
        """Send frames at once."""


class Consumer(Worker):
    """A subscription: a consumer that is pushed to."""

    __slots__ = (
        "_names", "_owner", "_writer", "active", "buffer", "connection", "kept_credits", "largest",
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
        self._owner = owner
        self._names = JobNames(queue, buffer.policy.uuid)
        self._writer = QuestWriter(self.sid, queue)

    # Called by the engine.

    @contained
    def push(self, messages: list[Push], deadline: float | None) -> None:
        """Send jobs to the worker."""
        assign, largest = self._owner.assignments, self.largest
        limit = self.buffer.policy.max_attempts
        since = time()
        due = None if deadline is None else since + deadline - monotonic()
        text = None if due is None else format_timestamp(datetime.fromtimestamp(due, UTC))
        burst = self._writer.burst(text, limit)
        first, usual, rest = burst.first, burst.usual, burst.rest
        block, start, packed, size = -1, "", b"", 0
        frames = []
        for tag, id, payload, attempts, detail in messages:
            if id >> 12 != block:
                block, start = id >> 12, self._names.start(id)
                packed = self._names.pack(start)
                size = rest + len(packed)
            jid = start + HEX[id & 4095]
            most = limit if detail is None or detail.max_attempts is None else detail.max_attempts
            content = None if detail is None else detail.content
            if content != MSGPACK:
                value = self._value(tag, id, payload, content)
                if value is None:
                    continue
                payload = value
            if len(payload) > largest:
                self.buffer.bury(tag, f"its payload of {len(payload)} bytes does not fit into a frame")
                continue
            if attempts == 0 and most == limit:
                head = (size + len(payload)).to_bytes(4, "big")
                frames.append(b"".join((head, first, packed, DIGITS[id & 4095], JOB_PAYLOAD, payload, usual)))
            else:
                frames.append(burst.write(packed + DIGITS[id & 4095], payload, attempts + 1, most))
            assign[jid] = _new(Assignment, (self, tag, id, attempts + 1, since, due))
        if frames:
            self.active += len(frames)
            self._owner.send_quests(frames)

    def _value(self, tag: int, id: int, payload: bytes, content: int | None) -> bytes | None:
        """A payload from elsewhere as a frame has it; None for one that no frame can have, which is a dead letter."""
        try:
            return payload_value(payload, content)
        except Unencodable as error:
            self.buffer.bury(tag, str(error))
        except Exception as error:  # this message costs itself only, and is not tried again
            self.connection.listener.session_failed()
            logger.exception("%s: message %d of %s cannot be delivered", self.connection.name, id, self.queue)
            self.buffer.bury(tag, f"it cannot be delivered: {type(error).__name__}")
        return None

    @contained
    def expired(self, tags: list[int]) -> None:
        """These jobs have been taken away, unless they were finished."""
        gone = set(tags)
        assignments = self._owner.assignments
        for jid in [jid for jid, job in assignments.items() if job.consumer is self and job.tag in gone]:
            del assignments[jid]
            self.active -= 1

    # Called by the session.

    def finished(self, count: int) -> None:
        """So many of its jobs are the worker's no more."""
        self.active -= count

    @staticmethod
    def wall_time(moment: float) -> float:
        """A monotonic time as a Unix time."""
        return moment + time() - monotonic()

    def grant(self, credits: int) -> None:
        """Let so many more jobs be pushed."""
        if self.kept_credits:
            self.kept_credits += credits
        else:
            self.buffer.dispatcher().grant(self, credits)

    def withdraw(self) -> None:
        """Take no more jobs."""
        self.kept_credits = 0
        self.buffer.dispatcher().withdraw(self)

    def set_aside(self) -> None:
        """Take no more jobs for now."""
        self.kept_credits += self.credits
        self.buffer.dispatcher().withdraw(self)

    def go_on(self) -> None:
        """Take jobs again."""
        credits, self.kept_credits = self.kept_credits, 0
        if credits:
            self.buffer.dispatcher().grant(self, credits)


