"""Finished segments, stored as the engine stores them, and their messages as rows of the archive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from datetime import datetime
from typing import Any, NamedTuple

from django.db import connection


class Range(NamedTuple):
    """Slots that one consumer has acknowledged, delivered together."""

    low: int
    high: int
    consumer: int | None
    delivered: datetime | None
    job: bool | None = None


@dataclass(frozen=True, slots=True)
class Segment:
    """A row of `queues_archivedsegment`, with its ranges."""

    first: int
    queue: int
    sizes: Sequence[int]
    ranges: Sequence[Range]
    published: datetime
    finished: datetime
    producer: int | None = None
    outcome: int = 0
    max_attempts: int | None = None
    content: int | None = None

    def store(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(INSERT, asdict(self) | {
                "count": len(self.sizes), "sizes": list(self.sizes), "lows": [one.low for one in self.ranges],
                "highs": [one.high for one in self.ranges], "consumers": [one.consumer for one in self.ranges],
                "delivered": [one.delivered for one in self.ranges], "jobs": [one.job for one in self.ranges],
            })  # fmt: skip

    def messages(self) -> list[ArchiveRow]:
        """Its archived messages, in order of their ids."""
        rows = [
            ArchiveRow(
                self.first + slot, self.queue, self.outcome, 0, self.producer, one.consumer, self.published,
                one.delivered, self.finished, self.sizes[slot], self.max_attempts, self.content, one.job,
            )
            for one in self.ranges for slot in range(one.low, one.high + 1)
        ]  # fmt: skip
        return sorted(rows, key=lambda row: row.id)


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """The columns of the archive that a plain message has; the rest is null."""

    id: int
    queue: int
    outcome: int
    attempts: int
    producer: int | None
    consumer: int | None
    published: datetime
    delivered: datetime | None
    finished: datetime
    size: int
    max_attempts: int | None = None
    content: int | None = None
    job: bool | None = None

    def store(self) -> None:
        """Store it as a row."""
        with connection.cursor() as cursor:
            cursor.execute(f"insert into queues_archivedmessage ({COLUMNS}) values ({MARKS})", astuple(self))


COLUMNS = (
    "id, queue_id, outcome, attempts, producer_id, consumer_id, published_at, delivered_at, finished_at, size,"
    " max_attempts, content, job"
)
MARKS = ", ".join(["%s"] * 13)
INSERT = """
    insert into queues_archivedsegment (first, count, queue_id, outcome, producer_id, published_at, finished_at, sizes,
        lows, highs, consumers, delivered, jobs, max_attempts, content)
    values (%(first)s, %(count)s, %(queue)s, %(outcome)s, %(producer)s, %(published)s, %(finished)s, %(sizes)s,
        %(lows)s, %(highs)s, %(consumers)s, %(delivered)s::timestamptz[], %(jobs)s::boolean[],
        %(max_attempts)s, %(content)s)"""


def archive_rows(where: str = "true", *parameters: Any) -> list[ArchiveRow]:
    """The archive's messages for which a condition holds, in order of their ids."""
    with connection.cursor() as cursor:
        cursor.execute(f"select {COLUMNS} from queues_archive where {where} order by id", parameters)
        return [ArchiveRow(*row) for row in cursor.fetchall()]
