"""Slows down whoever tries wrong keys."""

from __future__ import annotations

import time

#: Failures that cost nothing, for a person who mistypes.
FREE = 3
FIRST_DELAY = 0.1
LONGEST_DELAY = 5.0
#: Seconds after which one failure is forgiven.
FORGIVE = 10.0
MOST_ADDRESSES = 10_000


class FailureThrottle:
    """Counts failures by address; each one beyond the first few doubles the wait."""

    def __init__(self) -> None:
        self._failures: dict[str, tuple[float, float]] = {}

    def failed(self, address: str) -> float:
        """Note a failure; returns the seconds to wait before answering it."""
        now = time.monotonic()
        if len(self._failures) >= MOST_ADDRESSES:
            self._failures = {at: known for at, known in self._failures.items() if now - known[1] < FORGIVE}
        count, last = self._failures.get(address, (0.0, now))
        count = max(0.0, count - (now - last) / FORGIVE) + 1
        self._failures[address] = count, now
        return 0.0 if count <= FREE else min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(count - FREE - 1, 16))
