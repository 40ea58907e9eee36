"""A PostgreSQL that torture tests may kill, freeze and cut, apart from the one of the other tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokersite.rigs.torture.database import TortureDatabase
from brokersite.rigs.torture.history import InjectedFaultKind
from brokersite.rigs.torture.runner import Run, TorturePlan, TortureReport, describe

#: Messages that a run has to confirm, however slow the machine is.
CONFIRMED = 2000

Torture = Callable[..., TortureReport]


@pytest.fixture(scope="session")
def torture_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TortureDatabase]:
    database = TortureDatabase(tmp_path_factory.mktemp("torture"))
    try:
        database.start()
        yield database
    finally:
        database.remove()


@pytest.fixture
def torture(torture_database: TortureDatabase) -> Torture:
    """Run clients against faults, so many of each kind; what the run prints is shown when the test fails."""

    def run(faults: dict[InjectedFaultKind, int], seed: int = 1, **options: object) -> TortureReport:
        given: dict[str, Any] = {"confirmed": CONFIRMED, **options}
        plan = TorturePlan(seed=seed, faults=faults, seconds=400.0, **given)
        report = Run(torture_database, plan, print).run()
        print("\n".join(describe(report)))
        return report

    return run
