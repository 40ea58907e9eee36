"""The columnar record of settlements, and the parameters that the statements of settling take.

A `Settlements` has what settlements that are alike have in common (kind, API key, retention, …) and a column for each
thing that varies. A prefetched queue adds to those that a `Lane` gathers; the settlement writer takes and writes them.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple, Protocol

from queues.database.sql_files import array
from queues.engine.isolation import halves
from queues.engine.message import ROWS_PER_STATEMENT, Failure
from queues.formats.limits import MAX_ATTEMPTS
from queues.formats.texts import storable

#: Characters of a dead letter's reason.
MAX_ERROR = 10_000
#: settle.sql's `keep`, by the queue's retention.
KEPT = {"none": 0, "metadata": 1, "full": 2}


#: Least number of acknowledgements gathered as a run, and the number in a run that costs as much as a single one.
FEWEST, RUN = 8, 100


def run_work(ids: range) -> int:
    """The cost of a run of acknowledgements, in single acknowledgements."""
    return 1 + len(ids) // RUN


class SettlementKind(enum.IntEnum):
    """The kind of a settlement. Kinds are written and recorded in this order. The first three are those of
    return.sql."""

    #: To the tail of their queue, at once or after a delay.
    RETURN = 0
    #: Dead letters.
    BURY = 1
    #: Ready again, in their places.
    HAND_BACK = 2
    #: Taken out of the store by an operator.
    PURGE = 3
    ACKNOWLEDGE = -1
    #: Delivered to a consumer: only recorded in an audited queue's chain, by ids as published.
    DELIVER = -2


class Returns:
    """Deliveries on their way back to the store. A session that looks for one there waits by `settled`."""

    def __init__(self) -> None:
        self._waiting = _done()
        self._writing = _done()

    def add(self) -> None:
        """Note a delivery that will be returned."""
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
        """Refuse the jobs with these ids, which could not be settled."""
        for id in ids:
            if id in self.ids:
                self.refuse(self.tags[self.ids.index(id)])


class Gatherer(Protocol):
    """The lane of settlements that are being gathered: `Lane` says what each method does."""

    def takes_run(self, settlements: Settlements, ids: range) -> bool: ...
    def gather(self, settlements: Settlements, ids: Sequence[int], work: int) -> Iterable[int | None]: ...


@dataclass(slots=True, eq=False)
class Settlements:
    """Settlements that are alike, as columns in the order of `ids`. A column is empty where its kind has no use for it,
    and `results` when there is none. `late`: this node may no longer have the leases."""

    kind: SettlementKind
    lane: Gatherer | None = None
    #: The same for all: API key of the consumer; KEPT; whether these are jobs; target of dead letters; who purges.
    consumer: int | None = None
    keep: int = 0
    job: bool = False
    late: bool = False
    target: int | None = None
    by: str = ""
    ids: list[int] = field(default_factory=list)
    #: Further acknowledgements: runs of consecutive ids of messages delivered at one (monotonic) time.
    runs: list[tuple[range, float]] = field(default_factory=list)
    #: Further deliveries: ids with the API key of the consumer that got them together.
    deliveries: list[tuple[Sequence[int], int | None]] = field(default_factory=list)
    #: Monotonic time of each delivery; None: unknown.
    delivered: list[float | None] = field(default_factory=list)
    results: list[bytes | None] = field(default_factory=list)
    #: API key of each message's consumer; empty if `consumer` holds for all.
    consumers: list[int | None] = field(default_factory=list)
    attempts: list[int | None] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    tags: list[int | None] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)
    #: Called for settlements that do not reach the store.
    refusals: list[Callable[[], None] | None] = field(default_factory=list)
    #: The same for jobs. It may name other jobs, too; a job is in one of them at most.
    completions: list[Completion] = field(default_factory=list)

    # Gathering.

    def add(self, id: int, delivered: float) -> None:
        """Acknowledge one message."""
        self.add_many([id], [delivered])

    def add_many(
        self, ids: Sequence[int], delivered: Sequence[float | None], results: Sequence[bytes | None] = ()
    ) -> None:
        """Acknowledge several messages; jobs may have results, all of these settlements or none."""
        self._gather(ids)
        self.delivered += delivered
        self.results += results

    def add_run(self, ids: Sequence[int], delivered: float) -> None:
        """Acknowledge messages that were delivered at one time."""
        lane = self.lane
        if (
            isinstance(ids, range) and ids.step == 1 and len(ids) >= FEWEST
            and lane is not None and lane.takes_run(self, ids)
        ):  # fmt: skip
            lane.gather(self, ids, run_work(ids))
            self.runs.append((ids, delivered))
        else:
            self.add_many(ids, [delivered] * len(ids))

    def tell(self, completion: Completion) -> None:
        """Some of the messages that were added are these jobs."""
        self.completions.append(completion)

    def add_failure(self, failure: Failure) -> None:
        """Return a delivery, or make it a dead letter."""
        self._gather([failure.id])
        self.attempts.append(min(failure.attempts, MAX_ATTEMPTS))
        self.delays.append(failure.delay)
        self.tags.append(failure.tag)
        self.errors.append(None if failure.error is None else storable(failure.error, MAX_ERROR))
        self.refusals.append(failure.refuse)

    def add_ids(self, ids: Sequence[int], tags: Iterable[int | None] = (), attempts: Sequence[int] = ()) -> None:
        """Purge messages, or hand them back with tags to keep, and with `attempts` if that has become more."""
        if attempts or self.attempts:
            self.attempts += [None] * (len(self.ids) - len(self.attempts))
            self.attempts += [min(count, MAX_ATTEMPTS) for count in attempts] or [None] * len(ids)
        self._gather(ids)
        self.tags += tags

    def add_deliveries(self, ids: Sequence[int], consumer: int | None) -> None:
        """Note that messages were handed to a consumer."""
        if self.lane is not None:
            self.lane.gather(self, ids, 0)
        self.deliveries.append((ids, consumer))

    def remove_delivery(self, id: int) -> None:
        """Take back the record of this message's last delivery."""
        for n, (ids, consumer) in reversed([*enumerate(self.deliveries)]):
            if id in ids:
                at = ids.index(id)
                self.deliveries[n : n + 1] = [(some, consumer) for some in (ids[:at], ids[at + 1 :]) if some]
                break

    def _gather(self, ids: Sequence[int]) -> None:
        if self.lane is not None:
            self.consumers += self.lane.gather(self, ids, len(ids))
        self.ids += ids

    def take(self) -> Settlements:
        """Take the gathered columns."""
        taken = replace(self)
        for name in (*COLUMNS, "runs", "deliveries", "completions"):
            setattr(self, name, [])
        return taken

    # Writing.

    @property
    def count(self) -> int:
        """The messages."""
        return len(self.ids) + sum(len(ids) for ids, _ in chain(self.runs, self.deliveries))

    @property
    def work(self) -> int:
        """The cost of writing its acknowledgements, as for `Gatherer.gather`."""
        return len(self.ids) + sum(run_work(ids) for ids, _ in self.runs)

    def spread(self) -> None:
        """Move all runs and deliveries into new columns. Parts may share the old lists."""
        self.ids = self.all_ids
        runs, self.runs = self.runs, []
        made, self.deliveries = self.deliveries, []
        known = bool(made or self.consumers)
        self.delivered = [*self.delivered, *chain.from_iterable([time] * len(ids) for ids, time in runs)]
        if known:
            had = chain(((ids, self.consumer) for ids, _ in runs), made)
            self.consumers = [*self.consumers, *chain.from_iterable([key] * len(ids) for ids, key in had)]

    def as_columns(self) -> Settlements:
        """The settlements without runs; the same object if there is no run."""
        if not self.runs:
            return self
        spread = replace(self)
        spread.spread()
        return spread

    @property
    def all_ids(self) -> list[int]:
        """The ids of all messages, in a new list."""
        return [*self.ids, *chain.from_iterable(ids for ids, _ in chain(self.runs, self.deliveries))]

    @property
    def keys(self) -> set[int | None]:
        """The API keys of all consumers."""
        return {self.consumer, *self.consumers, *(key for _, key in self.deliveries)}

    @property
    def releases(self) -> bool:
        """Whether these are leases that go back to the store."""
        return 0 <= self.kind <= SettlementKind.HAND_BACK

    def part(self, at: Collection[int]) -> Settlements:
        """The settlements in these places of the columns."""
        columns: dict[str, Any] = {name: [column[n] for n in at] for name in COLUMNS if (column := getattr(self, name))}
        return replace(self, runs=[], deliveries=[], **columns)

    def only(self, ids: Collection[int]) -> Settlements:
        """The settlements of these messages."""
        return self.part([n for n, id in enumerate(self.ids) if id in ids])

    @property
    def by_consumer(self) -> Iterator[Settlements]:
        """Acknowledgements of an audited queue with the API key of each message's consumer, by these keys."""
        if not self.consumers:
            yield self
            return
        if self.runs:
            yield replace(self.part(()), runs=self.runs)
        keys = dict.fromkeys(self.consumers)
        if len(keys) == 1:
            yield replace(self, consumer=self.consumers[0], consumers=[], runs=[])
            return
        places: dict[int | None, list[int]] = {key: [] for key in keys}
        for n, key in enumerate(self.consumers):
            places[key].append(n)
        for key, some in places.items():
            yield replace(self.part(some), consumer=key, consumers=[])

    @property
    def chunks(self) -> Iterator[Settlements]:
        """Parts for statements that give new ids."""
        if len(self.ids) <= ROWS_PER_STATEMENT or not self.releases:
            yield self
            return
        for start in range(0, len(self.ids), ROWS_PER_STATEMENT):
            yield self.part(range(start, min(start + ROWS_PER_STATEMENT, len(self.ids))))

    def lose_leases(self) -> None:
        """The messages may be leased to others by now."""
        self.late = True

    @property
    def told(self) -> Iterator[Callable[[], None]]:
        """Refuse all, because none of the settlements reaches the store."""
        for completion in self.completions:
            yield partial(completion.refuse_some, self.all_ids)
        yield from (refuse for refuse in self.refusals if refuse is not None)

    def return_parameters(self, node: int, audited: bool) -> dict[str, object]:
        """Parameters of return.sql and bury_elsewhere.sql."""
        return {
            "how": int(self.kind), "ids": array(self.ids), "node": node, "audited": audited, "target": self.target,
            "attempts": array(self.attempts) if self.attempts else None,
            "delays": array(self.delays) if self.delays else None,
            "tags": self.tags or None, "errors": self.errors or None,
        }  # fmt: skip


