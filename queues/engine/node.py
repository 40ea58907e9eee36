"""This process as a node of the cluster: one `LocalNode` for each engine, shared by all parts that lease messages.

The supervisor begins a new life at each connect; every answer on the liveness connection renews the trust in its
leases.
"""

from __future__ import annotations

import time

#: Seconds after an answer of the server for which a node may deliver its leased messages; then others may have them.
TRUSTED = 8.0


#: Slots whose tables take turns: one is written to, the one before is at rest, the one before that is emptied.
SLOTS = 3


class LocalNode:
    """The node's id, and how long its leases are certainly its own. All times are monotonic.

    `turn` is how many seconds a slot is written to. Nodes read the slot off the clock: one whose clock is wrong only
    delays a truncation.
    """

    __slots__ = ("horizon", "id", "last_id", "trusted_until", "turn")

    def __init__(self, turn: float = 10.0) -> None:
        self.turn = turn
        #: 0 before the first life.
        self.id = 0
        #: A message id that was taken before this node's first claim.
        self.horizon = 0
        #: The last message id that this process has stored or claimed, without its priority.
        self.last_id = 0
        self.trusted_until = float("inf")

    def begin(self, id: int, horizon: int) -> None:
        """The node was registered anew."""
        self.id, self.horizon = id, horizon

    def note_id(self, id: int) -> None:
        """A message with this id, without its priority, was stored or claimed."""
        self.last_id = max(self.last_id, id)

    def take_turns(self, seconds: float) -> None:
        """Write to each slot for so many seconds from now on."""
        self.turn = seconds

    @property
    def slot(self) -> int:
        """The slot for what is stored now and never changed."""
        return 1 + int(time.time() / self.turn) % SLOTS

    @property
    def slot_to_empty(self) -> int:
        """The slot that nothing has been stored in for at least a turn; the next one to be written to."""
        return 1 + self.slot % SLOTS

    def trust_from(self, asked: float) -> bool:
        """The server has answered a question of this time. Returns whether the trust had ended before the answer."""
        ended, self.trusted_until = time.monotonic() > self.trusted_until, asked + TRUSTED
        return ended

    def silent_for(self, time: float, awake_since: float) -> float:
        """Seconds without an answer, of those since this process works."""
        return time - max(awake_since, self.trusted_until - TRUSTED)
