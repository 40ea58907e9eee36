"""Calls of several tasks that one operation answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class SharedCall:
    """Carries an operation out for all tasks that ask for it before it begins; those that come later share the next.

    An error is raised in each of them. A task that is cancelled leaves the operation to the others.
    """

    def __init__(self, operation: Callable[[], Awaitable[None]]) -> None:
        self._operation = operation
        self._next: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def join(self) -> None:
        """Return when an operation that began after this call is over; raises as the operation does."""
        if self._next is None:
            self._next = asyncio.create_task(self._carry_out())
            self._next.add_done_callback(_heard)
        await asyncio.shield(self._next)

    async def _carry_out(self) -> None:
        async with self._turn:
            self._next = None
            await self._operation()


def _heard(task: asyncio.Task[None]) -> None:
    """Look at the error, which nobody else does if all that have asked are cancelled."""
    if not task.cancelled():
        task.exception()
