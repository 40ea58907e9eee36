"""The API keys of the consumers that have the messages of an audited queue, by the messages' ids.

Messages with consecutive ids that were delivered together are one entry, however many they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from queues.intervals import IntervalMap


class Recipients:
    """The API key of each unacknowledged message's consumer. None: the consumer has no key, or is unknown."""

    __slots__ = ("_runs", "_single")

    def __init__(self) -> None:
        self._single: dict[int, int | None] = {}
        #: Consecutive ids and their key.
        self._runs: IntervalMap[int | None] = IntervalMap()

    def __len__(self) -> int:
        return len(self._single) + sum(len(ids) for ids, _ in self._runs)

    def add(self, ids: Sequence[int], key: int | None) -> None:
        """Add delivered messages."""
        if isinstance(ids, range) and ids.step == 1 and len(ids) > 1:
            self._runs.add(ids, key)
        else:
            self._single.update(dict.fromkeys(ids, key))

    def together(self, ids: range, key: int | None) -> bool:
        """Whether messages with consecutive ids have one entry, with this key."""
        found = self._runs.find(ids.start)
        return found is not None and ids.stop <= found[0].stop and found[1] == key

    def take(self, ids: Sequence[int]) -> list[int | None]:
        """Remove messages; returns the key of each."""
        keys: list[int | None] = []
        at = 0
        while at < len(ids):
            id = ids[at]
            found = None if id in self._single else self._runs.find(id)
            if found is None:
                keys.append(self._single.pop(id, None))
                at += 1
                continue
            run, key = found
            count = consecutive(ids, at, run.stop - id)
            self._runs.cut(range(id, id + count))
            keys += [key] * count
            at += count
        return keys

    def clear(self) -> None:
        """Remove all messages."""
        self._single.clear()
        self._runs.clear()


def consecutive(ids: Sequence[int], at: int, most: int) -> int:
    """How many ids from this place on are consecutive, `most` at most."""
    most, first = min(most, len(ids) - at), ids[at]
    if isinstance(ids, range) and ids.step == 1:
        return most
    if ids[at + most - 1] == first + most - 1 and [*ids[at : at + most]] == [*range(first, first + most)]:
        return most
    return next((n for n in range(1, most) if ids[at + n] != first + n), most)
