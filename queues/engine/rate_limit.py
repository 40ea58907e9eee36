"""Rate limits by key: so many events at once, then so many a second."""

from __future__ import annotations

from queues.engine.clock import now


class RateLimiter:
    """A token bucket for each number it is asked about, such as an API key's: as many as there are of those."""

    __slots__ = ("_burst", "_left", "_rate")

    def __init__(self, burst: float, rate: float) -> None:
        self._burst = burst
        self._rate = rate
        #: The amount left, and since when (monotonic).
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, key: int) -> bool:
        """Whether it may happen once more now."""
        time = now()
        left, since = self._left.get(key, (self._burst, time))
        left = min(self._burst, left + (time - since) * self._rate)
        allowed = left >= 1
        self._left[key] = left - allowed, time
        return allowed
