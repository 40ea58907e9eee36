"""How long things take, in seconds (docs/protocols/hydra.md, "Times"). No I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """The document's three times, of which one is a range, and what follows from them.

    All nodes of a network need the same. Raises ValueError for times that cannot be.
    """

    max_ping: float = 10.0
    """Who does not answer for this long is dropped; a leader that is silent for this long has ended its term."""
    max_vote_min: float = 5.0
    max_vote_max: float = 15.0
    """An election is given a random time between these two."""
    max_meet: float = 10.0
    """How long an induction may take."""
    wait_for_lease: bool = True
    """Whether a node pledges to nobody for `max_ping` after its leader's heartbeat. The document does not ask for it.

    Without it a new leader can be elected while the old one, cut off, still has its lease.
    """

    def __post_init__(self) -> None:
        if not (self.max_ping > 0 and self.max_meet > 0):
            raise ValueError("MAX_PING and MAX_MEET must be more than 0")
        if not 0 < self.max_vote_min <= self.max_vote_max:
            raise ValueError("MAX_VOTE must be more than 0, and its least not above its most")

    @property
    def ping_interval(self) -> float:
        """Between two heartbeats: three may be lost before the leader is missed."""
        return self.max_ping / 4

    @property
    def lease(self) -> float:
        """How long a heartbeat that a majority has answered lets its leader lead, counted from its sending.

        Shorter than `max_ping`, which the others wait, so that it ends first although no two clocks run alike: the
        leader's may be a tenth too slow while theirs are a tenth too fast.
        """
        return self.max_ping * 0.8

    @property
    def repeat(self) -> float:
        """Between two times that a nominee says what it has said, as long as its election lasts."""
        return self.max_vote_min / 4

    @property
    def knock_interval(self) -> float:
        """Between two KNOCKs on one link that are not answered."""
        return self.max_meet / 4

    @property
    def handshake(self) -> float:
        """After this a link over which nobody was inducted is closed."""
        return self.max_meet * 3

    @property
    def redial(self) -> float:
        """Between two attempts to reach the same address, on average."""
        return self.max_ping / 5

    @property
    def forget(self) -> float:
        """How long a follower keeps a member in its record that answers no heartbeat; its leader drops it sooner."""
        return self.max_ping * 2

    @property
    def memory(self) -> float:
        """How long an id that was dropped is refused."""
        return self.max_ping * 30
