"""Runs many seeds and tells what came of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hydra.simulator.checker import LEADER_FOUND, Violation
from hydra.simulator.holes import HOLES
from hydra.simulator.scenario import draw_scenario
from hydra.simulator.world import PATIENCE, World

LATE_ALLOWED: Final = 0.001
"""The part of the seeds in which a leader may take longer than PATIENCE after healing."""
CHUNK: Final = 50


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    violation: Violation | None
    found_after: float | None
    """Seconds from healing to a leader; None if there was none."""
    seconds: float
    """How long the run was, in virtual time."""
    messages: int
    terms: int
    """How many terms had a leader."""


def run_seed(seed: int, hole: str | None = None) -> Outcome:
    """Run the scenario of one seed, with a hole if one is named."""
    world = World(draw_scenario(seed)) if hole is None else World(draw_scenario(seed), node_class=HOLES[hole])
    violation = None
    try:
        world.run()
    except Violation as error:
        violation = error
    return Outcome(seed, violation, world.found_after, world.now, world.messages, len(world.checker.leaders))


@dataclass(slots=True)
class Report:
    """What came of many seeds."""

    runs: int = 0
    broken: list[Outcome] = field(default_factory=list)
    """A promise was broken."""
    late: list[int] = field(default_factory=list)
    """The seeds in which no leader was found in time."""
    hopeless: int = 0
    """Runs in which a majority of the voters had lost their disks."""
    found_after: list[float] = field(default_factory=list)
    seconds: float = 0.0
    messages: int = 0
    terms: int = 0

    def add(self, outcome: Outcome) -> None:
        """One more run."""
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


def run_seeds(seeds: Iterable[int], *, hole: str | None = None, jobs: int = 1) -> Iterator[Outcome]:
    """Run many seeds, in as many processes as there are jobs; the outcomes come in the order of the seeds."""
    run = partial(run_seed, hole=hole)
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=CHUNK)
