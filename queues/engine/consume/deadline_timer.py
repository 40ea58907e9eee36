"""Returns deliveries that were not acknowledged in time, on this process's own clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from queues.engine.clock import now
from queues.engine.consume.local_queue import QueueSchedule
from queues.engine.health import Health

#: Seconds between looks.
DEADLINES = 0.02
#: Seconds that clients have to acknowledge after they were held up.
GRACE = 0.1


class DeadlineTimer:
    """Looks for deliveries that were due at the last look: acknowledgements that had arrived by then were
    read in between, however long this process was held up. While `held_up()`, clients may not be able to acknowledge:
    the clock stands still, and for GRACE seconds more."""

    def __init__(self, schedule: QueueSchedule, health: Health, held_up: Callable[[], bool]) -> None:
        self._deliveries = schedule.deliveries
        self._health = health
        self._held_up = held_up
        self._held_up_at = self._looked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Look, and go on looking."""
        time = now()
        if self._held_up():
            self._held_up_at = time
        elif time - self._held_up_at > GRACE:
            self._return_overdue(self._looked_at)
            self._looked_at = time
        self._timer = asyncio.get_running_loop().call_later(DEADLINES, self.start)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _return_overdue(self, time: float) -> None:
        for _, burst in self._deliveries.due(time):
            try:
                burst.queue.expire(burst, time)
            except Exception as error:
                self._health.isolate("deadline", error, queue=burst.queue.policy.name)
