"""The network of a run: links, splits, delays and losses."""

from __future__ import annotations

from random import Random

from tests.rigs.hydra_simulator.scenario import Scenario


class End:
    """One side of a link."""

    other: End

    def __init__(self, host: int, number: int) -> None:
        self.host = host
        self.number = number
        self.open = True
        self.last = 0.0
        """When the last message from here arrives."""


class Network:
    """All links, and the split between the hosts."""

    def __init__(self, scenario: Scenario, rng: Random) -> None:
        self._scenario = scenario
        self._rng = rng
        self._ends: dict[int, End] = {}
        self._numbers = 0
        self._group: frozenset[int] = frozenset()
        self._loss = scenario.loss

    def connect(self, a: int, b: int) -> End:
        """Make a link; returns the side of `a`."""
        self._numbers += 2
        end = self._ends[self._numbers] = End(a, self._numbers)
        other = self._ends[self._numbers + 1] = End(b, self._numbers + 1)
        end.other, other.other = other, end
        return end

    def end(self, number: int) -> End | None:
        """The open side of a link with this number."""
        end = self._ends.get(number)
        return end if end is not None and end.open else None

    def open_ends(self) -> list[End]:
        """The sides of all open links; closed links are forgotten."""
        self._ends = {number: end for number, end in self._ends.items() if end.open or end.other.open}
        return [end for end in self._ends.values() if end.open]

    def arrivals(self, end: End, now: float) -> list[float]:
        """The times at which a message sent now arrives: none, one or more."""
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
        """When the other side sees the end of a link."""
        least, most = self._scenario.delay
        return max(now + least + (most - least) * self._rng.random(), end.last)

    def split(self, group: set[int]) -> None:
        """Separate a group of hosts from the others."""
        self._group = frozenset(group)

    def heal(self, *, for_good: bool) -> None:
        """End the split; `for_good` also lowers the loss to the lasting one."""
        self._group = frozenset()
        if for_good:
            self._loss = self._scenario.lasting_loss

    def is_split(self, a: int, b: int) -> bool:
        """Whether two hosts are separated."""
        return (a in self._group) != (b in self._group)
