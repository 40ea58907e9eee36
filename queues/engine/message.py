"""A message in memory."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

Row = TypeVar("Row")

#: The part of a message id below the priority in its highest byte.
POSITION = (1 << 56) - 1
ROWS_PER_STATEMENT = 4096  # the increment of the sequence queues_message_id
STATEMENT_BYTES = 8 << 20
#: Bytes of all bodies of a segment: it is read as a whole when it is claimed or settled, and written again when it is
#: unpacked.
MAX_SEGMENT_BYTES = 4 << 20


class Content(enum.IntEnum):
    """The content type of a payload, as in `queues.models.Content`."""

    MSGPACK = 1
    JSON = 2
    LETTER = 3
    CELERY = 4


class Detail(NamedTuple):
    """Fields that few messages have. `expires_at` is monotonic, `retry_interval` in milliseconds, `content` a
    `Content`, `weight` its size in bytes (`memory.py`)."""

    headers: dict[str, Any] | None = None
    key: str | None = None
    max_attempts: int | None = None
    tag: int | None = None
    origin: int | None = None
    expires_at: float | None = None
    content: int | None = None
    retry_interval: int | None = None
    weight: int = 0


#: For a message that has a content type and nothing else.
CONTENT_ONLY = {content: Detail(content=content) for content in Content}

#: A message leased to this node and not yet delivered: id, payload, attempts that failed, detail.
#: A plain tuple, since hundreds of thousands a second are made by `zip`.
Message = tuple[int, bytes, int, Detail | None]

#: A delivery: tag, payload, attempts that failed before this one, detail.
Delivery = tuple[int, bytes, int, Detail | None]


#: The header in which the broker tells why a message became a dead letter. No publisher's headers have it.
DEAD_LETTER = "dead-letter"


@dataclass(slots=True)
class DetailedMessage:
    """A message to publish that carries more than a body. Times are seconds from now, 0 is none; `due` is a moment.

    `priority` is from -127 to 127, higher first; `retry_interval` milliseconds, instead of the backoff.
    """

    payload: bytes
    key: str | None = None
    headers: dict[str, Any] | None = None
    delay: float = 0.0
    ttl: float = 0.0
    max_attempts: int | None = None
    priority: int = 0
    content: int | None = None
    retry_interval: int | None = None
    due: datetime | None = None

    #: The size of the headers as JSON, once they were asked for.
    headers_size: int = 0

    def headers_json(self) -> str | None:
        """The headers as the store takes them."""
        if self.headers is None:
            return None
        text = json.dumps(self.headers)
        self.headers_size = len(text)
        return text


@dataclass(slots=True)
class Failure:
    """A delivery that did not succeed, on its way back to the store. `refuse` is called if it does not arrive there,
    while `Engine.settles` still says that its settlement is under way."""

    id: int
    attempts: int
    delay: float = 0.0
    tag: int | None = None
    error: str | None = None
    refuse: Callable[[], None] | None = None


def _counter(text: str) -> Any:
    return field(default=0, metadata={"text": text})


@dataclass(slots=True)
class Counts:
    """Numbers since the start, for metrics, each with the text that explains it there."""

    published: int = _counter("Messages stored.")
    dropped: int = _counter("Messages without a subscription, or dropped by a full queue.")
    rejected: int = _counter("Messages refused by full queues or by PostgreSQL, or not confirmed while it was away.")
    forbidden: int = _counter("Publishes of BlipMQ and Overhop refused for want of a right.")
    claimed: int = _counter("Messages taken from the store into memory.")
    acknowledged: int = _counter("Messages settled.")
    returned: int = _counter("Deliveries that went back to their queues.")
    buried: int = _counter("Messages that became dead letters.")
    expired: int = _counter("Messages that outlived their time.")
    purged: int = _counter("Messages that a purge removed while the node held them.")
    forgotten: int = _counter("Messages that ended with a subscription that nobody polled.")
    transient_dropped: int = _counter("QoS 0 messages dropped.")
    reconnects: int = _counter("Times the database was lost.")
    rewritten: int = _counter(
        "Times the database came back with another past, as after a failover or when a backup was restored."
    )
    dead_nodes: int = _counter("Dead nodes found.")
    silent_nodes: int = _counter("Nodes whose process stood still for so long that their connection was ended.")
    batches: int = _counter("Commits of publishes.")
    stray_acks: int = _counter("Peerbus acknowledgements of unknown keys that have no row in the audit chain.")
    notifications_ignored: int = _counter("Notifications that were malformed, of no known type, or instructions.")
    notifications_failed: int = _counter("Notifications and instructions that could not be obeyed.")


def statement_parts(rows: Iterable[Row], size: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Rows to store in parts small enough for one statement; `size` has the bytes of one."""
    part: list[Row] = []
    total = 0
    for row in rows:
        if part and (len(part) == ROWS_PER_STATEMENT or total + size(row) > STATEMENT_BYTES):
            yield part
            part, total = [], 0
        part.append(row)
        total += size(row)
    if part:
        yield part
