"""The clock of a node, for leases, promises and waits. No I/O.

It never goes back, and goes on while the machine is suspended (CLOCK_BOOTTIME, where available): the other nodes do not
wait for a suspended leader. The event loop's timers may stand still meanwhile, so a lease is checked by this clock
before each line is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Seconds since a moment that is fixed for the process."""
    return time.clock_gettime(_CLOCK)


def call_at(
    loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
) -> asyncio.TimerHandle:
    """Have the loop call `callback` at a moment of this clock, or as soon as it can."""
    return loop.call_later(max(when - now(), 0.0), callback, *args)
