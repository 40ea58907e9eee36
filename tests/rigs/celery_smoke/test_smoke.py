"""The smoke command, with few tasks: it finds everything in order."""

from __future__ import annotations

import subprocess
import sys

import pytest

from brokersite.environment import CHECKOUT
from tests.queues.celery.transport.tables import Tables

pytestmark = pytest.mark.timeout(600)


@pytest.mark.long
def test_every_kind_of_task_runs_though_a_worker_is_killed(database_url: str, tables: Tables) -> None:
    smoke = "tests.rigs.celery_smoke"
    command = [sys.executable, "-W", "ignore", "-m", smoke, "--dsn", database_url, "--tasks", "200"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert {kind: int(rows[kind][1]) for kind in ("held", "later", "part", "retry", "revoked", "step", "total")} == {
        "held": 1, "later": 20, "part": 36, "retry": 30, "revoked": 0, "step": 24, "total": 4,
    }  # fmt: skip
    statuses = tables.rows("select status, count(*) from django_celery_results_taskresult group by status order by 1")
    assert [(row["status"], row["count"]) for row in statuses] == [("REVOKED", 10), ("SUCCESS", 190)]
