"""Acknowledgements that are settled alike, and the arrays that the settler's statements take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from queues.engine.database import Connection
from queues.engine.message import MOST_ATTEMPTS, Failure
from queues.engine.statements import array, statement

if TYPE_CHECKING:
    from queues.engine.settler import Settler


class Returns:
    """Whether deliveries are on their way back: whoever looks for one in the store waits for them first."""

    def __init__(self) -> None:
        self._waiting = _done()
        self._writing = _done()

    def add(self) -> None:
        """A delivery is to be returned."""
        self._waiting.clear()

    def take(self) -> None:
        """Those until now are being written."""
        self._writing, self._waiting = self._waiting, _done()

    def written(self) -> None:
        """They are in the store."""
        self._writing.set()

    def forget(self) -> None:
        """The leases are lost, and others return them."""
        self._writing.set()
        self._waiting.set()

    async def settled(self) -> None:
        """Wait for those until now, and not for what comes later."""
        for event in (self._writing, self._waiting):
            await event.wait()


def _done() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class Completion(NamedTuple):
    """Jobs that a worker called done in one go: their ids and tags. `refuse(tag)` is called for one that could not be
    settled, while `Engine.settles` still says that it is under way."""

    ids: Sequence[int]
    tags: Sequence[int]
    refuse: Callable[[int], None]

    def refuse_some(self, ids: Iterable[int]) -> None:
        """Those of them with these ids could not be settled."""
        for id in ids:
            if id in self.ids:
                self.refuse(self.tags[self.ids.index(id)])


class AckBatch:
    """Acknowledged ids that are settled alike, and when each was delivered (monotonic). Those that are `late` are of
    deliveries whose lease this node no longer has."""

    __slots__ = ("_settler", "consumer", "ids", "late", "retention", "times")

    def __init__(self, settler: Settler, retention: str, consumer: int | None, late: bool = False) -> None:
        self._settler = settler
        self.retention = retention
        self.consumer = consumer
        self.late = late
        self.ids: list[int] = []
        self.times: list[float] = []

    def add(self, id: int, delivered: float) -> None:
        """Acknowledge one message."""
        self.add_many([id], [delivered])

    def add_many(self, ids: list[int], delivered: list[float]) -> None:
        """Acknowledge several messages."""
        if not self.ids:
            self._settler.open(self)
        self._settler.unsettled += len(ids)
        self.ids += ids
        self.times += delivered

    def take(self) -> Taken:
        """What was gathered, leaving nothing."""
        taken = Taken(self, self.ids, self.times, self.late)
        self.ids, self.times = [], []
        return taken


class JobBatch(AckBatch):
    """Jobs that workers have done, and what they answered."""

    __slots__ = ("completions", "results")

    def __init__(self, settler: Settler, retention: str, consumer: int | None, late: bool = False) -> None:
        super().__init__(settler, retention, consumer, late)
        self.results: list[bytes | None] = []
        self.completions: list[Completion] = []

    def add_job(
        self, id: int, delivered: float, result: bytes | None, completion: Completion | None = None
    ) -> None:
        """Finish one job."""
        if not self.ids:
            self._settler.open(self)
        self._settler.unsettled += 1
        self.ids.append(id)
        self.times.append(delivered)
        self.results.append(result)
        if completion is not None:
            self.completions.append(completion)

    def add_jobs(self, ids: list[int], delivered: list[float], completion: Completion | None = None) -> None:
        """Finish several jobs, which have no results."""
        self.add_many(ids, delivered)
        self.results += [None] * len(ids)
        if completion is not None:
            self.completions.append(completion)

    def take(self) -> Taken:
        taken = super().take()
        taken.results, self.results = self.results, []
        taken.completions, self.completions = self.completions, []
        return taken


@dataclass(slots=True)
class Taken:
    """What a batch had gathered, on its way to the store. `results` is empty unless these are jobs."""

    batch: AckBatch
    ids: list[int]
    times: list[float]
    late: bool
    results: list[bytes | None] = field(default_factory=list)
    #: Who is to be told of those that cannot be settled; perhaps also of others than these.
    completions: list[Completion] = field(default_factory=list)

    def refuse(self) -> None:
        """None of them can be settled."""
        for completion in self.completions:
            completion.refuse_some(self.ids)

    def only(self, ids: Container[int]) -> Taken:
        """Those of them with these ids, each once, as the last says: one may be acknowledged late, and again after
        another delivery."""
        return self.part({id: n for n, id in enumerate(self.ids) if id in ids}.values())

    def part(self, at: Collection[int]) -> Taken:
        """Those of them in these places."""
        return Taken(
            self.batch, [self.ids[n] for n in at], [self.times[n] for n in at], self.late,
            [self.results[n] for n in at] if self.results else [], self.completions,
        )  # fmt: skip

    @property
    def statement(self) -> str:
        """Which statement settles them."""
        if self.batch.retention == "none":
            return "settle"
        return "settle_jobs" if isinstance(self.batch, JobBatch) else "settle_archived"

    def parameters(self, clock: float) -> dict[str, object]:
        """What that statement takes; `clock` makes monotonic times Unix times."""
        parameters: dict[str, object] = {"ids": array(self.ids)}
        if self.batch.retention != "none":
            parameters["delivered"] = time_array(self.times, clock)
            parameters["consumer"] = self.batch.consumer
            parameters["full"] = self.batch.retention == "full"
            if isinstance(self.batch, JobBatch):
                parameters["results"] = self.results if any(result is not None for result in self.results) else None
        return parameters


def failure_arrays(failures: Sequence[Failure]) -> dict[str, object]:
    """What return.sql, bury.sql and bury_elsewhere.sql take of failed deliveries."""
    return {
        "ids": array(failure.id for failure in failures),
        "attempts": array(min(failure.attempts, MOST_ATTEMPTS) for failure in failures),
        "errors": [failure.error for failure in failures],
    }


def return_arrays(failures: Sequence[Failure]) -> dict[str, object]:
    """All that return.sql takes of failed deliveries."""
    return failure_arrays(failures) | {
        "delays": array(failure.delay for failure in failures),
        "tags": [failure.tag for failure in failures],
    }


def time_array(times: Sequence[float], offset: float) -> str:
    """Monotonic times as an array of Unix times. One burst has one time, so equal ones come in runs."""
    runs = [(f"{time + offset:.6f},", sum(1 for _ in run)) for time, run in groupby(times)]
    return "{" + "".join(text * count for text, count in runs)[:-1] + "}"


async def lock_late(
    connection: Connection, ids: Sequence[int], times: Sequence[float], clock: float
) -> tuple[set[int], set[int]]:
    """Of messages that are acknowledged late: those that the open transaction may settle, and those that another one
    has locked."""
    parameters = {"ids": array(ids), "delivered": time_array(times, clock)}
    rows = await (await connection.execute(statement("lock_late"), parameters)).fetchall()
    return {id for id, locked in rows if locked}, {id for id, locked in rows if not locked}
