"""Scenarios that once broke a promise, and nodes that break a rule on purpose."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.rigs.hydra_simulator.checker import Violation
from tests.rigs.hydra_simulator.faulty_nodes import FAULTY_NODES
from tests.rigs.hydra_simulator.scenario import parse_scenario
from tests.rigs.hydra_simulator.world import World

CASES = Path(__file__).parent / "cases"
TRIES = 300
"""A change of the nodes shifts what is drawn from a seed; the case is to be found nearby."""
FOUND = sorted((CASES / "found").glob("*.txt"))


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_scenario_that_once_broke_a_promise_keeps_all(path: Path) -> None:
    world = World(parse_scenario(path.read_text())).run()
    assert world.found_after is not None


@pytest.mark.parametrize("faulty", FAULTY_NODES)
def test_the_checker_finds_a_node_that_breaks_a_rule(faulty: str) -> None:
    text = (CASES / "faulty_nodes" / f"{faulty}.txt").read_text()
    scenario = parse_scenario(text)
    promise = text.splitlines()[0].removeprefix("# breaks: ")
    for seed in range(scenario.seed, scenario.seed + TRIES):
        case = replace(scenario, seed=seed)
        broken = violation_of(World(case, node_class=FAULTY_NODES[faulty], only=promise))
        if broken is not None:
            assert broken.promise == promise
            World(case).run()
            return
    pytest.fail(f"not noticed in {TRIES} seeds")


def violation_of(world: World) -> Violation | None:
    try:
        world.run()
    except Violation as violation:
        return violation
    return None
