"""The benchmark of Celery, as far as it needs no worker."""

from __future__ import annotations

from pathlib import Path

from brokersite.rigs.celery.bench import BYTES, _pace


def test_tasks_that_all_run_between_two_looks_have_a_rate(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    ran.write_bytes(20 * b"0".rjust(BYTES))
    assert _pace(ran, 20) > 0
