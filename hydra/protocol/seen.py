"""The messages that have been relayed lately, so that none is relayed twice. No I/O."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Final

DEFAULT_SIZE: Final = 8192


class Seen:
    """Remembers up to `size` keys, each for a time; when there are more it forgets the oldest."""

    __slots__ = ("_keys", "_size")

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._keys: dict[Hashable, float] = {}

    def add(self, key: Hashable, now: float = 0.0, lifetime: float = inf) -> bool:
        """Remember a key for so many seconds; False if it is remembered already."""
        if self._keys.get(key, -inf) > now:
            return False
        self._keys.pop(key, None)
        self._keys[key] = now + lifetime
        if len(self._keys) > self._size:
            del self._keys[next(iter(self._keys))]
        return True

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)
