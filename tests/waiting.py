"""The tests' one way to wait: for a condition, until it holds or :data:`PATIENCE` is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

#: Seconds after which a condition counts as never met, on a busy machine too.
PATIENCE: Final = 60.0
#: Seconds between the first looks at a condition, and between all others: a look may be a statement.
FIRST_PAUSES, PAUSE = (0.005, 0.01, 0.02), 0.04


def wait_until(
    condition: Callable[[], Any], what: str | Callable[[], object] = "it", patience: float = PATIENCE
) -> Any:
    """Return the first true value of `condition`. Raises AssertionError, with `what`, when `patience` is over."""
    deadline, pauses = time.monotonic() + patience, iter(FIRST_PAUSES)
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what if isinstance(what, str) else what()} has not happened"
        time.sleep(next(pauses, PAUSE))
    return result


async def until(
    condition: Callable[[], Any], what: str | Callable[[], object] = "it", patience: float = PATIENCE
) -> Any:
    """:func:`wait_until` on the event loop."""
    deadline, pauses = time.monotonic() + patience, iter(FIRST_PAUSES)
    while not (result := condition()):
        assert time.monotonic() < deadline, f"{what if isinstance(what, str) else what()} has not happened"
        await asyncio.sleep(next(pauses, PAUSE))
    return result


class Changes:
    """Changes of a test double, announced by :meth:`notify` and awaited by :meth:`until` without polling."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def notify(self) -> None:
        """Have the condition looked at again."""
        self._changed.set()

    async def until(self, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """Return the first true value of `condition`. Raises TimeoutError."""
        async with asyncio.timeout(patience):
            while not (result := condition()):
                self._changed.clear()
                await self._changed.wait()
        return result