COLUMNS = ("ids", "delivered", "results", "consumers", "attempts", "delays", "tags", "errors", "refusals")
#: The settlements of one transaction.
Part = list[Settlements]


def halve(part: Part, _: Exception) -> list[Part]:
    """A part in two, or nothing of a single settlement."""
    if len(part) != 1:
        return halves(part)
    [settlements] = part
    settlements.spread()
    return [[settlements.part(some)] for some in halves(range(len(settlements.ids)))]


def each_once(settled: Part) -> Part:
    """Keep the last acknowledgement of each message. It may be acknowledged late, and again after another delivery."""
    ids = _all_ids(settled)
    if len(set(ids)) == len(ids):
        return settled
    seen: set[int] = set()
    last: Part = []
    for one in reversed(settled):
        places = {id: n for n, id in enumerate(one.ids) if id not in seen}
        seen.update(places)
        last.append(one.part(places.values()))
    return [one for one in reversed(last) if one.ids]


def settle_parameters(settled: Part, clock: float, audited: bool = False) -> dict[str, object]:
    """Parameters of settle.sql for acknowledgements of at least one message; `clock` added to a monotonic time makes a
    Unix time. What is the same for all is given once."""
    kept = any(one.keep for one in settled)
    results = any(one.results for one in settled)
    parameters: dict[str, object] = {
        "ids": array(_all_ids(settled)),
        "delivered": time_array([time for one in settled for time in one.delivered], clock) if kept else None,
        "results": [result for one in settled for result in one.results or [None] * len(one.ids)] if results else None,
        "audited": audited, "archive": kept, "whole": any(one.keep == KEPT["full"] for one in settled),
    }  # fmt: skip
    for name, column in (("consumer", "consumers"), ("keep", ""), ("job", "")):
        same = {getattr(one, name) for one in settled}
        varies = len(same) > 1 or any(getattr(one, column) for one in settled if column)
        parameters[name] = None if varies else same.pop()
        parameters[f"{name}s"] = _varying(settled, name, column) if varies else None
    return parameters


def _all_ids(settled: Part) -> list[int]:
    return settled[0].ids if len(settled) == 1 else [id for one in settled for id in one.ids]


def _varying(settled: Part, name: str, column: str) -> str:
    """A column from settlements that have it per message or once for all."""
    values: list[object] = []
    for one in settled:
        values += (column and getattr(one, column)) or [getattr(one, name)] * len(one.ids)
    return array(values)


def time_array(times: Sequence[float | None], offset: float) -> str:
    """Monotonic times as an array of Unix times. A burst has one time, so equal times come in runs."""
    runs = [("null," if time is None else f"{time + offset:.6f},", len(list(run))) for time, run in groupby(times)]
    return "{" + "".join(text * count for text, count in runs)[:-1] + "}"
