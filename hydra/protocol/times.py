"""Durations, in seconds (docs/protocols/hydra.md, "Times"). No I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """The specification's three times, one of them a range, and the times derived from them.

    All nodes of a network need the same. Raises ValueError for invalid times.
    """

    max_ping: float = 10.0
    """Silence after which a node is dropped, and after which a leader's term has ended."""
    max_vote_min: float = 5.0
    max_vote_max: float = 15.0
    """An election gets a random time between these two."""
    max_meet: float = 10.0
    """The longest duration of an induction."""
    wait_for_lease: bool = True
    """Whether a node gives no pledge for `max_ping` after its leader's heartbeat; an addition to the specification.

    Without it a new leader can be elected while the former one, cut off, still has its lease.
    """

    def __post_init__(self) -> None:
        if not (self.max_ping > 0 and self.max_meet > 0):
            raise ValueError("MAX_PING and MAX_MEET must be more than 0")
        if not 0 < self.max_vote_min <= self.max_vote_max:
            raise ValueError("MAX_VOTE must be more than 0, and its least not above its most")

    @property
    def ping_interval(self) -> float:
        """Between two heartbeats: three may be lost before the leader counts as silent."""
        return self.max_ping / 4

    @property
    def lease(self) -> float:
        """The lease of a leader by a heartbeat that a majority has answered, counted from its sending.

        Shorter than `max_ping`, which the others wait: it ends first, even if the leader's clock is a tenth too slow
        and the others' a tenth too fast.
        """
        return self.max_ping * 0.8

    @property
    def repeat(self) -> float:
        """Between two repetitions of a nominee's messages."""
        return self.max_vote_min / 4

    @property
    def knock_interval(self) -> float:
        """Between two unanswered KNOCKs on one link."""
        return self.max_meet / 4

    @property
    def handshake(self) -> float:
        """Age at which a link without an induction is closed."""
        return self.max_meet * 3

    @property
    def redial(self) -> float:
        """Between two attempts to reach the same address, on average."""
        return self.max_ping / 5

    @property
    def forget(self) -> float:
        """Silence after which a follower forgets a member; its leader drops it sooner."""
        return self.max_ping * 2

    @property
    def memory(self) -> float:
        """The time for which a dropped id is refused."""
        return self.max_ping * 30
