"""The backend in settings, and workers in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from django.db import connections
from django.test import override_settings

from queues.celery.django_tasks.worker import TaskWorker
from tests.waiting import PATIENCE

TASKS = {
    "default": {
        "BACKEND": "queues.celery.django_tasks.backend.FivewireBackend",
        "QUEUES": ["default", "fragile"],
        "OPTIONS": {"max_attempts": 1},
    },
    "stubborn": {
        "BACKEND": "queues.celery.django_tasks.backend.FivewireBackend",
        "QUEUES": ["stubborn", "fragile"],
        "OPTIONS": {"max_attempts": 3, "retry_backoff": 0.05},
    },
}

StartWorker = Callable[..., TaskWorker]


@pytest.fixture(autouse=True)
def settings_with_tasks(transactional_db: None) -> Iterator[None]:
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def start_worker() -> Iterator[StartWorker]:
    """Starts workers; all have ended when the test has."""
    running: list[tuple[TaskWorker, threading.Thread]] = []

    def work(worker: TaskWorker) -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    def start(*queues: str, concurrency: int = 2) -> TaskWorker:
        worker = TaskWorker(list(queues or ("default", "fragile")), concurrency, "default")
        thread = threading.Thread(target=work, args=(worker,))
        thread.start()
        running.append((worker, thread))
        return worker

    yield start
    for worker, _ in running:
        worker.stop()
    for _, thread in running:
        thread.join(PATIENCE)
        assert not thread.is_alive()
