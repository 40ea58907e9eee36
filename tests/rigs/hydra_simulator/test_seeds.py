"""Many seeds; `make soak` runs twenty thousand."""

import pytest

from tests.lengths import lengths
from tests.rigs.hydra_simulator.runner import SimulationReport, run_seeds


@pytest.mark.timeout(1200)  # all computing, on a machine that may be busy
@pytest.mark.parametrize("seeds", lengths(short=100, long=300))
def test_all_seeds_keep_all_promises(seeds: int) -> None:
    report = SimulationReport([*run_seeds(range(seeds))])
    assert report.passed, str(report)
    # Otherwise the scenarios would show nothing.
    assert len(report.outcomes) == seeds
    assert sum(outcome.terms for outcome in report.outcomes) > 2 * seeds
    assert report.hopeless < seeds / 50
    assert sum(found > 1 for found in report.found_after) > seeds / 3
