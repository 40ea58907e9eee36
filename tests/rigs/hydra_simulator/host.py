"""The machine of a simulated node: its disk, its clock, and whether it is up."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

from hydra.protocol.effects import Effect, StoredNode
from hydra.protocol.node import Node

#: Seconds between the clocks of two hosts at the beginning.
CLOCKS_APART = 1000.0

Call = tuple[Callable[..., list[Effect]], tuple[Any, ...]]


class Host:
    """One machine."""

    def __init__(self, index: int, disk: StoredNode, rate: float, targets: tuple[str, ...]) -> None:
        self.index = index
        self.disk = disk
        self.rate = rate
        self.targets = targets
        self.node: Node | None = None
        self.epoch = 0
        """The number of its starts: actions of an earlier one are void."""
        self.position: tuple[int, int] | None = None
        self.wake_at = inf
        self.writes: dict[int, StoredNode] = {}
        """Rows on their way to the disk."""
        self.still_since: float | None = None
        """Since when it stands still, or None."""
        self.timers_stop = False
        """Whether its timers stand still with it."""
        self.waiting: list[Call] = []
        """Events that have happened meanwhile."""
        self.lag = 0.0
        """Seconds that its clock has stood still altogether."""

    @property
    def up(self) -> bool:
        """Whether a node runs, and does not stand still."""
        return self.node is not None and self.still_since is None

    def local(self, now: float) -> float:
        """The time of its clock."""
        return CLOCKS_APART * self.index + now * self.rate - self.lag

    def due(self, node: Node, now: float) -> float:
        """The virtual time of its node's deadline."""
        return max((node.deadline - CLOCKS_APART * self.index + self.lag) / self.rate, now)

    def boot(self, node: Node) -> None:
        """Run a node from now on; actions of its last start are void."""
        self.epoch += 1
        self.node = node

    def wake_by(self, time: float) -> bool:
        """Note when the node is to be woken; False if it is woken before."""
        if time >= self.wake_at:
            return False
        self.wake_at = time
        return True

    def awake(self) -> None:
        """The node is awake: it needs another time to be woken."""
        self.wake_at = inf

    # The disk.

    def flush(self, count: int) -> list[StoredNode]:
        """Bring the first `count` of the rows on their way to the disk; returns them in order."""
        rows = [self.writes.pop(number) for number in sorted(self.writes)[:count]]
        if rows:
            self.disk = rows[-1]
        return rows

    def lose_disk(self, fresh: StoredNode) -> None:
        """Forget everything."""
        self.disk = fresh
        self.position = None

    # Standing still.

    def stand_still(self, now: float, *, timers_stop: bool) -> None:
        """Handle no event until `go_on`; with `timers_stop` its timers stand still, too."""
        self.still_since = now
        self.timers_stop = timers_stop

    def go_on(self, now: float, *, clock_stops: bool) -> tuple[float, list[Call]]:
        """Return since when it stood still and the events that have waited; `clock_stops`: so did its clock."""
        since, self.still_since = self.still_since, None
        assert since is not None
        if self.timers_stop and clock_stops:
            self.lag += (now - since) * self.rate
        waiting, self.waiting = self.waiting, []
        return since, waiting

    def wake_after(self, since: float, now: float) -> float:
        """The time for the timer that stood still; it is as late as the host has stood still."""
        self.wake_at = max(max(self.wake_at, since) + (now - since) * self.timers_stop, now)
        return self.wake_at

    def power_off(self) -> None:
        """Run no node any more; rows on their way to the disk are lost."""
        self.node = None
        self.still_since = None
        self.waiting.clear()
        self.writes.clear()
        self.wake_at = inf
