"""The messages relayed recently: none is relayed twice. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from math import inf
from typing import Final

DEFAULT_SIZE: Final = 8192
#: Longer texts in a key are replaced by their digest: other nodes choose their length.
MAX_PART: Final = 64


class Seen:
    """Remembers up to `size` keys, each for a time; the oldest are forgotten first."""

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._keys: dict[Hashable, float] = {}

    def add(self, key: Hashable, now: float = 0.0, lifetime: float = inf) -> bool:
        """Remember a key for `lifetime` seconds; False if it is remembered already."""
        key = _short(key)
        if self._keys.get(key, -inf) > now:
            return False
        self._keys.pop(key, None)
        self._keys[key] = now + lifetime
        if len(self._keys) > self._size:
            del self._keys[next(iter(self._keys))]
        return True

    def __deepcopy__(self, memo: object) -> Seen:
        copy = Seen(self._size)
        copy._keys = self._keys.copy()
        return copy

    def __contains__(self, key: Hashable) -> bool:
        return _short(key) in self._keys

    def __len__(self) -> int:
        return len(self._keys)


def _short(key: Hashable) -> Hashable:
    """A key of bounded size."""
    if not isinstance(key, tuple):
        return _digest(key)
    return tuple(_digest(part) for part in key)


def _digest(part: Hashable) -> Hashable:
    if isinstance(part, str) and len(part) > MAX_PART:
        return hashlib.blake2b(part.encode(errors="surrogatepass"), digest_size=16).digest()
    return part
