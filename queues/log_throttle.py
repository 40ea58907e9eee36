"""Bounds log lines whose number a client or another server chooses. Further ones are counted."""

from __future__ import annotations

from typing import Final

#: Interval in seconds and limit of lines for faults of one kind, which have tracebacks.
FAULTS: Final = 10.0, 20
#: Limit of keys, such as clients' addresses, in one interval. Further keys share one.
MAX_KEYS: Final = 10_000
#: The key of the others.
OTHERS: Final = "\0others"


class LogThrottle:
    """Lets at most `lines` reports per key through in each `interval` seconds, and counts what it held back.

    Clients may choose the keys, so their number is bounded: beyond it the newest share one. """

    def __init__(self, interval: float = 1.0, lines: int = 1) -> None:
        self._interval = interval
        self._lines = lines
        #: When the interval of a key began, the reports in it, and the events held back since the last one.
        self._keys: dict[str, tuple[float, int, int]] = {}
        self._forgot = float("-inf")

    def admit(self, key: str, now: float, count: int = 1) -> int:
        """Return how many events to report now, these `count` included, or 0 to stay silent."""
        if key not in self._keys and len(self._keys) >= MAX_KEYS:
            self._forget(now)
            if len(self._keys) >= MAX_KEYS:
                key = OTHERS
        since, said, held = self._keys.get(key, (now, 0, 0))
        if now - since >= self._interval:
            since, said = now, 0
        if said >= self._lines:
            self._keys[key] = since, said, held + count
            return 0
        self._keys[key] = since, said + 1, 0
        return held + count

    def _forget(self, now: float) -> None:
        """Forget keys that may be reported again; once in an interval, since it looks at all of them."""
        if now - self._forgot < self._interval:
            return
        self._forgot = now
        self._keys = {key: one for key, one in self._keys.items() if now - one[0] < self._interval}
