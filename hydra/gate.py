"""When the next line may be taken from a durable queue (docs/protocols/hydra.md, "Durable queues").

A line that waits in the queue survives every crash; one that is on its way to IRC may be lost with its leader. So a
line is taken as late as can be: by the leader when it is on IRC and has room, and by another node only if its leader
uses another database, not faster than IRC can take it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Protocol

from hydra import clock
from hydra.irc.pace import Pace
from hydra.protocol.irclease import State
from hydra.protocol.node import Node
from hydra.protocol.roles import Role

LOOK: Final = 0.25


class Room(Protocol):
    """An IRC connection that takes lines only as fast as its server does."""

    @property
    def has_room(self) -> bool:
        """Whether a line would leave at once, or nearly so."""


class LineGate:
    """The gate of one node."""

    def __init__(self, irc: Room | None, pace: Pace) -> None:
        self.node: Node | None = None
        """Whose gate it is now."""
        self._irc = irc
        self._pace = pace
        self._nudge = asyncio.Event()
        self.leader_elsewhere = False
        """Whether the leader that is followed uses another database."""

    def is_open(self) -> bool:
        """Whether the next line may be taken."""
        node = self.node
        if node is None:
            return False
        if node.role is Role.LEADING:
            return self._irc is not None and node.bridge.irc.state is State.ON and self._irc.has_room
        following = node.role is Role.FOLLOWING and self.leader_elsewhere
        return following and self._pace.wait(clock.now()) == 0

    async def wait(self) -> None:
        """Return when it has been found open."""
        while not self.is_open():
            self._nudge.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._nudge.wait()

    def changed(self) -> None:
        """Something was changed: look again."""
        self._nudge.set()

    def spend(self) -> None:
        """A line has gone on."""
        self._pace.spend(clock.now())
