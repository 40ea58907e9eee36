"""`manage.py bench` as a process, and its figures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from django.conf import settings

from brokersite.environment import CHECKOUT
from brokersite.rigs.bench.report import COLUMNS
from tests.waiting import PATIENCE
from tests.wire.broker import Database


def start(store: Database, *arguments: str) -> subprocess.Popen[str]:
    """`manage.py bench` as a process, in a process group of its own as from a shell."""
    return subprocess.Popen(
        [sys.executable, "manage.py", "bench", *arguments],
        cwd=CHECKOUT, env={**os.environ, "DATABASE_URL": store.url, "SECRET_KEY": settings.SECRET_KEY},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def bench(store: Database, *arguments: str, status: int = 0) -> str:
    """Run it to its end; what it printed, or what it said when it is to fail."""
    process = start(store, *arguments)
    try:
        out, err = process.communicate(timeout=8 * PATIENCE)  # Spark starts slowly on a busy machine
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)  # it ends what it has started
    assert process.returncode == status, out + err
    return err if status else out


def assert_whole(results: dict[str, Any], system: str, measures: Sequence[str], absent: Sequence[str] = ()) -> None:
    """A system has every figure of these measurements, and none of it is nothing. Only the processor time of another
    process may be: the kernel counts it in steps of 10 ms, and a short measurement can fall between two of them."""
    for measure in measures:
        for name in COLUMNS[measure]:
            if name not in absent:
                least = 0.0 if name in ("broker_cpu_us", "postgresql_cpu_us") else 1e-9
                assert results[measure][system][name]["median"] >= least, (measure, name)
