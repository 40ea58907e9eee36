"""The two clocks, monotonic for deadlines and Unix time for stored times, and a wait until a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

now = time.monotonic

#: Where the ticks of this process lie between those of others on the host.
_PHASE = random.random()


def until_tick(period: float) -> float:
    """Seconds until the next tick, of which one comes each `period`. Jobs that look now and then do so at ticks: an
    idle process wakes once for all of them."""
    return period - (now() + _PHASE) % period


async def wait_for(event: asyncio.Event, most: float | None) -> None:
    """Wait for an event, so many seconds at most. asyncio's own may swallow the cancellation of its caller."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(most):
            await event.wait()


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
