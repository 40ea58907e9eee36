"""Decides when a line may be taken from a durable queue (docs/protocols/hydra.md, "Durable queues").

A line in the queue survives every crash; a line on its way to IRC may be lost with its leader. So a line is taken as
late as possible: by the leader when it is on IRC and has room, or by a node whose leader uses another database, at
IRC's pace.
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
    """An IRC connection with a server's pace."""

    @property
    def has_room(self) -> bool:
        """Whether a line would be sent at once, or nearly so."""


class SendGate:
    """The gate of one node."""

    def __init__(self, irc: Room | None, pace: Pace) -> None:
        self.node: Node | None = None
        """The node that runs now."""
        self._irc = irc
        self._pace = pace
        self._nudge = asyncio.Event()
        self.leader_elsewhere = False
        """Whether the leader that the node follows uses another database."""

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
        """Return when the gate is open."""
        while not self.is_open():
            self._nudge.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._nudge.wait()

    def attach(self, node: Node | None) -> None:
        """Serve this node from now on; None: lines would be lost."""
        self.node = node

    def set_leader_elsewhere(self, elsewhere: bool) -> None:
        """The leader that the node follows uses another database, or not."""
        self.leader_elsewhere = elsewhere

    def changed(self) -> None:
        """Check the gate again."""
        self._nudge.set()

    def spend(self) -> None:
        """Count a line that was taken."""
        self._pace.spend(clock.now())
