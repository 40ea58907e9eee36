"""Connections of kombu's to the test database, the tables beside them, and real workers."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.connection import Connection

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from brokersite.environment import CHECKOUT
from queues.celery.consumers import engine_thread
from tests.queues.celery.transport.tables import Tables
from tests.waiting import PATIENCE, wait_until

Connect = Callable[..., Connection]
_numbers = itertools.count(1)


@pytest.fixture
def broker_url(database_url: str) -> str:
    """The test database as the URL of a broker."""
    return "fivewire://" + database_url.partition("://")[2]


@pytest.fixture
def connect(broker_url: str) -> Iterator[Connect]:
    """Makes connections; those that are open in the end are closed, and so is the engine behind them."""
    made: list[Connection] = []

    def connect(**options: Any) -> Connection:
        made.append(Connection(broker_url, transport_options=options))
        return made[-1]

    yield connect
    for connection in made:
        connection.release()
    engine_thread.stop_all()


class Worker:
    """`celery worker` as a process, on the project of these tests."""

    def __init__(self, environment: dict[str, str], log: Path, *options: str) -> None:
        self.name = f"worker{next(_numbers)}"
        self.log = log / f"{self.name}.log"
        command = [
            sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.queues.celery.transport.project", "worker",
            "-l", "info", "-n", f"{self.name}@here", *options,
        ]  # fmt: skip
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=os.environ | environment, cwd=CHECKOUT, stdout=out, stderr=out, start_new_session=True
            )

    def wait_ready(self) -> Worker:
        wait_until(lambda: "ready." in self.text or self.process.poll() is not None, "the worker is ready")
        assert self.process.poll() is None, self.text
        return self

    @property
    def text(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        """kill -9 the worker, and not its children."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> None:
        """End it, warmly if it lives, and whatever it left."""
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


StartWorker = Callable[..., Worker]


@pytest.fixture
def start_worker(broker_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers and waits until they are ready; all are stopped at the end."""
    started: list[Worker] = []

    def start(*options: str, **environment: str) -> Worker:
        given = {"PROJECT_BROKER": broker_url, "PROJECT_DIRECTORY": str(tmp_path)} | environment
        worker = Worker(given, tmp_path, *options)
        started.append(worker)
        return worker.wait_ready()

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def tables(transactional_db: None) -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.connection.close()
