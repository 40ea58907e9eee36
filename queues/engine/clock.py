"""The two clocks: monotonic for deadlines, Unix time for stored times."""

from __future__ import annotations

import time

now = time.monotonic


def wall_offset() -> float:
    """The difference of Unix time and monotonic time, by this host's clock."""
    return time.time() - time.monotonic()


class ServerClock:
    """The PostgreSQL server's clock: `offset` plus a monotonic time of this process is a Unix time there."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = wall_offset()

    def set(self, offset: float) -> None:
        """The server was asked for its time."""
        self.offset = offset
