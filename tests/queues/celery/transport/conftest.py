"""Connections of kombu's to the test database, the tables beside them, and real workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kombu.connection import Connection

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from queues.celery.consumers import engine_thread
from tests.queues.celery.transport.tables import Tables
from tests.queues.celery.worker import CeleryWorker

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


def launch(broker: str, directory: Path, *options: str, **environment: str) -> CeleryWorker:
    """Start `celery worker` on the project of these tests."""
    given = {"PROJECT_BROKER": broker, "PROJECT_DIRECTORY": str(directory)} | environment
    return CeleryWorker("tests.queues.celery.transport.project", f"worker{next(_numbers)}", *options, **given)


StartWorker = Callable[..., CeleryWorker]


@pytest.fixture
def start_worker(broker_url: str, tmp_path: Path) -> Iterator[StartWorker]:
    """Starts workers and waits until they are ready; all are stopped at the end."""
    started: list[CeleryWorker] = []

    def start(*options: str, **environment: str) -> CeleryWorker:
        started.append(launch(broker_url, tmp_path, *options, **environment))
        return started[-1].wait_ready()

    yield start
    for worker in started:
        worker.stop()


@pytest.fixture
def tables(transactional_db: None) -> Iterator[Tables]:
    tables = Tables()
    yield tables
    tables.connection.close()
