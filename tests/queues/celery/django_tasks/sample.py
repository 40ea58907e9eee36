"""Tasks for the tests: module-level functions, as the framework wants them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection

from queues.celery.django_tasks.framework import TaskContext, task


@task()
def add(a: int, b: int) -> int:
    return a + b


@task()
async def add_later(a: int, b: int) -> int:
    return a + b


@task(takes_context=True)
def attempt(context: TaskContext[..., Any]) -> int:
    return context.attempt


@task(takes_context=True)
def third_time(context: TaskContext[..., Any]) -> str:
    """Fail twice."""
    if context.attempt < 3:
        raise KeyError(context.attempt)
    return "done"


@task()
def fail() -> None:
    raise ValueError("no")


@task()
def note(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


@task()
def unserializable() -> Any:
    return object()


#: What jsonb refuses, by a name that can be enqueued.
UNSTORABLE: dict[str, Any] = {
    "NUL": "a\0b", "surrogate": "name-\udcff", "NaN": math.nan, "infinity": [{"x": -math.inf}],
    "key": {"a\0b": 1}, "deep": json.loads("[" * 600 + "]" * 600),
}  # fmt: skip


@task()
def give(name: str) -> Any:
    """Return what cannot be stored."""
    return UNSTORABLE[name]


@task()
def say(name: str) -> None:
    """Fail with a text that cannot be stored."""
    raise ValueError(UNSTORABLE[name])


class Silent(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@task()
def fail_silently() -> None:
    raise Silent


@task()
def fail_at_length() -> None:
    raise ValueError("\0" * (16 << 20))


@task()
def cut() -> int:
    """End the session that the worker stores results by."""
    with contextlib.suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")
    return 1


@task()
def hang(directory: str) -> int:
    """Last until there is a file `done`; say so in `begun`."""
    with (Path(directory) / "begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not (Path(directory) / "done").exists():
        time.sleep(0.02)
    return os.getpid()


not_a_task = 7
