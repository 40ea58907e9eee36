"""Runs many seeds and reports the outcomes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hydra.protocol.node import Node
from hydra.simulator.checker import LEADER_FOUND, Violation
from hydra.simulator.faulty_nodes import FAULTY_NODES
from hydra.simulator.scenario import draw_scenario
from hydra.simulator.world import PATIENCE, World

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


@dataclass(slots=True)
class SimulationReport:
    """The outcomes of many seeds."""

    runs: int = 0
    broken: list[SeedOutcome] = field(default_factory=list)
    """Runs with a broken promise."""
    late: list[int] = field(default_factory=list)
    """Seeds without a leader in time."""
    hopeless: int = 0
    """Runs in which a majority of the voters had lost their disks."""
    found_after: list[float] = field(default_factory=list)
    seconds: float = 0.0
    messages: int = 0
    terms: int = 0

    def add(self, outcome: SeedOutcome) -> None:
        """Count a run."""
        self.runs += 1
        self.seconds += outcome.seconds
        self.messages += outcome.messages
        self.terms += outcome.terms
        if outcome.found_after is not None:
            self.found_after.append(outcome.found_after)
        if outcome.violation is None:
            self.hopeless += outcome.found_after is None
        elif outcome.violation.promise == LEADER_FOUND:
            self.late.append(outcome.seed)
        else:
            self.broken.append(outcome)

    @property
    def passed(self) -> bool:
        """Whether all promises were kept."""
        return not self.broken and len(self.late) <= LATE_ALLOWED * self.runs

    def __str__(self) -> str:
        found = sorted(self.found_after) or [0.0]
        middle, longest = found[len(found) // 2], found[-1]
        lines = [
            f"{self.runs} seeds, {self.seconds / 3600:.1f} h of virtual time, {self.terms} terms, "
            f"{self.messages} messages",
            f"{len(self.broken)} broke a promise",
            f"{len(self.late)} had no leader within {PATIENCE:g} s after healing"
            + (f": {', '.join(map(str, self.late))}" if self.late else ""),
            f"{self.hopeless} lost the disks of a majority, and cannot have one",
            f"time to a leader after healing: median {middle:.1f} s, longest {longest:.1f} s",
            *(f"seed {outcome.seed}: {outcome.violation}" for outcome in self.broken),
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
