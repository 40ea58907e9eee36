"""Runs many seeds and reports the outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from hydra.protocol.node import Node
from tests.rigs.hydra_simulator.checker import LEADER_FOUND, Violation
from tests.rigs.hydra_simulator.faulty_nodes import FAULTY_NODES
from tests.rigs.hydra_simulator.scenario import draw_scenario
from tests.rigs.hydra_simulator.world import PATIENCE, World

#: The share of seeds in which a leader may take longer than PATIENCE after healing.
LATE_ALLOWED: Final = 0.001
CHUNK: Final = 50


@dataclass(frozen=True, slots=True)
class SeedOutcome:
    """The outcome of one seed."""

    seed: int
    violation: Violation | None
    found_after: float | None
    """Seconds from healing to a leader; None if there was none."""
    seconds: float
    """Length of the run, in virtual time."""
    messages: int
    terms: int
    """Terms with a leader."""


def run_seed(seed: int, faulty: str | None = None) -> SeedOutcome:
    """Run the scenario of one seed, with the faulty nodes of this name if one is given."""
    world = World(draw_scenario(seed), node_class=Node if faulty is None else FAULTY_NODES[faulty])
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = error
    return SeedOutcome(seed, violation, world.found_after, world.now, world.messages, len(world.checker.leaders))


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The outcomes of many seeds."""

    outcomes: list[SeedOutcome]

    def _broken(self, *, late: bool) -> list[SeedOutcome]:
        """Runs that broke a promise: that of a leader in time (`late`), or another one."""
        broken = [(one, one.violation.promise) for one in self.outcomes if one.violation is not None]
        return [one for one, promise in broken if late is (promise == LEADER_FOUND)]

    @property
    def hopeless(self) -> int:
        """Runs in which a majority of the voters had lost their disks."""
        return sum(one.violation is None and one.found_after is None for one in self.outcomes)

    @property
    def found_after(self) -> list[float]:
        """Seconds from healing to a leader, in runs with one; the shortest first."""
        return sorted(one.found_after for one in self.outcomes if one.found_after is not None)

    @property
    def passed(self) -> bool:
        """Whether all promises were kept."""
        return not self._broken(late=False) and len(self._broken(late=True)) <= LATE_ALLOWED * len(self.outcomes)

    def __str__(self) -> str:
        outcomes, broken, late = self.outcomes, self._broken(late=False), self._broken(late=True)
        found = self.found_after or [0.0]
        middle, longest = found[len(found) // 2], found[-1]
        lines = [
            f"{len(outcomes)} seeds, {sum(one.seconds for one in outcomes) / 3600:.1f} h of virtual time, "
            f"{sum(one.terms for one in outcomes)} terms, {sum(one.messages for one in outcomes)} messages",
            f"{len(broken)} broke a promise",
            f"{len(late)} had no leader within {PATIENCE:g} s after healing"
            + (f": {', '.join(str(one.seed) for one in late)}" if late else ""),
            f"{self.hopeless} lost the disks of a majority, and cannot have one",
            f"time to a leader after healing: median {middle:.1f} s, longest {longest:.1f} s",
            *(f"seed {outcome.seed}: {outcome.violation}" for outcome in broken),
        ]
        return "\n".join(lines)


def run_seeds(seeds: Iterable[int], *, faulty: str | None = None, jobs: int = 1) -> Iterator[SeedOutcome]:
    """Run many seeds in `jobs` processes; outcomes come in the order of the seeds."""
    run = partial(run_seed, faulty=faulty)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=CHUNK)
