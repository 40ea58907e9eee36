"""The ready messages of one queue in the store that this node has not claimed, as far as the node knows.

Three facts are kept: whether the store may have such messages at all; `first`, the lowest id that any of them may have;
and the low watermark, the id at and below which it has none, whatever transactions are still under way. Notifications,
commits of this node and returned messages make a backlog longer (`arrived`, `returned`); claims make it shorter
(`begin_claim`, `claimed`). A claim that began before the last arrival proves nothing about it: `news` counts arrivals,
and a claim hands back the count that it began with.
"""

from __future__ import annotations

from typing import NamedTuple

from queues.engine.consume.low_watermark import FIRST, LOWEST, LowWatermark

#: Above all ids.
NOWHERE = 2**63 - 1


class ClaimResult(NamedTuple):
    """The outcome of a claim: its snapshot, whether more was ready, the last id claimed, the number claimed."""

    snapshot: str
    more: bool
    last_id: int | None
    taken: int


class Backlog:
    """One queue's backlog. Other objects read its attributes and change them by its methods."""

    __slots__ = ("_arrived", "first", "news", "unclaimed", "watermark")

    def __init__(self) -> None:
        #: Whether the store may have ready messages that this node has not claimed.
        self.unclaimed = True
        self.news = 0
        #: No such message that this node has heard of has a lower id.
        self.first = FIRST
        #: As `first`, for messages that arrived since the last claim began.
        self._arrived = NOWHERE
        self.watermark = LowWatermark()

    def arrived(self, first_id: int) -> None:
        """Messages became ready in the store, none with a lower id than `first_id`."""
        self.returned()
        self.first = min(self.first, first_id)
        self._arrived = min(self._arrived, first_id)
        self.watermark.lower(first_id)

    def returned(self) -> None:
        """Messages of this node's memory are on their way back to the store."""
        self.unclaimed = True
        self.news += 1

    def reopen(self) -> None:
        """The store may have ready messages again."""
        self.unclaimed = True

    def exhaust(self) -> None:
        """Claim no more until messages arrive."""
        self.unclaimed = False
        self.first = NOWHERE

    def restart(self) -> None:
        """Any message may be ready: the mailbox has a new connection."""
        self.watermark.reset()
        self.first = FIRST
        self.returned()

    def begin_claim(self) -> int:
        """A claim begins; returns the count of arrivals, for `claimed`."""
        self._arrived = NOWHERE
        return self.news

    def claimed(self, result: ClaimResult, news: int, horizon: int = LOWEST, emptied: bool = False) -> None:
        """A claim that began when the count of arrivals was `news` has come back. `horizon`: all ids up to it were
        taken before the claim. `emptied`: no more can be claimed now, although more is ready."""
        snapshot, more, last_id, count = result
        watermark, quiet = self.watermark, self.news == news
        reached = watermark.value if last_id is None else last_id
        if quiet:
            watermark.looked(snapshot, reached if more else None)
        if not more:  # an empty claim has seen every id up to the horizon
            reached = max(reached, horizon)
        if count or reached > watermark.highest:
            watermark.claimed(snapshot, reached, count)
        self.first = min(self._arrived, reached + 1 if more else NOWHERE)
        if quiet and (emptied or not more):
            self.unclaimed = False
