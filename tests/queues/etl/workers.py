"""Real Celery workers of this project, with a beat inside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from kombu import pools

from brokersite.celery import app
from brokersite.supervisor import STOP_TIMEOUT
from tests.queues.celery.worker import CeleryWorker


def forget_connections() -> None:
    """Close the connections of publishes: kombu declares a queue once on each, and each test begins without queues."""
    pools.reset()
    app._after_fork()


class EtlWorker(CeleryWorker):
    """`celery worker -B` on the test database; `directory` is where fake jobs meet the test."""

    def __init__(self, name: str, database_url: str, directory: Path, *options: str, **environment: str) -> None:
        super().__init__(
            "tests.queues.etl.workerapp", name, "-B", *options,
            DATABASE_URL=database_url, ETL_OUTPUT=directory / "output", **environment,
        )  # fmt: skip

    def kill(self) -> None:
        """kill -9 of the worker and the processes that run its tasks, as when their machine goes down."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    def stop(self, number: int = signal.SIGQUIT) -> int:
        """End it as `manage.py up` does: it waits for no task, and is killed if it does not end; the exit status.

        Celery stops its pool inside the handler of the signal: one that comes while a task is on its way to a child
        has it wait for ever.
        """
        self.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_TIMEOUT)
        self.end()
        return self.wait()
