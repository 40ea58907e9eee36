"""``python -m tests.rigs.hydra_simulator``: run the simulator from the shell."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from hydra.protocol.node import Node
from tests.rigs.hydra_simulator.checker import Violation
from tests.rigs.hydra_simulator.faulty_nodes import FAULTY_NODES
from tests.rigs.hydra_simulator.runner import SimulationReport, run_seeds
from tests.rigs.hydra_simulator.scale import table
from tests.rigs.hydra_simulator.scenario import Scenario, draw_scenario, parse_scenario
from tests.rigs.hydra_simulator.world import World


def main(arguments: list[str] | None = None) -> int:
    """Run the simulator; returns 0 if all promises were kept, else 1."""
    options = _parser().parse_args(arguments)
    if options.table:
        print(table(options.runs))
        return 0
    if options.case is not None:
        return _trace(parse_scenario(options.case.read_text()), options)
    if options.seed is not None:
        return _trace(draw_scenario(options.seed), options)
    seeds = range(options.first, options.first + options.seeds)
    report = SimulationReport([*run_seeds(seeds, faulty=options.faulty, jobs=options.jobs)])
    print(report)
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.hydra_simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the first of them (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="one seed: show its scenario")
    parser.add_argument("--case", type=Path, metavar="FILE", help="one scenario from a file")
    parser.add_argument("--trace", action="store_true", help="with --seed or --case: show everything that happens")
    parser.add_argument("--faulty", choices=FAULTY_NODES, help="nodes that break a rule")
    parser.add_argument("--table", action="store_true", help="messages and takeovers by the number of nodes")
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="with --table: runs a row (default: %(default)s)"
    )
    return parser


def _trace(scenario: Scenario, options: argparse.Namespace) -> int:
    print(scenario)
    node_class = FAULTY_NODES[options.faulty] if options.faulty else Node
    world = World(scenario, node_class=node_class, trace=print if options.trace else None)
    try:
        world.run()
    except Violation as violation:
        print(violation)
        return 1
    found = "none" if world.found_after is None else f"{world.found_after:.1f} s after healing"
    print(f"all promises were kept; {len(world.checker.leaders)} terms; the last leader was found: {found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
