"""How many messages a node takes of a queue that other nodes serve too, ahead of what its consumers ask for.

With none ahead, whatever is published while consumers work on their last messages is stored ready, and costs a claim
besides the insert and the delete; and while it is there, nothing can be leased as it is stored. With too many,
consumers of other nodes wait for messages that could be theirs. So a node takes what its own have lately taken in
`AHEAD` seconds.
"""

from __future__ import annotations

from typing import Final

#: Seconds for which messages are prefetched ahead.
AHEAD: Final = 0.5
#: Consumers that take fewer messages in that time are slow: each message may be a job, and none waits for them while
#: another node's consumers are idle. Nor do the faster of slow consumers take from the others what they ask for one by
#: one: with 100 one of two consumers over SSPQ was seen to get 72 of 1000 messages.
FEW_AHEAD: Final = 1000


#: Seconds without a look after which a consumer counts as new.
AWAY: Final = 10.0


class Pace:
    """The pace of one queue's consumers, found by samples of the number of deliveries so far. It costs a delivery
    nothing."""

    __slots__ = ("_before", "_first", "_since", "pause")

    def __init__(self, first: int) -> None:
        """`first`: the number that deliveries are counted from."""
        #: Messages taken in `AHEAD` seconds, on average between the last two samples.
        self._before = 0
        #: The last sample: its time, and the number of deliveries.
        self._since = 0.0
        self._first = first
        #: Longest recent pause between two looks of consumers. Each look halves the earlier value.
        self.pause = 0.0

    def came(self, passed: float) -> None:
        """A consumer looks for messages, `passed` seconds after the last time."""
        self.pause = max(passed, self.pause / 2) if passed < AWAY else 0.0

    def ahead(self, now: float, taken: int) -> int:
        """Messages to hold ahead of demand. `taken`: the number of the next delivery."""
        passed, count = now - self._since, taken - self._first
        if passed >= AHEAD:
            self._before = int(count * AHEAD / passed)
            self._since, self._first, count = now, taken, 0
        most = max(self._before, count)
        return most if most >= FEW_AHEAD else 0
