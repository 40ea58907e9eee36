"""Numbers of messages in queues: exact as of the last commit, and as cheap with millions of messages as with none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS

from queues.store.queries import query


class QueueCounts(NamedTuple):
    """The messages of one queue by state, and how many ever entered it, left it for good, and were acknowledged."""

    ready: int = 0
    leased: int = 0
    delayed: int = 0
    dead: int = 0
    published: int = 0
    settled: int = 0
    completed: int = 0

    @property
    def held(self) -> int:
        """Messages in the store, dead letters included."""
        return self.ready + self.leased + self.delayed + self.dead


def queue_counts(queue: int, using: str = DEFAULT_DB_ALIAS) -> QueueCounts:
    """The counts of one queue, by its id; all zero for one that does not exist."""
    return many_counts([queue], using).get(queue, QueueCounts())


def many_counts(queues: Iterable[int] | None = None, using: str = DEFAULT_DB_ALIAS) -> dict[int, QueueCounts]:
    """The counts of several queues by id, or (None) of all, in one query."""
    asked = None if queues is None else list(queues)
    rows = query("counts", using, queues=asked)
    return {row[0]: QueueCounts(*map(int, row[1:])) for row in rows}
