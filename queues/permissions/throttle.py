"""Slows down an address that tries wrong keys or passwords."""

from __future__ import annotations

import time
from collections import OrderedDict

#: Failures that cost nothing, for a person who mistypes.
FREE = 3
FIRST_DELAY = 0.1
MAX_DELAY = 5.0
#: Seconds after which one failure is forgiven.
FORGIVE = 10.0
#: Addresses that are remembered: those that failed last.
MAX_ADDRESSES = 10_000


class FailureThrottle:
    """Counts failures by address; each one beyond the first few doubles the wait."""

    def __init__(self) -> None:
        #: The number of failures that are not forgiven yet, as of when; the address that failed last comes last.
        self._failures: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, address: str) -> float:
        """Note a failure; returns the seconds to wait before answering it."""
        now = time.monotonic()
        count, last = self._failures.pop(address, (0.0, now))
        count = max(0.0, count - (now - last) / FORGIVE) + 1
        self._failures[address] = count, now
        if len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return _delay(count)

    def wait(self, address: str) -> float:
        """Seconds until the next try of an address, for an entry that refuses instead of waiting."""
        count, last = self._failures.get(address, (0.0, 0.0))
        return max(0.0, last + _delay(count) - time.monotonic())


def _delay(count: float) -> float:
    return 0.0 if count <= FREE else min(MAX_DELAY, FIRST_DELAY * 2.0 ** min(count - FREE - 1, 16))
