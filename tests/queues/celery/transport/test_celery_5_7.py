"""What Celery 5.7 and kombu 5.7 have brought; batches of producers are in `test_publishing.py`."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import celery
import pytest
from celery.exceptions import TimeLimitExceeded

from tests.process import Process
from tests.queues.celery.transport import project
from tests.queues.celery.transport.conftest import StartWorker
from tests.queues.celery.transport.tables import Tables
from tests.queues.celery.transport.test_celery import app, lines
from tests.waiting import PATIENCE, wait_until

__all__ = ("app",)  # a fixture

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(celery.VERSION < (5, 7), reason="it is new in Celery 5.7"),
]


class Beat(Process):
    """`celery beat` as a process."""

    @property
    def ready(self) -> bool:
        """Whether its remote control is."""
        return "beat pidbox: Connected" in self.log


def test_children_of_a_pool_that_spawns_run_tasks_and_publish(
    app: Any, start_worker: StartWorker, tmp_path: Path
) -> None:
    start_worker("-c", "2", PROJECT_SETTINGS=json.dumps({"worker_pool_start_method": "spawn"}))
    assert project.number.delay(3).get(timeout=PATIENCE) == 3
    project.sends.delay(4).get(timeout=PATIENCE)
    wait_until(lambda: lines(tmp_path, "numbers") == ["3", "4"], "what the child sent ran")


def test_a_task_whose_child_was_killed_is_retried_and_counted(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    start_worker("-c", "1")
    assert project.dies.delay().get(timeout=PATIENCE) == 1
    assert lines(tmp_path, "attempts") == ["0", "1"]
    wait_until(lambda: tables.held("celery") == (0, 0, 0, 0), "nothing is left")


def test_a_task_beyond_its_time_limit_is_finished_or_comes_again_as_acks_on_timeout_says(
    app: Any, start_worker: StartWorker, tmp_path: Path, tables: Tables
) -> None:
    worker = start_worker("-c", "1", PROJECT_SETTINGS=json.dumps({"task_acks_on_timeout": True}))
    with pytest.raises(TimeLimitExceeded):
        project.slow.apply_async((1, "done"), time_limit=1).get(timeout=PATIENCE)
    wait_until(lambda: tables.held("celery") == (0, 0, 0, 0), "it is finished")
    worker.stop()
    start_worker("-c", "1", PROJECT_SETTINGS=json.dumps({"task_acks_on_timeout": False}))
    project.slow.apply_async((2, "done"), time_limit=1)
    wait_until(lambda: lines(tmp_path, "begun").count("2") == 2, "it comes again")
    (tmp_path / "done").touch()
    wait_until(lambda: tables.held("celery") == (0, 0, 0, 0), "it has ended")
    assert lines(tmp_path, "ended") == ["2"]


def test_a_beat_answers_remote_control(app: Any, broker_url: str, tmp_path: Path) -> None:
    beat = Beat(
        sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.queues.celery.transport.project", "beat",
        "-l", "info", "-s", str(tmp_path / "schedule"), "--pidfile=", merged=True, group=True,
        environment={
            "PROJECT_BROKER": broker_url,
            "PROJECT_DIRECTORY": str(tmp_path),
            "PROJECT_SETTINGS": json.dumps({"beat_enable_remote_control": True}),
        },
    )  # fmt: skip
    try:
        beat.wait_ready()
        answers = wait_until(lambda: app.control.inspect(timeout=PATIENCE, limit=1).ping(), "it answers")
        assert answers == {f"celerybeat@{socket.gethostname()}": {"ok": "pong"}}
    finally:
        beat.stop()


def test_the_queue_of_a_workers_remote_control_is_its_own_and_goes_with_it(
    app: Any, start_worker: StartWorker, tables: Tables
) -> None:
    worker = start_worker("-c", "1")
    name = f"{worker.name}.celery.pidbox"
    assert app.control.mailbox.queue_exclusive
    assert name in tables.queues()
    worker.stop()
    wait_until(lambda: name not in tables.queues(), "it is gone")
