"""The API keys of the consumers that have the messages of an audited queue, by the messages' ids.

Messages with consecutive ids that were delivered together are one entry, however many they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class Recipients:
    """The recipient of each outstanding message; None: a consumer without an API key, or it is not known."""

    __slots__ = ("_runs", "_single", "_starts")

    def __init__(self) -> None:
        self._single: dict[int, int | None] = {}
        #: Consecutive ids and their key, in order of ids, and the first id of each.
        self._runs: list[tuple[range, int | None]] = []
        self._starts: list[int] = []

    def __len__(self) -> int:
        return len(self._single) + sum(len(ids) for ids, _ in self._runs)

    def add(self, ids: Sequence[int], key: int | None) -> None:
        """Messages are delivered."""
        if isinstance(ids, range) and ids.step == 1 and len(ids) > 1:
            self._insert(bisect_right(self._starts, ids.start), ids, key)
        else:
            self._single.update(dict.fromkeys(ids, key))

    def together(self, ids: range, key: int | None) -> bool:
        """Whether messages with consecutive ids have one entry, with this key."""
        n = self._find(ids.start)
        return n is not None and ids.stop <= self._runs[n][0].stop and self._runs[n][1] == key

    def take(self, ids: Sequence[int]) -> list[int | None]:
        """Messages are no longer outstanding: the key of each."""
        keys: list[int | None] = []
        at = 0
        while at < len(ids):
            id = ids[at]
            n = None if id in self._single else self._find(id)
            if n is None:
                keys.append(self._single.pop(id, None))
                at += 1
                continue
            run, key = self._runs[n]
            count = consecutive(ids, at, run.stop - id)
            self._remove(n, range(id, id + count))
            keys += [key] * count
            at += count
        return keys

    def clear(self) -> None:
        """Nothing is outstanding."""
        self._single.clear()
        self._runs.clear()
        self._starts.clear()

    def _find(self, id: int) -> int | None:
        """The place of the run that has this id."""
        n = bisect_right(self._starts, id) - 1
        return n if n >= 0 and id < self._runs[n][0].stop else None

    def _insert(self, n: int, ids: range, key: int | None) -> None:
        self._runs.insert(n, (ids, key))
        self._starts.insert(n, ids.start)

    def _remove(self, n: int, ids: range) -> None:
        """Leave of a run what is before and behind these."""
        run, key = self._runs.pop(n)
        del self._starts[n]
        for rest in (range(ids.stop, run.stop), range(run.start, ids.start)):
            if rest:
                self._insert(n, rest, key)


def consecutive(ids: Sequence[int], at: int, most: int) -> int:
    """How many ids from this place on are consecutive, `most` at most."""
    most, first = min(most, len(ids) - at), ids[at]
    if isinstance(ids, range) and ids.step == 1:
        return most
    if ids[at + most - 1] == first + most - 1 and [*ids[at : at + most]] == [*range(first, first + most)]:
        return most
    return next((n for n in range(1, most) if ids[at + n] != first + n), most)
