"""A store's two connections: the keeper holds the lock on the node's name and listens, the writer writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from hydra.notifications import CHANNEL
from hydra.protocol.effects import StoredNode
from hydra.storage.database import LOST, Connection, connect, session_name
from hydra.storage.node_lease import NodeLease, take_again
from wire.client.backoff import Backoff

logger = logging.getLogger(__name__)

#: Seconds between two checks that the database answers.
LOOK: Final = 3.0
#: Seconds without an answer after which the session counts as lost; the server waits longer.
SILENCE: Final = 10.0
#: Seconds for the server to release the lock of the last session.
PATIENCE: Final = 3.0
RETRIES: Final = Backoff(0.05, 5.0)


class StoreConnections:
    """Both connections, until one of them is lost."""

    def __init__(self, keeper: Connection, writer: Connection, patience: float) -> None:
        self.keeper = keeper
        self.patience = patience
        self.writer = writer
        self.pids = [connection.info.backend_pid for connection in (keeper, writer)]
        """The server's processes."""

    @classmethod
    async def begin(cls, conninfo: str, node: str, keeper: Connection, patience: float) -> StoreConnections:
        """Listen, and open the writer; `keeper` has the lock. Raises psycopg.Error."""
        await keeper.execute(f"listen {CHANNEL}".encode())
        return cls(keeper, await connect(conninfo, session_name(node, "writer"), patience), patience)

    async def keep(
        self, heard: Callable[[str], None], silent: Callable[[str], None], answers: Callable[[], None]
    ) -> None:
        """Hand notifications to `heard` until the connection is lost: then raises psycopg.OperationalError.

        A server that does not answer may not be lost: `silent` is called, and `answers` when it does.
        """
        loop = asyncio.get_running_loop()
        while True:
            async for notification in self.keeper.notifies(timeout=min(LOOK, self.patience / 6)):
                heard(notification.payload)
            wait = min(SILENCE, self.patience * 5 / 6)
            watch = loop.call_later(wait, silent, f"the database has not answered for {wait:.1f} s")
            try:
                await self.keeper.execute("select 1")
            finally:
                watch.cancel()
            answers()

    async def release(self) -> None:
        """Release the lock now, not when the server notices the end of the session."""
        with contextlib.suppress(*LOST):
            await self.keeper.execute("select pg_advisory_unlock_all()")

    async def close(self) -> None:
        """Close both connections."""
        await self.writer.close()
        await self.keeper.close()


async def reconnect(
    conninfo: str, lease: NodeLease, lost: list[int], patience: float
) -> tuple[StoreConnections, StoredNode]:
    """Connect again, however long it takes; `lost` are the `pids` of the last session.

    Also returns the row on disk. Raises NodeNameTaken or NodeForgotten.
    """
    delays, reason = RETRIES.delays(), ""
    while True:
        await asyncio.sleep(next(delays))
        try:
            keeper = await connect(conninfo, session_name(lease.name, "keeper"), patience)
            try:
                stored = await take_again(keeper, lease, lost, PATIENCE)
                return await StoreConnections.begin(conninfo, lease.name, keeper, patience), stored
            except BaseException:
                await keeper.close()
                raise
        except LOST as error:
            if str(error) != reason:
                reason = str(error)
                logger.info("the database is not available yet: %s", reason.strip())
