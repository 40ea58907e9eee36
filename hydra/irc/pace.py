"""The pace of lines: servers disconnect clients that flood them. No I/O."""

from __future__ import annotations


class Pace:
    """A token bucket: `burst` lines at once after a pause, then one every `interval` seconds; 0 means any number.

    Times are those of a clock that never goes back.
    """

    def __init__(self, burst: int, interval: float) -> None:
        self._burst = burst
        self._interval = interval
        self._full_at = 0.0
        """When the bucket is full, if nothing is sent before."""

    def wait(self, now: float) -> float:
        """Seconds until a line may be sent; 0 if now."""
        return max(0.0, self._full_at - now - (self._burst - 1) * self._interval)

    def spend(self, now: float) -> None:
        """Count a sent line, also one out of turn."""
        self._full_at = max(self._full_at, now) + self._interval
