"""Virtual time: actions in the order of their times."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any


class Schedule:
    """The actions of a run that have yet to happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._stop_at = float("inf")

    def at(self, time: float, action: Callable[..., None], *args: Any) -> None:
        """Have an action happen at a time."""
        self._count += 1
        heapq.heappush(self._heap, (time, self._count, action, args))

    def stop_at(self, time: float) -> None:
        """Let no action happen after this time."""
        self._stop_at = min(self._stop_at, time)

    def steps(self) -> Iterator[Callable[[], None]]:
        """Yield each action at its time."""
        while self._heap:
            time, _, action, args = heapq.heappop(self._heap)
            if time > self._stop_at:
                return
            self.now = time
            yield lambda action=action, args=args: action(*args)  # type: ignore[misc]
