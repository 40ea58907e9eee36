"""The broker at a moment: its figures, what the last hour says, and what is wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from queues.operations.overview import HorizonHolder, Overview
from queues.operations.reasons import ReasonGroup
from queues.store.samples import SPANS, TimeSeries


class Trend(NamedTuple):
    """A queue's trend in the last hour's samples; of its last minutes the samples, depths and messages in and out."""

    completed: int = 0
    died: int = 0
    samples: int = 0
    first_ready: int = 0
    last_ready: int = 0
    most_ready: int = 0
    came: int = 0
    went: int = 0


class DiskSpace(NamedTuple):
    """The disk of the database, in bytes, where it is this machine's."""

    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem. `kind` and `id` name the page for its remedy: of a queue, a chain, a run, a holder."""

    kind: str
    text: str
    advice: str
    id: object = None
    holder: HorizonHolder | None = None
    #: The name of the queue that it is about.
    queue: str = field(default="", kw_only=True)
    #: Whether the queue has dead letters that came.
    dead: bool = field(default=False, kw_only=True)
    #: Only a notice: it may be intended.
    notice: bool = field(default=False, kw_only=True)

    @property
    def key(self) -> str:
        """Identifies it on the page."""
        return f"{self.kind}-{self.id if self.holder is None else self.holder.name}"


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The broker at a moment. Ages are seconds."""

    overview: Overview
    #: By queue: the age of the first ready message.
    oldest: dict[int, float]
    trends: dict[int, Trend] = field(default_factory=dict)
    #: Problems of chains and ETL: kind, id, name, text.
    records: list[tuple[str, int, str, str]] = field(default_factory=list)
    #: The largest groups of dead letters.
    reasons: list[ReasonGroup] = field(default_factory=list)
    #: The last hour of all queues.
    series: TimeSeries | None = None
    #: The Unix time at which they were read.
    series_at: float = 0.0
    disk: DiskSpace | None = None
    #: The reasons why this process's engines take no work, and their warnings.
    unready: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def oldest_age(self) -> float | None:
        """The age of the oldest ready message of all queues. None: nothing is ready."""
        return max(self.oldest.values(), default=None)

    @property
    def database_bytes(self) -> float | None:
        """The size of the database at the last sample."""
        sizes = [] if self.series is None else [size for size in self.series.database_bytes if size is not None]
        return sizes[-1] if sizes else None

    @property
    def growth(self) -> float:
        """The growth of the database within the hour, in bytes an hour; 0 if it is not known, or has shrunk."""
        sizes = [] if self.series is None else self.series.database_bytes
        known = [(n, size) for n, size in enumerate(sizes) if size is not None]
        if len(known) < 2:
            return 0.0
        (begin, first), (end, last) = known[0], known[-1]
        return max(0.0, last - first) * 3600.0 / ((end - begin) * SPANS["hour"].width)
