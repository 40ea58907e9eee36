"""A cache with keys that clients choose, bounded by entries and by bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """A dictionary that `trim` brings back to `entries` things and `most_bytes`, as `size` counts an entry: of its
    oldest half it forgets entries that are `idle`."""

    def __init__(
        self, entries: int, most_bytes: int, size: Callable[[K, V], int], idle: Callable[[V], bool] = lambda _: True
    ) -> None:
        self._entries, self._most_bytes, self._size, self._idle = entries, most_bytes, size, idle
        self._known: dict[K, V] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[K]:
        return iter(self._known)

    def get(self, key: K) -> V | None:
        return self._known.get(key)

    def put(self, key: K, value: V) -> None:
        """Put a value in place of the key's former one."""
        self.drop(key)
        self._known[key] = value
        self._bytes += self._size(key, value)

    def trim(self) -> None:
        """Forget the oldest if there is too much; never the last."""
        if len(self._known) > self._entries or self._bytes > self._most_bytes:
            for old in list(self._known)[: len(self._known) // 2]:
                if self._idle(self._known[old]):
                    self.drop(old)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._bytes = 0

    def drop(self, key: K) -> None:
        """Forget this one, if it is known."""
        if key in self._known:
            self._bytes -= self._size(key, self._known.pop(key))
