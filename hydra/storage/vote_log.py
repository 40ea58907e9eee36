"""Writes a node's term, pledge and electorate, and the log of its pledges.

Each write is answered when it is committed; several waiting ones are made as one.
"""

from __future__ import annotations

import asyncio
from collections import deque

from psycopg.errors import IntegrityError

from hydra.errors import StaleWrite, StoreError
from hydra.protocol.effects import StoredNode
from hydra.storage.database import Connection
from hydra.storage.node_lease import NodeLease, check
from hydra.storage.statements import fetch


class VoteLog:
    """The waiting writes, in order."""

    def __init__(self, stored: StoredNode) -> None:
        self.stored = stored
        """The row on disk."""
        self.idle = asyncio.Event()
        """Set while no write waits or is under way."""
        self.idle.set()
        self._waiting: deque[tuple[StoredNode, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, stored: StoredNode) -> asyncio.Future[None]:
        """Write a row; the future is done when it is committed."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((stored, written))
        self.idle.clear()
        return written

    def reload(self, stored: StoredNode) -> None:
        """Take the row on disk after a lost connection."""
        self.stored = stored

    async def write(self, connection: Connection, lease: NodeLease) -> None:
        """Write the last waiting row in place of all, and every pledge to the log. Cancelled writes are skipped.

        Raises StaleWrite, NodeNameTaken or NodeForgotten; then nothing was written.
        """
        batch = [(stored, written) for stored, written in self._waiting if not written.cancelled()]
        self._waiting = deque(batch)
        if not batch:
            self.idle.set()
            return
        _check_order(self.stored, *(stored for stored, _ in batch))
        last = batch[-1][0]
        pledges = {stored.term: stored.pledge for stored, _ in batch if stored.pledge is not None}
        try:
            row = await fetch(
                connection, "write_vote",
                id=lease.id, run=lease.run, term=last.term, pledge=last.pledge,
                electorate="" if last.electorate is None else str(last.electorate),
                terms=[*pledges], pledges=[*pledges.values()],
            )  # fmt: skip
        except IntegrityError as error:
            raise StaleWrite(str(error).partition("\n")[0]) from error
        if row is None or row[0] == 0:
            await check(connection, lease)
            return
        self.stored = last
        for _, written in batch:
            self._waiting.popleft()
            if not written.done():
                written.set_result(None)
        if not self._waiting:
            self.idle.set()

    def refuse(self, error: StoreError) -> None:
        """Answer all waiting writes with an error."""
        while self._waiting:
            _, written = self._waiting.popleft()
            if not written.done():
                written.set_exception(error)
        self.idle.set()


def _check_order(before: StoredNode, *writes: StoredNode) -> None:
    """Raise StaleWrite if a write breaks a promise of an earlier one.

    The writes are made as one, so the database does not see those in between.
    """
    for after in writes:
        if after.voter != before.voter:
            raise StaleWrite(f"{before.voter} is the node's lasting key, not {after.voter}.")
        if after.term < before.term:
            raise StaleWrite(f"The node is in term {before.term}, and was to go back to {after.term}.")
        if after.term == before.term and before.pledge is not None and after.pledge != before.pledge:
            raise StaleWrite(f"It has pledged to {before.pledge} in term {before.term}, not to {after.pledge}.")
        before = after
