"""The clock of a node: one for leases, promises and waits. No I/O.

It never goes back, and goes on while the machine is suspended (CLOCK_BOOTTIME, where there is one): the others do not
wait for a leader whose machine sleeps. Timers of the event loop may stand still meanwhile, so what a lease allows is
looked at by this clock before it is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since some moment, the same one for all of the process."""
    return time.clock_gettime(_CLOCK)


def call_at(
    loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
) -> asyncio.TimerHandle:
    """Have the loop call this at a moment of this clock, or as soon as it can."""
    return loop.call_later(max(when - now(), 0.0), callback, *args)
