"""Lines from IRC into a durable queue, each once (docs/protocols/hydra.md, "Durable queues").

All nodes of a network have all lines, and several of them may use one database. A line belongs into a queue once: who
is first to note its term and index publishes it, in the same transaction. The node's own position goes with it, so that
a node that starts again asks its neighbours for what it has missed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from django.db import connection, transaction

from hydra import clock
from hydra.databasethread import LONGEST, DatabaseThread
from hydra.models import RecordedLine
from hydra.statements import statement
from queues.api import Outgoing, QueueFull, QueueNotFound, publish_many

logger = logging.getLogger(__name__)

Line = tuple[int, int, str]
"""Term, index, the line."""

MAX_WAITING: Final = 100_000
"""Lines that wait for the database, or for room in the queue."""
MAX_BATCH: Final = 1000
PREDECESSOR: Final = 2.0
"""Seconds that the first line of a node that comes in waits for the one before it, which others have."""
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 5.0


def record(queue: str, node: str, lines: Sequence[Line]) -> int:
    """Publish those of some lines that nobody has published; return how many. In the current thread's connection.

    Raises QueueNotFound, QueueFull, and what the database raises; then nothing was done.
    """
    terms, indexes, texts = (list(column) for column in zip(*lines, strict=True))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement("record_lines"), {"queue": queue, "terms": terms, "indexes": indexes})
            new = set(cursor.fetchall())
        messages = [
            Outgoing(body=line.encode(), headers={"hydra.term": term, "hydra.idx": idx})
            for term, idx, line in zip(terms, indexes, texts, strict=True)
            if (term, idx) in new
        ]
        if messages:
            publish_many(queue, messages)
        with connection.cursor() as cursor:
            cursor.execute(statement("move_position"), {"node": node, "term": terms[-1], "idx": indexes[-1]})
    return len(messages)


def is_recorded(queue: str, term: int, idx: int) -> bool:
    """Whether a line has been published. In the current thread's connection."""
    return RecordedLine.objects.filter(queue=queue, term=term, idx=idx).exists()


class Recorder:
    """Takes lines without waiting, and stores them in order, many at a time."""

    def __init__(
        self, queue: str, node: str, happened: Callable[[str, str], None], patience: float = LONGEST
    ) -> None:
        """The database may take `patience` seconds for a batch."""
        self.queue = queue
        self._node = node
        self._happened = happened
        self._lines: deque[Line] = deque()
        self._some = asyncio.Event()
        self._none = asyncio.Event()
        self._none.set()
        self._database = DatabaseThread("hydra-recorder", patience)
        self._task = asyncio.create_task(self._work(), name="hydra recorder")
        self._failing = ""
        self._stored: tuple[int, int] | None = None
        """The term and index of the last line that was stored."""

    def take(self, term: int, idx: int, line: str) -> None:
        """A line is to be stored."""
        if len(self._lines) >= MAX_WAITING:
            lost = self._lines.popleft()
            self._happened("line lost", f"{MAX_WAITING} lines wait for {self.queue}: term {lost[0]}, {lost[1]}")
        self._lines.append((term, idx, line))
        self._none.clear()
        self._some.set()

    async def stop(self, timeout: float) -> None:
        """Store what waits, for at most `timeout` seconds; what is left the neighbours still have."""
        try:
            async with asyncio.timeout(timeout):
                await self._none.wait()
        except TimeoutError:
            logger.warning("%d lines were not stored in %s", len(self._lines), self.queue)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._database.stop()

    async def _work(self) -> None:
        delay, most = FIRST_RETRY, MAX_BATCH
        while True:
            await self._some.wait()
            batch = [self._lines[n] for n in range(min(most, len(self._lines)))]
            try:
                await self._wait_for_predecessor(*batch[0][:2])
                await self._database.run(record, self.queue, self._node, batch)
            except (OSError, QueueFull, QueueNotFound) as error:
                self._complain(str(error))
                await asyncio.sleep(delay * random.uniform(0.5, 1.0))
                delay, most = min(2 * delay, LONGEST_RETRY), max(1, len(batch) // 2)  # a slow one may take fewer
                continue
            except Exception as error:
                if len(batch) > 1:
                    most = len(batch) // 2  # one of them is at fault: which?
                    continue
                self._give_up(batch[0], error)
            self._failing, delay, most = "", FIRST_RETRY, min(2 * most, MAX_BATCH)
            self._stored = batch[-1][:2]
            stored = {line[:2] for line in batch}
            while self._lines and self._lines[0][:2] in stored:  # some may have been given up meanwhile
                self._lines.popleft()
            if not self._lines:
                self._some.clear()
                self._none.set()

    async def _wait_for_predecessor(self, term: int, idx: int) -> None:
        """Keep the order: who was there before may still be storing what came before this node came in."""
        if idx == 0 or self._stored == (term, idx - 1):
            return
        until = clock.now() + PREDECESSOR
        while not await self._database.run(is_recorded, self.queue, term, idx - 1):
            if clock.now() > until:
                return
            await asyncio.sleep(FIRST_RETRY)

    def _give_up(self, line: Line, error: Exception) -> None:
        """A line cannot be stored, for an unforeseen reason: the others can."""
        logger.error("term %d, line %d for %s was given up", *line[:2], self.queue, exc_info=error)
        self._happened(
            "fault", f"{self.queue}: term {line[0]}, {line[1]} was given up: {type(error).__name__}: {error}"
        )

    def _complain(self, reason: str) -> None:
        """Say once why nothing can be stored, not at every attempt."""
        if reason != self._failing:
            self._failing = reason
            self._happened("lines wait", f"{self.queue}: {reason}")
            logger.warning("lines wait for %s: %s", self.queue, reason)
