"""The history of queues: a sample a minute of their exact counts, an hour's after a day, dropped after a month.

Engines take the samples, whichever is first; the others find the minute taken. A row is written for queues that have
changed only, so that the table stays small: 1,440 rows for the last day and 24 for each day before, of a queue that
is always busy. A minute in which no engine ran has no sample, and the next one says how long it covers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from queues.config.settings import settings
from queues.store.queries import query, query_within

#: Stands for all queues together.
ALL_QUEUES = 0
#: Queues that get a sample in one minute, the busiest: clients decide how many queues there are.
MAX_QUEUES = 2000
#: Hours for which there is a sample a minute.
MINUTES_KEPT = 25
MINUTE, HOUR = 60.0, 3600.0
#: Milliseconds that reading may take.
READ_LIMIT = 2000


def take_sample(using: str = DEFAULT_DB_ALIAS) -> int:
    """Take this minute's sample unless it was taken; returns how many rows were written. Two statements."""
    return _in_turn("sample", using, most=MAX_QUEUES)


def thin_samples(using: str = DEFAULT_DB_ALIAS) -> int:
    """Make one sample an hour of those older than a day, and drop what is older than BROKER_HISTORY_DAYS."""
    made = _in_turn("sample_thin", using, hours=MINUTES_KEPT)
    _in_turn("sample_drop", using, days=settings.BROKER_HISTORY_DAYS)
    return made


def _in_turn(name: str, using: str, **parameters: int) -> int:
    """Run a statement if no other process writes samples now; how many rows it wrote or removed."""
    with transaction.atomic(using=using):
        [(mine,)] = query("sample_turn", using)
        return len(query(name, using, **parameters)) if mine else 0


class Sampler:
    """Take a sample: engines call it once a minute, from a thread. Once an hour it deletes old samples."""

    def __init__(self, using: str = DEFAULT_DB_ALIAS) -> None:
        self._using = using
        self._thinned = -HOUR

    def __call__(self) -> None:
        """Raises django.db.OperationalError when the database is away. Closes the thread's database connection."""
        if not settings.BROKER_HISTORY_DAYS:
            return
        try:
            take_sample(self._using)
            if time.monotonic() - self._thinned >= HOUR:
                thin_samples(self._using)
                self._thinned = time.monotonic()
        finally:
            connections[self._using].close()


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time that a chart shows: `places` periods of `width` seconds."""

    label: str
    width: int
    places: int

    def times(self, now: float) -> list[float]:
        """The ends of its periods before a Unix time; of the last one, which goes on, the last whole minute."""
        start, last = span_start(self, now), now // MINUTE * MINUTE
        return [min(start + (n + 1) * self.width, last) for n in range(self.places)]


SPANS = {
    "quarter": Span("last 15 minutes", 60, 15),
    "hour": Span("last hour", 60, 60),
    "six-hours": Span("last 6 hours", 300, 72),
    "day": Span("last day", 900, 96),
    "week": Span("last 7 days", 3600, 168),
    "month": Span("last 30 days", 6 * 3600, 120),
}
#: Behind a name in a list.
SPARK = Span("last hour", 120, 30)

Figures = list[float | None]


@dataclass(slots=True)
class TimeSeries:
    """A queue's figures by period. None: no engine took a sample; a period in which nothing changed has rates of 0."""

    #: Messages/s stored, acknowledged, and that left in another way: moved, purged, expired, dropped, dead.
    incoming: Figures
    acknowledged: Figures
    otherwise: Figures
    #: Messages that became dead letters.
    died: Figures
    #: Held at the end of the period, and the most of any of its minutes.
    ready: Figures
    leased: Figures
    delayed: Figures
    dead: Figures
    peak: Figures
    #: Of all queues only: the size of the database.
    database_bytes: Figures = field(default_factory=list)


def span_start(span: Span, now: float) -> float:
    """The Unix time at which a span begins whose last period has the last whole minute before `now`."""
    return ((now - MINUTE) // span.width + 1 - span.places) * span.width


def read_series(queues: Iterable[int], span: Span, now: float, using: str = DEFAULT_DB_ALIAS) -> dict[int, TimeSeries]:
    """The series of these queues over a span that ends at a Unix time; one query. Raises django.db.OperationalError
    when it takes more than two seconds."""
    ids = list(queues)
    start = span_start(span, now)
    rows: dict[int, dict[int, Sequence[float | None]]] = {id: {} for id in (ALL_QUEUES, *ids)}
    for queue, place, *values in query_within(
        "sample_series", using, READ_LIMIT, queues=list(rows), start=start, width=span.width, places=span.places
    ):
        rows[queue][place] = values
    taken = rows[ALL_QUEUES]
    return {id: _series(rows[id], taken, span) for id in ids}


def _series(
    rows: dict[int, Sequence[float | None]], taken: dict[int, Sequence[float | None]], span: Span
) -> TimeSeries:
    columns: list[Figures] = [[] for _ in range(10)]
    held: list[float | None] = list(rows[-1][6:10]) if -1 in rows else [None] * 4
    for place in range(span.places):
        values = rows.get(place)
        if values is not None:
            seconds, published, settled, completed, died, peak, *levels, size = values
            held = list(levels)
            covered = taken.get(place, values)[0] or seconds or MINUTE
            done = completed or 0
            otherwise = max(0.0, (settled or 0) - done)
            figures = [(published or 0) / covered, done / covered, otherwise / covered, died, *held, peak, size]
        elif place in taken:
            known = [amount for amount in held[:3] if amount is not None]
            figures = [0.0, 0.0, 0.0, 0, *held, sum(known) if known else None, None]
        else:
            figures = [None] * 10
        for column, figure in zip(columns, figures, strict=True):
            column.append(figure)
    return TimeSeries(*columns)
