"""Messages and takeovers by the size of a network, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

from hydra.simulator.scenario import FaultKind, Scenario, ScenarioFault
from hydra.simulator.world import World

SIZES: Final = (3, 5, 7, 10, 20, 50)
LARGEST_MESH: Final = 10
#: Between these times the term is quiet: heartbeats and their answers, nothing else.
MEASURED: Final = (60.0, 90.0)


def mesh(nodes: int) -> tuple[tuple[int, int], ...]:
    """Links between all nodes."""
    return tuple((b, a) for a, b in combinations(range(nodes), 2))


def four_each(nodes: int) -> tuple[tuple[int, int], ...]:
    """Links from every node to two neighbours on a ring and to two farther away, where there are as many."""
    pairs = {
        (min(a, b), max(a, b))
        for a in range(nodes)
        for b in ((a + 1) % nodes, (a + max(2, round(nodes**0.5))) % nodes)
        if a != b
    }
    return tuple((b, a) for a, b in sorted(pairs))


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """One size and shape of a network."""

    nodes: int
    shape: str
    links: int
    messages: float
    """Messages a second, on all links together."""
    takeovers: tuple[float, ...]
    """Seconds from the leader's death to the next leader's lease, one for each run."""

    def __str__(self) -> str:
        return (
            f"| {self.nodes} | {self.shape} | {self.links} | {self.messages:.0f} | {self.messages / self.nodes:.1f} | "
            f"{median(self.takeovers):.1f} | {max(self.takeovers):.1f} |"
        )


HEADER: Final = """\
| nodes | links | their number | messages/s | messages/s and node | takeover, median s | longest s |
|---|---|---|---|---|---|---|"""


def measure(nodes: int, shape: str, runs: int) -> ScaleResult:
    """Measure networks of one size and shape, one run for each seed from 0 on."""
    links = mesh(nodes) if shape == "all" else four_each(nodes)
    rates, takeovers = [], []
    for seed in range(runs):
        rate, takeover = _run(Scenario(seed, nodes, links, voters=nodes, end=1000.0))
        rates.append(rate)
        takeovers.append(takeover)
    return ScaleResult(nodes, shape, len(links), median(rates), tuple(takeovers))


def _run(scenario: Scenario) -> tuple[float, float]:
    world = World(scenario, only="", quiet=True)
    begin, end = MEASURED
    counts: list[int] = []
    found: list[float] = []

    def count() -> None:
        counts.append(world.messages)

    def look() -> None:
        for host in world.hosts:
            if host.node is not None and host.node.has_lease:
                found.append(world.now - end)
                world.stop_at(world.now)
                return
        world.at(world.now + 0.05, look)

    world.at(begin, count)
    world.at(end, count)
    world.at(end, world.fault, ScenarioFault(end, FaultKind.CRASH_LEADER))
    world.at(end, look)
    world.run()
    return (counts[1] - counts[0]) / (end - begin), found[0]


def table(runs: int) -> str:
    """Measure all sizes and return the table in Markdown."""
    rows = [
        measure(nodes, shape, runs)
        for nodes in SIZES
        for shape in ("all", "four each")
        if (shape == "all") == (nodes <= 5) or (shape == "all" and nodes <= LARGEST_MESH)
    ]
    return "\n".join([HEADER, *map(str, rows)])
