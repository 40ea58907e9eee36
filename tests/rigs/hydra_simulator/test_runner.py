"""The sums over many seeds, and the command."""

from pathlib import Path

import pytest

from tests.rigs.hydra_simulator.__main__ import main
from tests.rigs.hydra_simulator.checker import LEADER_FOUND, ONE_LEADER, Violation
from tests.rigs.hydra_simulator.runner import SeedOutcome, SimulationReport, run_seeds

CASES = Path(__file__).parent / "cases"


def outcome(promise: str | None = None, found: float | None = 2.0) -> SeedOutcome:
    violation = None if promise is None else Violation(promise, 1.0, "x")
    return SeedOutcome(7, violation, found, seconds=60.0, messages=100, terms=2)


def report(*outcomes: SeedOutcome) -> SimulationReport:
    return SimulationReport([*outcomes])


def test_one_broken_promise_fails_all_seeds() -> None:
    assert report(*[outcome()] * 10).passed
    broken = report(*[outcome()] * 10_000, outcome(ONE_LEADER))
    assert not broken.passed
    assert "seed 7: at most one leader in a term: x (at 1.000 s)" in str(broken)


@pytest.mark.parametrize(("runs", "passed"), [(998, False), (999, True)])
def test_one_late_leader_in_a_thousand_is_allowed(runs: int, passed: bool) -> None:
    assert report(*[outcome()] * runs, outcome(LEADER_FOUND, None)).passed is passed


def test_a_network_without_its_disks_is_no_failure() -> None:
    made = report(outcome(found=None))
    assert (made.passed, made.hopeless) == (True, 1)


def test_processes_change_nothing() -> None:
    assert list(run_seeds(range(6), jobs=2)) == list(run_seeds(range(6)))


def test_the_command_runs_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--first", "5"]) == 0
    assert capsys.readouterr().out.startswith("3 seeds, ")


def test_the_command_shows_a_case_and_what_it_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    case = str(CASES / "faulty_nodes" / "stubborn-leader.txt")
    assert main(["--case", case]) == 0
    assert "all promises were kept; 2 terms" in capsys.readouterr().out
    assert main(["--case", case, "--faulty", "stubborn-leader", "--trace"]) == 1
    output = capsys.readouterr().out
    assert "at most one node holds IRC: node" in output
    assert " PING 2 2.1." in output
