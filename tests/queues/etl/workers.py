"""Real Celery workers of this project, with a beat inside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
from kombu import pools

from brokersite.celery import app
from brokersite.environment import CHECKOUT
from brokersite.supervisor import STOP_TIMEOUT
from tests.waiting import wait_until


def forget_connections() -> None:
    """Close the connections of publishes: kombu declares a queue once on each, and each test begins without queues."""
    pools.reset()
    app._after_fork()


class Worker:
    """`celery worker -B` as a process, on the test database; `directory` is where fake jobs meet the test."""

    def __init__(self, name: str, database_url: str, directory: Path, *options: str, **environment: str) -> None:
        self.name = f"{name}@here"
        self.log = directory / f"{name}.log"
        command = [
            sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.queues.etl.workerapp", "worker", "-B",
            "-l", "info", "-n", self.name, *options,
        ]  # fmt: skip
        given = {"DATABASE_URL": database_url, "ETL_OUTPUT": str(directory / "output"), **environment}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=os.environ | given, cwd=CHECKOUT, stdout=out, stderr=out, start_new_session=True
            )

    @property
    def text(self) -> str:
        """What it has logged."""
        return self.log.read_text()

    def wait_until_ready(self) -> Worker:
        wait_until(lambda: "ready." in self.text or self.process.poll() is not None, lambda: self.text)
        assert self.process.poll() is None, self.text
        return self

    def kill(self) -> None:
        """kill -9 of the worker and the processes that run its tasks, as when their machine goes down."""
        family = [self.process.pid, *(child.pid for child in psutil.Process(self.process.pid).children())]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def quit(self) -> None:
        """End it as `manage.py up` does: it waits for no task, and is killed if it does not end.

        Celery stops its pool inside the handler of the signal: one that comes while a task is on its way to a child
        has it wait for ever.
        """
        self.process.send_signal(signal.SIGQUIT)
        try:
            self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def stop(self) -> None:
        """End it if it lives, and whatever it left."""
        try:
            self.quit()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
