"""The Celery application of `python -m tests.rigs.celery_smoke`: each task records in a file that it ran."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import Celery

import queues.celery.transport  # noqa: F401 - makes fivewire:// known

DIRECTORY = Path(os.environ["SMOKE_DIRECTORY"])
EFFECTS, RELEASE = DIRECTORY / "effects", DIRECTORY / "release"
QUEUE, CHORDS, HOLD = "smoke", "smoke-chords", "smoke-hold"
RETRIES = 2

app = Celery("smoke", broker=os.environ["SMOKE_BROKER"], backend="django-db")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"django_connection": "default"},
    task_acks_late=True,
    task_default_queue=QUEUE,
    task_routes={"smoke.part": CHORDS, "smoke.total": CHORDS, "smoke.hold": HOLD},
    worker_hijack_root_logger=False,
)

_file: int | None = None


def note(kind: str, number: int, detail: object = "-") -> None:
    """Append a line to the file of effects: whatever is killed afterwards, it stays."""
    global _file
    if _file is None:
        _file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_file, f"{kind} {number} {detail}\n".encode())


@app.task(name="smoke.count")  # type: ignore[untyped-decorator]
def count(kind: str, number: int) -> int:
    """One of many."""
    note(kind, number)
    return number


@app.task(name="smoke.part")  # type: ignore[untyped-decorator]
def part(number: int) -> int:
    """Of a chord's header."""
    note("part", number)
    return number


@app.task(name="smoke.total")  # type: ignore[untyped-decorator]
def total(values: Sequence[int], number: int) -> int:
    """A chord's callback."""
    note("total", number, sum(values))
    return sum(values)


@app.task(name="smoke.step")  # type: ignore[untyped-decorator]
def step(value: int, number: int) -> int:
    """Of a chain: each gets what the one before returned."""
    note("step", number, value)
    return value + 1


@app.task(name="smoke.stubborn", bind=True, max_retries=RETRIES)  # type: ignore[untyped-decorator]
def stubborn(self: Any, number: int) -> int:
    """Fails until its last attempt."""
    note("retry", number, self.request.retries)
    if self.request.retries < RETRIES:
        raise self.retry(countdown=0.2)
    return number


@app.task(name="smoke.later")  # type: ignore[untyped-decorator]
def later(number: int, due: float) -> int:
    """Says whether its time, in seconds since 1970, has come."""
    note("later", number, "due" if time.time() >= due else "early")
    return number


@app.task(name="smoke.hold")  # type: ignore[untyped-decorator]
def hold(number: int) -> int:
    """Lasts until a file is there."""
    note("begun", number)
    while not RELEASE.exists():
        time.sleep(0.02)
    note("held", number)
    return number
