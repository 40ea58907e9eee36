"""A store's two connections: one keeps the lock on the node's name and listens, the other writes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from typing import Final

from hydra.control import CHANNEL
from hydra.database import LOST, Connection, connect, session_name
from hydra.holding import Holding, take_again
from hydra.protocol.effects import Stored

logger = logging.getLogger(__name__)

LOOK: Final = 3.0
"""Seconds between two looks whether the database still answers."""
SILENCE: Final = 10.0
"""Seconds without an answer after which the session counts as lost; the server waits longer before it counts it so."""
PATIENCE: Final = 3.0
"""Seconds that the server has to let go of the lock of the last session."""
FIRST_RETRY: Final = 0.05
LONGEST_RETRY: Final = 5.0


class Session:
    """Lasts until one of its connections is lost."""

    def __init__(self, keeper: Connection, writer: Connection, patience: float) -> None:
        self.keeper = keeper
        self.patience = patience
        self.writer = writer
        self.pids = [connection.info.backend_pid for connection in (keeper, writer)]
        """The server's processes for it."""

    @classmethod
    async def begin(cls, conninfo: str, node: str, keeper: Connection, patience: float) -> Session:
        """Listen, and open the second connection; `keeper` has the lock. Raises psycopg.Error."""
        await keeper.execute(f"listen {CHANNEL}".encode())
        return cls(keeper, await connect(conninfo, session_name(node, "writer"), patience), patience)

    async def keep(
        self, heard: Callable[[str], None], silent: Callable[[str], None], answers: Callable[[], None]
    ) -> None:
        """Hand on what is heard, until the connection is lost: then raises psycopg.OperationalError.

        A server that does not answer may still be there: `silent` is told, and if it does after all, `answers` is.
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
        """Give up the lock now, not when the server has noticed that the session is closed."""
        with contextlib.suppress(*LOST):
            await self.keeper.execute("select pg_advisory_unlock_all()")

    async def close(self) -> None:
        """Close both connections."""
        await self.writer.close()
        await self.keeper.close()


async def come_back(conninfo: str, holding: Holding, lost: list[int], patience: float) -> tuple[Session, Stored]:
    """Begin another session, however long it takes; `lost` are the `pids` of the last one.

    Returns with it what is on disk. Raises NodeNameTaken or NodeForgotten.
    """
    delay, reason = FIRST_RETRY, ""
    while True:
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))
        delay = min(2 * delay, LONGEST_RETRY)
        try:
            keeper = await connect(conninfo, session_name(holding.name, "keeper"), patience)
            try:
                stored = await take_again(keeper, holding, lost, PATIENCE)
                return await Session.begin(conninfo, holding.name, keeper, patience), stored
            except BaseException:
                await keeper.close()
                raise
        except LOST as error:
            if str(error) != reason:
                reason = str(error)
                logger.info("the database is not there yet: %s", reason.strip())
