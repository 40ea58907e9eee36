"""The ready messages of one queue in the store that this node has not claimed, as far as the node knows.

Three facts are kept: the `state`, whether the store may have such messages at all, and what is under way (the table of
`claim_path.py`); `first`, the lowest id that any of them may have; and the low watermark, the id at and below which it
has none, whatever transactions are still under way. Notifications, commits of this node and returned messages make a
backlog longer (`arrived`, `returned`); claims make it shorter (`begin_claim`, `end_claim`). A look at the store that
began before the last arrival proves nothing about it: `news` counts arrivals.
"""

from __future__ import annotations

from typing import NamedTuple

from queues.engine.consume.claim_path import TABLE, Action, Event, IllegalTransition, State
from queues.engine.consume.low_watermark import FIRST, LOWEST, LowWatermark

# Each commit reads these for each of its queues, and attribute lookups on an enumeration are slow.
_CAUGHT_UP, _STORING, _STORING_BEHIND = State.CAUGHT_UP, State.STORING, State.STORING_BEHIND
_STORING_BEGUN, _STORED = Event.STORING_BEGUN, Event.STORED

#: Above all ids.
NOWHERE = 2**63 - 1


class ClaimResult(NamedTuple):
    """The outcome of a claim: its snapshot, whether more was ready, the last id claimed, and the numbers of messages
    and of rows and segments."""

    snapshot: str
    more: bool
    last_id: int | None
    taken: int
    rows: int


class Backlog:
    """One queue's backlog. Other objects read its attributes and change them by its methods."""

    __slots__ = ("_arrived", "first", "news", "state", "unclaimed", "watermark")

    def __init__(self) -> None:
        self.state = State.BEHIND
        #: Whether the store may have ready messages that this node has not claimed; the hot path reads it.
        self.unclaimed = True
        self.news = 0
        #: No such message known to this node has a lower id.
        self.first = FIRST
        #: As `first`, for messages that arrived since the last claim began.
        self._arrived = NOWHERE
        self.watermark = LowWatermark()

    def on(self, event: Event) -> Action:
        """Return the action for an event, and change the state. Raises IllegalTransition."""
        row = TABLE[self.state].get(event)
        if row is None:
            raise IllegalTransition(f"{event.name} in {self.state.name}")
        action, state = row
        self.state = state
        self.unclaimed = state is not _CAUGHT_UP and state is not _STORING
        return action

    @property
    def claiming(self) -> bool:
        """Whether a claim is under way."""
        return self.state is State.CLAIMING or self.state is State.CLAIMING_BEHIND

    @property
    def storing(self) -> bool:
        """Whether a transaction is under way that may lease new messages to this node."""
        return self.state is _STORING or self.state is _STORING_BEHIND

    @property
    def caught_up(self) -> bool:
        """Whether new messages may be leased to this node as they are stored."""
        return self.state is _CAUGHT_UP

    def begin_storing(self) -> None:
        """Note that a transaction begins that may lease new messages to this node."""
        self.on(_STORING_BEGUN)

    def end_storing(self) -> Action:
        """The transaction has ended."""
        return self.on(_STORED)

    def arrived(self, first_id: int) -> Action:
        """Note that messages from `first_id` on became ready in the store."""
        self._lower(first_id)
        return self.on(Event.ARRIVED)

    def returned(self, first_id: int = NOWHERE) -> None:
        """Note that messages from `first_id` on are on their way from memory back to the store."""
        self._lower(first_id)
        self.on(Event.RETURNED)

    def _lower(self, first_id: int) -> None:
        self.news += 1
        self.first = min(self.first, first_id)
        self._arrived = min(self._arrived, first_id)
        self.watermark.lower(first_id)

    def exhaust(self) -> None:
        """Claim no more until messages arrive."""
        self.on(Event.EXHAUSTED)
        self.first = NOWHERE

    def restart(self) -> None:
        """Forget what is known: the leases are lost, or the mailbox has a new connection."""
        self.watermark.reset()
        self.returned(FIRST)

    def writer_idle(self) -> None:
        """The publish writer makes no claim now: a claim left to it goes back to the fetcher."""
        if self.state is State.NEARLY_DONE:
            self.on(Event.WRITER_IDLE)

    def begin_claim(self) -> None:
        """A claim begins."""
        self.on(Event.CLAIM_BEGUN)
        self._arrived = NOWHERE

    def end_claim(self, result: ClaimResult, horizon: int = LOWEST, *, limited: bool = False) -> None:
        """The claim has come back. `horizon`: all ids up to it were taken before the claim. `limited`: no more can be
        claimed now, although more is ready."""
        snapshot, more, last_id, count, rows = result
        watermark = self.watermark
        reached = watermark.value if last_id is None else last_id
        if self.state is State.CLAIMING:
            watermark.looked(snapshot, reached if more else None)
        if not more:  # an empty claim proves that nothing is left up to the horizon
            reached = max(reached, horizon)
        if count or reached > watermark.highest:
            watermark.claimed(snapshot, reached, rows)
        self.first = min(self._arrived, reached + 1 if more else NOWHERE)
        self.on(Event.CLAIMED_SOME if more and not limited else Event.CLAIMED_ALL)
