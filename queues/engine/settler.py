"""Acknowledgements and returns on their way to the store, in batches.

Nobody waits for an acknowledgement's commit but a connection's later replies when very many are outstanding, so
batches are left to grow for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import TYPE_CHECKING

from queues.engine.clock import wall_offset
from queues.engine.database import Connection
from queues.engine.message import ROWS_PER_STATEMENT, Counts, Failure
from queues.engine.policy import QueuePolicy
from queues.engine.statements import array, statement

if TYPE_CHECKING:
    from queues.engine.buffer import QueueBuffer

#: Seconds a batch of acknowledgements may grow: nobody waits for it, and larger ones cost less a message.
GROWTH = 0.01
PURGED = 2  # the archive's outcome


class AckBatch:
    """Acknowledged ids that are settled alike, and when each was delivered (monotonic)."""

    __slots__ = ("_settler", "consumer", "ids", "retention", "times")

    def __init__(self, settler: Settler, retention: str, consumer: int | None) -> None:
        self._settler = settler
        self.retention = retention
        self.consumer = consumer
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

    def take(self) -> tuple[list[int], list[float]]:
        taken = self.ids, self.times
        self.ids, self.times = [], []
        return taken


class JobBatch(AckBatch):
    """Jobs that workers have done, and what they answered."""

    __slots__ = ("results",)

    def __init__(self, settler: Settler, retention: str, consumer: int | None) -> None:
        super().__init__(settler, retention, consumer)
        self.results: list[bytes | None] = []

    def add_job(self, id: int, delivered: float, result: bytes | None) -> None:
        """Finish one job."""
        if not self.ids:
            self._settler.open(self)
        self._settler.unsettled += 1
        self.ids.append(id)
        self.times.append(delivered)
        self.results.append(result)

    def add_jobs(self, ids: list[int], delivered: list[float]) -> None:
        """Finish several jobs, which have no results."""
        self.add_many(ids, delivered)
        self.results += [None] * len(ids)

    def take_results(self) -> list[bytes | None]:
        taken, self.results = self.results, []
        return taken


class Settler:
    """Writes acknowledgements, returns, dead letters and hand-backs, one statement for many.

    `more_in_store(queue id, lowest id)` is told what became ready, `more_dead(queue id)` where dead letters came.
    """

    def __init__(
        self, counts: Counts, more_in_store: Callable[[int, int], None], more_dead: Callable[[int], None]
    ) -> None:
        self.counts = counts
        self.more_in_store = more_in_store
        self.more_dead = more_dead
        self.node = 0
        #: Acknowledgements taken and not yet committed.
        self.unsettled = 0
        #: Buffers with deliveries that return by themselves.
        self.timed: set[QueueBuffer] = set()
        self.on_progress: Callable[[], None] = lambda: None
        #: Set while no delivery is on its way back: whoever looks for one in the store waits for this first.
        self.returned = asyncio.Event()
        self.returned.set()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._batches: dict[tuple[str, int | None], AckBatch] = {}
        self._dirty: list[AckBatch] = []
        self._failures: list[Failure] = []
        self._buried: dict[int | None, list[Failure]] = defaultdict(list)
        self._handed_back: list[tuple[int, int | None]] = []
        self._purged: list[int] = []
        self._job_batches: dict[str, JobBatch] = {}
        self._writing: list[tuple[AckBatch, list[int], list[float], list[bytes | None]]] = []
        #: Whatever is given to the settler now is durable when `settled` has reached this number.
        self.round = 1
        self.settled = 0

    # What buffers say.

    def batch(self, retention: str, consumer: int | None) -> AckBatch:
        """The batch for acknowledgements of this kind."""
        key = retention, consumer
        if key not in self._batches:
            self._batches[key] = AckBatch(self, retention, consumer)
        return self._batches[key]

    def job_batch(self, retention: str) -> JobBatch:
        """The batch for jobs that workers have done."""
        if retention not in self._job_batches:
            self._job_batches[retention] = JobBatch(self, retention, None)
        return self._job_batches[retention]

    def open(self, batch: AckBatch) -> None:
        self._dirty.append(batch)
        self._wake.set()

    def hurry(self) -> None:
        """Write what waits without letting it grow."""
        self._wake.set()
        self._urgent.set()

    def give_back(self, failure: Failure) -> None:
        self._failures.append(failure)
        self.returned.clear()
        self.hurry()

    def bury(self, policy: QueuePolicy, failure: Failure) -> None:
        self._buried[policy.dead_letter_queue_id].append(failure)
        self.hurry()

    def hand_back(self, taken: Iterable[tuple[int, int | None]]) -> None:
        """Make (id, tag to keep) ready again where they were."""
        self._handed_back.extend(taken)
        self.hurry()

    def purge(self, ids: list[int]) -> None:
        """Remove messages that an operator purged while they were in memory."""
        self._purged += ids
        self.hurry()

    @property
    def idle(self) -> bool:
        return not (self._dirty or self._writing or self._failures or self._buried or self._handed_back or self._purged)

    def forget_leases(self) -> None:
        """The leases were lost: what was to be returned is returned by whoever reaps them."""
        self._failures.clear()
        self.returned.set()
        self._buried.clear()
        self._handed_back.clear()

    # What the engine runs.

    async def run(self, connection: Connection) -> None:
        """Write for ever; ends by an exception when the connection is lost, and may be run again with another."""
        if self._writing:  # cut off in the middle: deleting twice is harmless
            await self._write_acks(connection)
        self.settled = self.round - 1
        self.on_progress()
        while True:
            if self.idle:
                self._wake.clear()
                await self._wake.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._urgent.wait(), GROWTH)
            self._urgent.clear()
            await self.write(connection)

    async def write(self, connection: Connection) -> None:
        """Write everything that waits."""
        round, self.round = self.round, self.round + 1
        if self._dirty:
            batches, self._dirty = self._dirty, []
            self._writing = [
                (batch, *batch.take(), batch.take_results() if isinstance(batch, JobBatch) else [])
                for batch in batches
            ]
            await self._write_acks(connection)
        if self._failures:
            failures, self._failures = self._failures, []
            await self._return(connection, failures)
            if not self._failures:
                self.returned.set()
        if self._buried:
            buried, self._buried = self._buried, defaultdict(list)
            for target, failures in buried.items():
                await self._bury(connection, target, failures)
        if self._handed_back:
            taken, self._handed_back = self._handed_back, []
            await self._hand_back(connection, taken)
        if self._purged:
            ids, self._purged = self._purged, []
            await connection.execute(statement("remove"), {"ids": array(ids), "outcome": PURGED})
        self.settled = round
        self.on_progress()

    async def _write_acks(self, connection: Connection) -> None:
        offset = wall_offset()
        while self._writing:
            batch, ids, times, results = self._writing[0]
            taken = len(ids)
            if len(set(ids)) < len(ids):  # acknowledged late, and again after another delivery
                once = {id: n for n, id in enumerate(ids)}
                ids, times = list(once), [times[n] for n in once.values()]
                results = [results[n] for n in once.values()] if results else results
            parameters: dict[str, object] = {"ids": array(ids)}
            name = "settle"
            if batch.retention != "none":
                name = "settle_archived"
                if isinstance(batch, JobBatch):
                    name = "settle_jobs"
                    parameters["results"] = results if any(result is not None for result in results) else None
                parameters["delivered"] = _time_array(times, offset)
                parameters["consumer"] = batch.consumer
                parameters["full"] = batch.retention == "full"
            await connection.execute(statement(name), parameters)
            self.counts.acknowledged += len(ids)
            self.unsettled -= taken
            del self._writing[0]

    async def _return(self, connection: Connection, failures: list[Failure]) -> None:
        for start in range(0, len(failures), ROWS_PER_STATEMENT):
            some = failures[start : start + ROWS_PER_STATEMENT]
            parameters = _failure_arrays(some) | {
                "node": self.node,
                "delays": array([failure.delay for failure in some]),
                "tags": [failure.tag for failure in some],
            }
            cursor = await connection.execute(statement("return"), parameters)
            self.counts.returned += len(some)
            for queue, low, ready, _ in await cursor.fetchall():
                if ready:
                    self.more_in_store(queue, low)

    async def _bury(self, connection: Connection, target: int | None, failures: list[Failure]) -> None:
        for start in range(0, len(failures), ROWS_PER_STATEMENT):
            parameters = _failure_arrays(failures[start : start + ROWS_PER_STATEMENT]) | {"node": self.node}
            if target is not None:
                cursor = await connection.execute(statement("bury_elsewhere"), parameters | {"target": target})
                if row := await cursor.fetchone():
                    self.more_in_store(target, row[0])
                    continue
            cursor = await connection.execute(statement("bury"), parameters)
            for (queue,) in await cursor.fetchall():
                self.more_dead(queue)
        self.counts.buried += len(failures)

    async def _hand_back(self, connection: Connection, taken: list[tuple[int, int | None]]) -> None:
        parameters = {
            "node": self.node,
            "ids": array(id for id, _ in taken),
            "tags": [tag for _, tag in taken],
        }
        cursor = await connection.execute(statement("hand_back"), parameters)
        for queue, low, dead in await cursor.fetchall():
            if dead:
                self.more_dead(queue)
            else:
                self.more_in_store(queue, low)


def _failure_arrays(failures: list[Failure]) -> dict[str, object]:
    return {
        "ids": array(failure.id for failure in failures),
        "attempts": array(failure.attempts for failure in failures),
        "errors": [failure.error for failure in failures],
    }


def _time_array(times: list[float], offset: float) -> str:
    """Monotonic times as an array of Unix times. One burst has one time, so equal ones come in runs."""
    runs = [(f"{time + offset:.6f},", sum(1 for _ in run)) for time, run in groupby(times)]
    return "{" + "".join(text * count for text, count in runs)[:-1] + "}"
