"""The state of the broker as figures: what each queue holds, what went through it, who serves it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone

from queues.counts import QueueCounts, many_counts
from queues.models import Interest, Node, Queue, Worker
from queues.store import query


@dataclass(frozen=True, slots=True)
class QueueState:
    """One queue at a moment. `in_rate` and `out_rate` are messages/s since the moment compared with."""

    id: int
    name: str
    kind: str
    paused: bool
    counts: QueueCounts
    #: Nodes with consumers of the queue.
    nodes: int
    in_rate: float = 0.0
    out_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Overview:
    """The broker at a moment."""

    at: datetime
    nodes: int
    workers: int
    connections: int
    queues: list[QueueState] = field(default_factory=list)

    @property
    def in_rate(self) -> float:
        return sum(queue.in_rate for queue in self.queues)

    @property
    def out_rate(self) -> float:
        return sum(queue.out_rate for queue in self.queues)

    def total(self, count: str) -> int:
        """The sum over all queues of one of the counts, such as ``dead``."""
        return sum(getattr(queue.counts, count) for queue in self.queues)


def take_overview(before: Overview | None = None, using: str = DEFAULT_DB_ALIAS) -> Overview:
    """The broker now, with rates since `before`. Six queries, with any number of queues and messages."""
    at, counts = timezone.now(), many_counts(using=using)
    serving = Counter(Interest.objects.using(using).values_list("queue_id", flat=True))
    past = {} if before is None else {queue.name: queue.counts for queue in before.queues}
    seconds = 0.0 if before is None else max((at - before.at).total_seconds(), 1e-3)
    queues = []
    for id, name, kind, paused in Queue.objects.using(using).values_list("id", "name", "kind", "paused"):
        now = counts.get(id, QueueCounts())
        then = past.get(name, now)
        passed = (now.published - then.published, now.settled - then.settled)
        rates = [number / seconds if seconds else 0.0 for number in passed]
        queues.append(QueueState(id, name, kind, paused, now, serving[id], *rates))
    with connections[using].cursor() as cursor:
        cursor.execute("select count(*) from pg_stat_activity where datname = current_database()")
        (connected,) = cursor.fetchone()
    nodes, workers = Node.objects.using(using).count(), Worker.objects.using(using).count()
    return Overview(at, nodes, workers, connected, queues)


def oldest_ready(queues: Iterable[int], using: str = DEFAULT_DB_ALIAS) -> dict[int, float]:
    """Seconds since the first message that is ready was published, by queue id; queues without one are left out."""
    now = timezone.now()
    rows = query("oldest", using, queues=list(queues))
    return {queue: max((now - published).total_seconds(), 0.0) for queue, published in rows}
