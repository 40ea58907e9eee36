"""Acknowledgements that one statement settles, and the arrays that the statements of settling take.

A local queue adds to a batch; the settlement writer, a batch's owner, takes the gathered ones (`take`) and writes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from queues.engine.database import Connection
from queues.engine.message import MOST_ATTEMPTS, Failure
from queues.engine.statements import array, statement


class Returns:
    """Deliveries on their way back to the store. A session that looks for one there waits for them (`settled`)."""

    def __init__(self) -> None:
        self._waiting = _done()
        self._writing = _done()

    def add(self) -> None:
        """A delivery is to be returned."""
        self._waiting.clear()

    def take(self) -> None:
        """The deliveries noted until now are being written."""
        self._writing, self._waiting = self._waiting, _done()

    def written(self) -> None:
        """The deliveries taken are in the store."""
        self._writing.set()

    def forget(self) -> None:
        """The leases are lost: other nodes return the deliveries."""
        self._writing.set()
        self._waiting.set()

    async def settled(self) -> None:
        """Wait for the deliveries noted until now, not for later ones."""
        for event in (self._writing, self._waiting):
            await event.wait()


def _done() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


class Completion(NamedTuple):
    """Jobs that a worker finished in one request: their ids and tags. `refuse(tag)` is called for a job that could not
    be settled, while `Engine.settles` still says that its settlement is under way."""

    ids: Sequence[int]
    tags: Sequence[int]
    refuse: Callable[[int], None]

    def refuse_some(self, ids: Iterable[int]) -> None:
        """The jobs with these ids could not be settled."""
        for id in ids:
            if id in self.ids:
                self.refuse(self.tags[self.ids.index(id)])


class BatchOwner(Protocol):
    """The settlement writer, as batches use it."""

    def gather(self, batch: AckBatch, count: int) -> None:
        """A batch is about to gather so many acknowledgements."""


class AckBatch:
    """Acknowledged ids that are settled alike, and when each was delivered (monotonic). `late`: this node may no longer
    have the leases."""

    __slots__ = ("_owner", "consumer", "ids", "late", "retention", "times")

    def __init__(self, owner: BatchOwner, retention: str, consumer: int | None, late: bool = False) -> None:
        self._owner = owner
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
        self._owner.gather(self, len(ids))
        self.ids += ids
        self.times += delivered

    def take(self) -> Taken:
        """Take the gathered acknowledgements."""
        taken = Taken(self, self.ids, self.times, self.late)
        self.ids, self.times = [], []
        return taken


class JobBatch(AckBatch):
    """Jobs that workers have finished, and their results."""

    __slots__ = ("completions", "results")

    def __init__(self, owner: BatchOwner, retention: str, consumer: int | None, late: bool = False) -> None:
        super().__init__(owner, retention, consumer, late)
        self.results: list[bytes | None] = []
        self.completions: list[Completion] = []

    def add_job(
        self, id: int, delivered: float, result: bytes | None, completion: Completion | None = None
    ) -> None:
        """Finish one job."""
        self._owner.gather(self, 1)
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
        results, self.results = self.results, []
        completions, self.completions = self.completions, []
        return replace(super().take(), results=results, completions=completions)


@dataclass(slots=True)
class Taken:
    """The acknowledgements of a batch on their way to the store. `results` is empty unless these are jobs."""

    batch: AckBatch
    ids: list[int]
    times: list[float]
    late: bool
    results: list[bytes | None] = field(default_factory=list)
    #: Told of acknowledgements that cannot be settled; they may name others too.
    completions: list[Completion] = field(default_factory=list)

    def lose_leases(self) -> None:
        """The messages may be leased to others by now."""
        self.late = True

    def refuse(self) -> None:
        """None of the acknowledgements can be settled."""
        for completion in self.completions:
            completion.refuse_some(self.ids)

    def only(self, ids: Container[int]) -> Taken:
        """The part with these ids, each once, as acknowledged last: a message may be acknowledged late, and again after
        another delivery."""
        return self.part({id: n for n, id in enumerate(self.ids) if id in ids}.values())

    def part(self, at: Collection[int]) -> Taken:
        """The acknowledgements in these places."""
        return Taken(
            self.batch, [self.ids[n] for n in at], [self.times[n] for n in at], self.late,
            [self.results[n] for n in at] if self.results else [], self.completions,
        )  # fmt: skip

    @property
    def statement(self) -> str:
        """The name of the statement that settles them."""
        if self.batch.retention == "none":
            return "settle"
        return "settle_jobs" if isinstance(self.batch, JobBatch) else "settle_archived"

    def parameters(self, clock: float) -> dict[str, object]:
        """Parameters of the statement; `clock` added to a monotonic time makes a Unix time."""
        parameters: dict[str, object] = {"ids": array(self.ids)}
        if self.batch.retention != "none":
            parameters["delivered"] = time_array(self.times, clock)
            parameters["consumer"] = self.batch.consumer
            parameters["full"] = self.batch.retention == "full"
            if isinstance(self.batch, JobBatch):
                parameters["results"] = self.results if any(result is not None for result in self.results) else None
        return parameters


def failure_arrays(failures: Sequence[Failure]) -> dict[str, object]:
    """Parameters of return.sql, bury.sql and bury_elsewhere.sql."""
    return {
        "ids": array(failure.id for failure in failures),
        "attempts": array(min(failure.attempts, MOST_ATTEMPTS) for failure in failures),
        "errors": [failure.error for failure in failures],
    }


def return_arrays(failures: Sequence[Failure]) -> dict[str, object]:
    """Parameters of return.sql."""
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
    """Lock messages that were acknowledged late; returns the ids that the open transaction may settle, and those that
    another transaction has locked."""
    parameters = {"ids": array(ids), "delivered": time_array(times, clock)}
    rows = await (await connection.execute(statement("lock_late"), parameters)).fetchall()
    return {id for id, locked in rows if locked}, {id for id, locked in rows if not locked}
