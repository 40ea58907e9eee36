"""The jobs that a worker has, by their jids.

Jobs that were pushed together and are finished together, in order, stay together: they cost a comparison of two lists.
When one is asked for by itself all runs are broken up, so that each job becomes an entry of a dictionary once at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Final, Generic, TypeVar

#: The subscription that jobs were pushed for.
C = TypeVar("C")


@dataclass(frozen=True, slots=True, eq=False)
class Pushed(Generic[C]):
    """The common facts of jobs pushed together: their consumer, attempt, and since when a worker has them and until
    when it may (Unix times)."""

    consumer: C
    attempt: int
    since: float
    deadline: float | None


#: A job that a worker has: with which it was pushed, and its delivery's tag.
Assignment = tuple[Pushed[C], int]
#: Fewer jobs than this are no run.
_LEAST: Final = 4


class _Run(Generic[C]):
    """Jobs pushed together: those from the place `at` on."""

    __slots__ = ("at", "jids", "pushed", "tags")

    def __init__(self, pushed: Pushed[C], tags: Sequence[int], jids: Sequence[bytes]) -> None:
        self.pushed = pushed
        self.tags = tags
        self.jids = jids
        self.at = 0

    def __len__(self) -> int:
        return len(self.jids) - self.at

    def items(self) -> Iterator[tuple[bytes, Assignment[C]]]:
        jids, tags = islice(self.jids, self.at, None), islice(self.tags, self.at, None)
        return zip(jids, zip(repeat(self.pushed), tags), strict=True)


class Assignments(Generic[C]):
    """A worker's jobs by their jids as UTF-8."""

    def __init__(self) -> None:
        self._single: dict[bytes, Assignment[C]] = {}
        #: The runs by their first jids.
        self._runs: dict[bytes, _Run[C]] = {}

    def __len__(self) -> int:
        return len(self._single) + sum(map(len, self._runs.values()))

    def add(self, pushed: Pushed[C], tags: Sequence[int], jids: Sequence[bytes]) -> None:
        """Jobs are pushed together. The jids are kept, and not changed."""
        if len(jids) < _LEAST:
            self._single.update(zip(jids, zip(repeat(pushed), tags), strict=True))
        else:
            self._runs[jids[0]] = _Run(pushed, tags, jids)

    def get(self, jid: bytes) -> Assignment[C] | None:
        """One job; None if this worker does not have it."""
        if jid not in self._single:
            self._break_up()
        return self._single.get(jid)

    def take(self, jid: bytes) -> Assignment[C] | None:
        """Take one job out; None if this worker does not have it."""
        if jid not in self._single:
            self._break_up()
        return self._single.pop(jid, None)

    def replace(self, jid: bytes, job: Assignment[C]) -> None:
        """A job's deadline has moved."""
        self._single[jid] = job

    def take_together(self, jids: Sequence[bytes]) -> tuple[C, list[Sequence[int]]] | None:
        """Take jobs out: their consumer, and their tags in order, those of a run together. None, and nothing is taken,
        unless all are this worker's, each is there once, and they are of one consumer."""
        taken = self._take_together([*jids] if self._single else jids)
        if taken is None and self._runs:
            self._break_up()
            taken = self._take_together([*jids])
        return taken

    def _take_together(self, jids: Sequence[bytes]) -> tuple[C, list[Sequence[int]]] | None:
        """The same, but that a run is taken from its beginning on."""
        runs: dict[_Run[C], int] = {}
        single: set[bytes] = set()
        consumers: set[C] = set()
        tags: list[Sequence[int]] = []
        alone: list[int] = []
        at = 0
        while at < len(jids):
            jid, count = jids[at], 1
            if (job := self._single.get(jid)) is not None and jid not in single:
                single.add(jid)
                consumers.add(job[0].consumer)
                if not alone:
                    tags.append(alone)
                alone.append(job[1])
            elif (run := self._runs.get(jid)) is not None and run not in runs:
                runs[run] = count = min(len(run), len(jids) - at)
                if run.jids[run.at : run.at + count] != jids[at : at + count]:
                    return None
                consumers.add(run.pushed.consumer)
                tags.append(run.tags[run.at : run.at + count])
                alone = []
            else:
                return None
            at += count
        if len(consumers) > 1:
            return None
        for jid in single:
            del self._single[jid]
        for run, count in runs.items():
            self._shorten(run, count)
        return consumers.pop(), tags

    def _shorten(self, run: _Run[C], count: int) -> None:
        """The first jobs of a run are taken out."""
        del self._runs[run.jids[run.at]]
        run.at += count
        if run:
            self._runs[run.jids[run.at]] = run

    def take_tags(self, consumer: C, tags: Sequence[int]) -> int:
        """Take out those jobs of a consumer that have these tags; returns how many there were."""
        self._break_up()
        gone = set(tags)
        jids = [jid for jid, (pushed, tag) in self._single.items() if pushed.consumer is consumer and tag in gone]
        for jid in jids:
            del self._single[jid]
        return len(jids)

    def take_all(self) -> list[Assignment[C]]:
        """Take all jobs out, the oldest first."""
        jobs = [job for _, job in self.oldest(len(self))]
        self._single.clear()
        self._runs.clear()
        return jobs

    def oldest(self, most: int) -> list[tuple[bytes, Assignment[C]]]:
        """The `most` oldest jobs, the oldest first."""
        items = [*self._single.items()]
        for run in self._runs.values():
            items += islice(run.items(), most)
        items.sort(key=_age)
        return items[:most]

    def _break_up(self) -> None:
        """Make entries of the dictionary of all runs."""
        for run in self._runs.values():
            self._single.update(run.items())
        self._runs.clear()


def _age(item: tuple[bytes, Assignment[C]]) -> tuple[float, int]:
    pushed, tag = item[1]
    return pushed.since, tag
