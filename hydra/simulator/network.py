"""The network of a run: who reaches whom, and how long it takes."""

from __future__ import annotations

from random import Random

from hydra.simulator.scenario import Scenario


class End:
    """One side of a link."""

    __slots__ = ("host", "last", "number", "open", "other")

    other: End

    def __init__(self, host: int, number: int) -> None:
        self.host = host
        self.number = number
        self.open = True
        self.last = 0.0
        """When the last message from here arrives."""


class Network:
    """All links, and the split between hosts if there is one."""

    def __init__(self, scenario: Scenario, rng: Random) -> None:
        self._scenario = scenario
        self._rng = rng
        self._ends: dict[int, End] = {}
        self._numbers = 0
        self._group: frozenset[int] = frozenset()
        self._loss = scenario.loss

    def connect(self, a: int, b: int) -> End:
        """Make a link; return the side of `a`."""
        self._numbers += 2
        end = self._ends[self._numbers] = End(a, self._numbers)
        other = self._ends[self._numbers + 1] = End(b, self._numbers + 1)
        end.other, other.other = other, end
        return end

    def end(self, number: int) -> End | None:
        """The side of a link that has this number, if it is open."""
        end = self._ends.get(number)
        return end if end is not None and end.open else None

    def open_ends(self) -> list[End]:
        """Both sides of all links that are open; those that are not are forgotten."""
        self._ends = {number: end for number, end in self._ends.items() if end.open or end.other.open}
        return [end for end in self._ends.values() if end.open]

    def arrivals(self, end: End, now: float) -> list[float]:
        """When a message sent now arrives: once, never, or more than once."""
        if self.is_split(end.host, end.other.host):
            return []
        scenario, rng = self._scenario, self._rng
        least, most = scenario.delay
        time = now + least + (most - least) * rng.random()
        if scenario.ordered:
            end.last = time = max(time, end.last + 1e-9)
            return [time]
        if self._loss and rng.random() < self._loss:
            return []
        if scenario.duplicates and rng.random() < scenario.duplicates:
            return [time, time + scenario.late * rng.random()]
        return [time]

    def last_arrival(self, end: End, now: float) -> float:
        """When the end of a link is seen on the other side."""
        least, most = self._scenario.delay
        return max(now + least + (most - least) * self._rng.random(), end.last)

    def split(self, group: set[int]) -> None:
        """From now on this group and the others do not reach each other."""
        self._group = frozenset(group)

    def heal(self, *, for_good: bool) -> None:
        """All reach each other; when that is for good, less may be lost than before."""
        self._group = frozenset()
        if for_good:
            self._loss = self._scenario.lasting_loss

    def is_split(self, a: int, b: int) -> bool:
        """Whether two hosts do not reach each other."""
        return (a in self._group) != (b in self._group)
