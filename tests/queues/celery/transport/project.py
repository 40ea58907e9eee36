"""A Celery project as its users have them: its tasks note in files what they do."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery

import queues.celery.transport  # noqa: F401 - makes fivewire:// known
from queues.celery.consumers import engine_thread

#: A busy machine may take seconds for the few commits of an engine that leaves.
engine_thread.STOP = 30.0

# A test process has the application of the site as its current one, which shared tasks belong to.
app = Celery(
    "project", broker=os.environ.get("PROJECT_BROKER"), backend=os.environ.get("PROJECT_BACKEND", "rpc://"),
    set_as_current=False,
)  # fmt: skip
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_transport_options=(
        {"django_connection": alias} if (alias := os.environ.get("PROJECT_ALIAS")) else {}
    ) | ({"confirm_publish": False} if os.environ.get("PROJECT_UNCONFIRMED") else {}),
    task_send_sent_event=True,
)
app.conf.update(json.loads(os.environ.get("PROJECT_SETTINGS", "{}")))


def note(name: str, line: object) -> None:
    """Append a line to a file of the test's."""
    with (Path(os.environ["PROJECT_DIRECTORY"]) / name).open("a") as file:
        file.write(f"{line}\n")


@app.task  # type: ignore[untyped-decorator]
def number(value: int) -> int:
    note("numbers", value)
    return value


@app.task  # type: ignore[untyped-decorator]
def total(values: list[int]) -> int:
    note("totals", sum(values))
    return sum(values)


@app.task  # type: ignore[untyped-decorator]
def echo(value: str, **_: str) -> str:
    """Return a text."""
    return value


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def stubborn(self: Any) -> int:
    note("attempts", self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def slow(value: int, until: str) -> None:
    """Last until a file is there."""
    note("begun", value)
    path = Path(os.environ["PROJECT_DIRECTORY"]) / until
    while not path.exists():
        time.sleep(0.02)
    note("ended", value)


@app.task(acks_late=True)  # type: ignore[untyped-decorator]
def pid() -> int:
    return os.getpid()


@app.task  # type: ignore[untyped-decorator]
def sends(value: int) -> None:
    """Publish from a worker's child."""
    number.delay(value)


@app.task(bind=True, acks_late=True, retry_on_worker_lost=True, default_retry_delay=0)  # type: ignore[untyped-decorator]
def dies(self: Any) -> int:
    """Kill the child that runs it, the first time."""
    note("attempts", self.request.retries)
    if self.request.retries == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return int(self.request.retries)
