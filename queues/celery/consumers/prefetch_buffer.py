"""Messages between the engine's thread and a thread whose consumers have a prefetch count."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefetchBuffer(Generic[T]):
    """Pushed messages that no consumer has yet, in order. Thread-safe.

    A consumer with a free place gets one at once. Asking the engine takes two thread switches, which last milliseconds
    in a busy interpreter. """

    def __init__(self, changed: Callable[[], None]) -> None:
        self.items: deque[T] = deque()
        self._changed = changed

    def __bool__(self) -> bool:
        return bool(self.items)

    def put(self, items: Sequence[T]) -> None:
        """Add messages, and tell."""
        self.items.extend(items)
        self._changed()

    def get(self) -> T | None:
        """The next message, or None."""
        try:
            return self.items.popleft()
        except IndexError:
            return None

    def take_back(self, count: int) -> list[T]:
        """Remove up to `count` messages from the end."""
        taken: list[T] = []
        with contextlib.suppress(IndexError):  # the other thread was quicker
            while len(taken) < count:
                taken.append(self.items.pop())
        return taken[::-1]

    def remove(self, chosen: Callable[[T], bool]) -> list[T]:
        """Remove the messages that are chosen."""
        taken: list[T] = []
        for item in tuple(self.items):
            if chosen(item):
                with contextlib.suppress(ValueError):  # the other thread was quicker
                    self.items.remove(item)
                    taken.append(item)
        return taken
