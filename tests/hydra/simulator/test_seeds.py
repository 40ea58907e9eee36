"""A thousand seeds."""

import pytest

from hydra.simulator.runner import Report, run_seeds

SEEDS = 1000


@pytest.mark.timeout(1200)  # a minute's work for a processor of its own
def test_a_thousand_seeds_keep_all_promises() -> None:
    report = Report()
    for outcome in run_seeds(range(SEEDS)):
        report.add(outcome)
    assert report.passed, str(report)
    # Otherwise the scenarios would show nothing.
    assert report.runs == SEEDS
    assert report.terms > 2 * SEEDS
    assert report.hopeless < SEEDS / 50
    assert sum(found > 1 for found in report.found_after) > SEEDS / 3
