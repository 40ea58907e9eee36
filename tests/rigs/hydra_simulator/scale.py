"""Messages and takeovers by the size of a network, as a table."""

from __future__ import annotations

from itertools import combinations
from statistics import median
from typing import Final

from tests.rigs.hydra_simulator.scenario import FaultKind, Scenario, ScenarioFault
from tests.rigs.hydra_simulator.world import World

SIZES: Final = (3, 5, 7, 10, 20, 50)
MAX_MESH: Final = 10
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


HEADER: Final = """\
| nodes | links | their number | messages/s | messages/s and node | takeover, median s | longest s |
|---|---|---|---|---|---|---|"""


def measure(nodes: int, shape: str, runs: int) -> str:
    """Measure networks of one size and shape, one run for each seed from 0 on; return the table's row."""
    links = mesh(nodes) if shape == "all" else four_each(nodes)
    scenarios = (Scenario(seed, nodes, links, voters=nodes, end=1000.0) for seed in range(runs))
    rates, takeovers = zip(*map(_run, scenarios), strict=True)
    messages = median(rates)
    return (
        f"| {nodes} | {shape} | {len(links)} | {messages:.0f} | {messages / nodes:.1f} | "
        f"{median(takeovers):.1f} | {max(takeovers):.1f} |"
    )


def _run(scenario: Scenario) -> tuple[float, float]:
    world = World(scenario, only="", quiet=True)
    begin, end = MEASURED
    counts: list[int] = []
    found: list[float] = []

    def look() -> None:
        if any(host.node is not None and host.node.has_lease for host in world.hosts):
            found.append(world.now - end)
            world.stop_at(world.now)
        else:
            world.at(world.now + 0.05, look)

    for time in MEASURED:
        world.at(time, lambda: counts.append(world.messages))
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
        if (shape == "all") == (nodes <= 5) or (shape == "all" and nodes <= MAX_MESH)
    ]
    return "\n".join([HEADER, *rows])
