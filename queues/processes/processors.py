"""The machine's processors: how much of them others use. What may wait leaves them alone then: ETL jobs, pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psutil

#: The share of the machine's processor time that others use when they want most of it.
BUSY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor seconds since the start: of the machine, of these idle, and of some processes."""

    total: float
    idle: float
    own: float

    def share_of_others(self, earlier: Usage) -> float:
        """The processors' use by others since an earlier look, from 0 to 1."""
        total = self.total - earlier.total
        used = total - (self.idle - earlier.idle) - (self.own - earlier.own)
        return min(1.0, max(0.0, used / total)) if total > 0 else 0.0

    def own_share(self, earlier: Usage) -> float:
        """These processes' use of the processors since an earlier look, from 0 to 1."""
        total = self.total - earlier.total
        return min(1.0, max(0.0, (self.own - earlier.own) / total)) if total > 0 else 0.0


def seconds_of(processes: Iterable[psutil.Process]) -> float:
    """Processor seconds of these processes; nothing for one that has ended, or is another user's."""
    seconds = 0.0
    for process in processes:
        with suppress(psutil.Error):
            seconds += sum(process.cpu_times()[:2])
    return seconds


def usage(processes: Sequence[psutil.Process]) -> Usage:
    """The present use of the processors; `own` is that of these processes."""
    times = psutil.cpu_times()
    return Usage(sum(times), times.idle + getattr(times, "iowait", 0.0), seconds_of(processes))
