"""Scheduling of the admin's pages: while others want the processors, pages that come too fast wait for their turn.

A browser that opens one page after the other would take from the broker whatever the machine gives it. A low priority
does not do: a thread that keeps the interpreter while it waits for a processor holds up the peers of this process, and
the database's sessions have no priority. So pages share an allowance of working time. It grows with the clock, up to a
burst, and a page begins while some is left: an operator who clicks does not wait, a loop does.
"""

from __future__ import annotations

from asyncio import Lock, sleep
from time import monotonic
from typing import Final

import psutil
from prometheus_client import Counter

from queues.processes.processors import BUSY, usage

#: Seconds of work that pages may do at once.
BURST: Final = 0.5
#: Seconds that count for a page until it has ended, so that not all begin that wait.
EXPECTED: Final = 0.05
#: Seconds of waiting that one page, however slow, costs the next.
MAX_WAIT: Final = 3.0
#: Seconds between two looks at what others use.
LOOK: Final = 1.0

waited = Counter("fivewire_admin_waited_seconds", "Seconds that requests have waited while others used the processors.")


class WorkBudget:
    """Seconds of work that pages may do, `rate` more with each second. No I/O."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._left = BURST
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until the next page may begin."""
        self._left = min(self._left + (now - self._at) * self._rate, BURST)
        self._at = now
        return max(-self._left / self._rate, 0.0)

    def begin(self) -> None:
        """A page begins."""
        self._spend(EXPECTED)

    def end(self, seconds: float) -> None:
        """A page has ended, after so much work."""
        self._spend(seconds - EXPECTED)

    def _spend(self, seconds: float) -> None:
        self._left = max(self._left - seconds, -MAX_WAIT * self._rate)


class PageScheduler:
    """The turns of one process' pages, which work so many percent of the processors' time while others want most."""

    def __init__(self, percent: int) -> None:
        self._is_open = percent >= 100
        self._allowance = WorkBudget((psutil.cpu_count() or 1) * percent / 100, monotonic())
        self._queue = Lock()
        self._usage = usage([psutil.Process()])
        self._look_at = 0.0
        self._is_busy = False

    async def turn(self) -> None:
        """Return when the page may begin."""
        if self._is_open:
            return
        asked = monotonic()
        async with self._queue:
            while self._others_are_busy() and (wait := self._allowance.wait(monotonic())):  # noqa: ASYNC110
                await sleep(min(wait, LOOK))
            self._allowance.begin()
        waited.inc(monotonic() - asked)

    def end(self, seconds: float) -> None:
        """The page has ended, after so much work."""
        self._allowance.end(seconds)

    def _others_are_busy(self) -> bool:
        now = monotonic()
        if now >= self._look_at:
            before, self._usage = self._usage, usage([psutil.Process()])
            self._is_busy = self._usage.share_of_others(before) >= BUSY
            self._look_at = now + LOOK
        return self._is_busy
