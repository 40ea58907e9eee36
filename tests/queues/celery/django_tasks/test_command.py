"""`manage.py runtasks` as a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from brokersite.environment import CHECKOUT
from queues.models import TaskRun
from tests.process import Process
from tests.queues.celery.django_tasks import sample
from tests.queues.celery.django_tasks.conftest import TASKS
from tests.waiting import wait_until

Run = Callable[[], Process]


@pytest.fixture
def run(database_url: str, tmp_path: Path) -> Iterator[Run]:
    """Starts `manage.py runtasks`."""
    settings = tmp_path / "tasksettings.py"
    settings.write_text(f"from brokersite.settings import *\nimport json\nTASKS = json.loads({json.dumps(TASKS)!r})\n")
    environment = {
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "tasksettings",
        "PYTHONPATH": f"{tmp_path}:{CHECKOUT}",
    }
    running: list[Process] = []

    def start() -> Process:
        command = [sys.executable, "-m", "django", "runtasks", "--concurrency", "1"]
        running.append(Process(*command, environment=environment))
        return running[-1]

    yield start
    (tmp_path / "done").touch()
    for process in running:
        process.stop()


def test_a_task_of_a_killed_worker_runs_again(run: Run, tmp_path: Path) -> None:
    sample.hang.enqueue(str(tmp_path))
    dying = run()
    begun = tmp_path / "begun"
    wait_until(lambda: begun.exists() and begun.read_text(), "it runs")
    dying.kill()
    second = run()
    wait_until(lambda: len(begun.read_text().split()) == 2, "it runs again")
    (tmp_path / "done").touch()
    wait_until(lambda: TaskRun.objects.get().status == "SUCCESSFUL", "it has ended")
    assert TaskRun.objects.get().return_value == second.process.pid
    assert len(TaskRun.objects.get().worker_ids) == 2
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"backend": "unknown"}, "unknown"),
        ({"queues": "mail"}, "no queue 'mail'"),
        ({"concurrency": 0}, "1 or more"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        call_command("runtasks", **options)
