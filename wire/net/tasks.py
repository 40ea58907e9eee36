"""Tasks in the background of an object, which lasts longer than they do."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """Keeps tasks from being collected while they are under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str | None = None) -> None:
        """Begin a task."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()

    async def end(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
