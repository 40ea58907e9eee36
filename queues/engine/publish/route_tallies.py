"""Counts of messages that routes have carried from this node.

The publish writer adds a batch's messages after its commit, a number for each group of messages and its routes. Every
few seconds a job tells the store what has come: a row for each route that has carried something, in one statement. So
a message costs nothing here, and a kill loses the last seconds; statements that publish in a caller's transaction add
their rows themselves. Rows older than the minute over which rates are read are folded into the totals, and so are those
of dead letters that went to another queue, which the statement that moves them writes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from queues.database.sql_files import array
from queues.engine.clock import now
from queues.engine.database import Connection

#: Seconds between two writes, and between two folds.
WRITE, FOLD = 5.0, 60.0
#: The statements that fold, and the rows that one of them folds at once.
FOLDS, FOLDED_AT_ONCE = ("fold_routes", "fold_dead_letters"), 10_000


class RouteTallies:
    """Counts of routed messages that are not in the store yet."""

    def __init__(self) -> None:
        self._carried: Counter[int] = Counter()

    def add(self, carried: Mapping[tuple[int, ...], int]) -> None:
        """Add the messages of a commit, by the routes on their way."""
        for routes, count in carried.items():
            if count:
                for route in routes:
                    self._carried[route] += count

    async def run(self, connection: Connection) -> None:
        """Write for ever. Raises when the connection is lost."""
        fold_at = 0.0
        while True:
            await self.write(connection)
            if now() >= fold_at:
                await self.fold(connection)
                fold_at = now() + FOLD
            await asyncio.sleep(WRITE)

    async def write(self, connection: Connection) -> None:
        """Write the counts since the last write."""
        if not self._carried:
            return
        carried, self._carried = self._carried, Counter()
        try:
            await connection.run(
                "tally_routes", {"routes": array(carried.keys()), "carried": array(carried.values())}
            )
        except BaseException:
            self._carried.update(carried)
            raise

    @staticmethod
    async def fold(connection: Connection) -> None:
        """Add rows that are older than a minute to the totals."""
        for name in FOLDS:
            folded = FOLDED_AT_ONCE
            while folded == FOLDED_AT_ONCE:
                [(folded,)] = await connection.rows(name, {"limit": FOLDED_AT_ONCE})
