"""Tasks for the tests: module-level functions, as the framework wants them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

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


@task()
def hang(directory: str) -> int:
    """Last until there is a file `done`; say so in `begun`."""
    with (Path(directory) / "begun").open("a") as file:
        file.write(f"{os.getpid()}\n")
    while not (Path(directory) / "done").exists():
        time.sleep(0.02)
    return os.getpid()


not_a_task = 7
