"""The two clocks: monotonic for deadlines, Unix time for what is stored."""

from __future__ import annotations

import time

now = time.monotonic


def wall_offset() -> float:
    """What to add to a monotonic time to get a Unix time."""
    return time.time() - time.monotonic()
