"""Lines from IRC into a durable queue, each once (docs/protocols/hydra.md, "Durable queues").

All nodes of a network deliver all lines, and several of them may share a database. The first node to note a line's term
and index publishes it, in the same transaction (`hydra.storage.line_records`). The node's position moves with it, so
that a restarted node asks its neighbours for the lines it has missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from hydra import clock
from hydra.irc.fates import LINE_LOST
from hydra.storage.database_thread import TIMEOUT, DatabaseThread
from hydra.storage.line_records import Line, is_recorded, record
from queues.api import QueueFull, QueueNotFound
from queues.backoff import Backoff

logger = logging.getLogger(__name__)

#: Lines that wait for the database, or for room in the queue; then the oldest are dropped.
MAX_WAITING: Final = 100_000
MAX_BATCH: Final = 1000
#: Seconds that a newly joined node's first line waits for its predecessor, which other nodes may be storing.
PREDECESSOR: Final = 2.0
RETRY: Final = Backoff(0.1, 5.0)


class Recorder:
    """Takes lines without waiting, and stores them in order, in batches."""

    def __init__(self, queue: str, node: str, happened: Callable[[str, str], None], timeout: float = TIMEOUT) -> None:
        """`happened` takes an event's kind and text; `timeout`: seconds that the database has for a batch."""
        self.queue = queue
        self._node = node
        self._happened = happened
        self._lines: deque[Line] = deque()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._database = DatabaseThread("hydra-recorder", timeout)
        self._task = asyncio.create_task(self._work(), name="hydra recorder")
        self._failing = ""
        #: Term and index of the last stored line.
        self._stored: tuple[int, int] | None = None

    def take(self, term: int, idx: int, line: str) -> None:
        """Store a line, soon."""
        if len(self._lines) >= MAX_WAITING:
            lost = self._lines.popleft()
            self._happened(LINE_LOST, f"{MAX_WAITING} lines wait for {self.queue}: term {lost[0]}, {lost[1]}")
        self._lines.append((term, idx, line))
        self._none.clear()
        self._some.set()

    async def stop(self, timeout: float) -> None:
        """Store the waiting lines for at most `timeout` seconds. The neighbours still have those left over."""
        try:
            async with asyncio.timeout(timeout):
                await self._none.wait()
        except TimeoutError:
            logger.warning("%d lines were not stored in %s", len(self._lines), self.queue)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._database.stop()

    async def _work(self) -> None:
        delays, most = RETRY.delays(), MAX_BATCH
        while True:
            await self._some.wait()
            batch = [self._lines[n] for n in range(min(most, len(self._lines)))]
            try:
                await self._wait_for_predecessor(*batch[0][:2])
                await self._database.run(record, self.queue, self._node, batch)
            except (OSError, QueueFull, QueueNotFound) as error:
                self._complain(str(error))
                await asyncio.sleep(next(delays))
                most = max(1, len(batch) // 2)  # a slow one may take fewer
                continue
            except Exception as error:
                if len(batch) > 1:
                    most = len(batch) // 2  # halve down to the line at fault
                    continue
                self._give_up(batch[0], error)
            self._failing, delays, most = "", RETRY.delays(), min(2 * most, MAX_BATCH)
            self._forget(batch)

    def _forget(self, batch: list[Line]) -> None:
        """Remove the lines of a finished batch; `take` may have dropped some of them meanwhile."""
        self._stored = batch[-1][:2]
        stored = {line[:2] for line in batch}
        while self._lines and self._lines[0][:2] in stored:
            self._lines.popleft()
        if not self._lines:
            self._some.clear()
            self._none.set()

    async def _wait_for_predecessor(self, term: int, idx: int) -> None:
        """Keep the order: an older node may still be storing the line before this node's first."""
        if idx == 0 or self._stored == (term, idx - 1):
            return
        until = clock.now() + PREDECESSOR
        while not await self._database.run(is_recorded, self.queue, term, idx - 1):
            if clock.now() > until:
                return
            await asyncio.sleep(RETRY.first)

    def _give_up(self, line: Line, error: Exception) -> None:
        """Leave out a line that cannot be stored for an unforeseen reason."""
        logger.error("term %d, line %d for %s was given up", *line[:2], self.queue, exc_info=error)
        self._happened(
            "fault", f"{self.queue}: term {line[0]}, {line[1]} was given up: {type(error).__name__}: {error}"
        )

    def _complain(self, reason: str) -> None:
        """Report a reason for waiting once, not at every attempt."""
        if reason != self._failing:
            self._failing = reason
            self._happened("lines wait", f"{self.queue}: {reason}")
            logger.warning("lines wait for %s: %s", self.queue, reason)
