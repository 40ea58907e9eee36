"""A leader's term: heartbeats, the lease, and changes of the electorate. No I/O.

docs/protocols/hydra.md, "The lease" and "The electorate".
"""

from __future__ import annotations

import re
from typing import Final

from hydra.protocol.electorate import MAX_VOTERS, Electorate, Stamp
from hydra.protocol.farewell import digest
from hydra.protocol.times import Times

#: Heartbeats whose answers still count.
REMEMBERED: Final = 16

#: Voters whose electorate is remembered: more than there can be members at a time.
MAX_ACKNOWLEDGED: Final = 2048

_VAL: Final = re.compile(r"[0-9]+\.[0-9]+\.[0-9a-f]{16}", re.ASCII)


def knows_electorates(val: str) -> bool:
    """Whether a heartbeat's `val` is one of a leader that knows electorates; it shows even without attributes."""
    return _VAL.fullmatch(val) is not None


class Beat:
    """A heartbeat: when it was sent, and which voters have answered."""

    def __init__(self, sent: float, voter: str) -> None:
        self.sent = sent
        self.voters = {voter}


class LeaderTerm:
    """One term of a leader."""

    def __init__(self, term: int, voter: str, times: Times, now: float, proof: str) -> None:
        self.term = term
        self.voter = voter
        self.proof = proof
        """The secret that proves the leader's own DROP."""
        self.leave = digest(proof)
        """The secret's digest, in every heartbeat."""
        self._times = times
        self._beats: dict[str, Beat] = {}
        self._number = 0
        self.ping_at = now
        self.leased = False
        """Whether a majority has answered a heartbeat of this term."""
        self.lease_until = now + times.lease
        """When the leader resigns, unless a majority answers before."""
        self.acknowledged: dict[str, Stamp] = {}
        """The stamp of each voter's electorate on disk, from its last answer in this term."""

    def beat(self, now: float, electorate: Electorate) -> str:
        """Begin a heartbeat and return its `val`."""
        self._number += 1
        val = f"{self.term}.{self._number}.{self.voter}"
        self._beats[val] = Beat(now, self.voter)
        if len(self._beats) > REMEMBERED:
            del self._beats[next(iter(self._beats))]
        self.ping_at = now + self._times.ping_interval
        self._renew(self._beats[val], electorate)
        return val

    def answered(self, val: str, voter: str, stamp: Stamp | None, electorate: Electorate) -> bool:
        """Count a node's answer; False if it answers none of this term's last heartbeats."""
        beat = self._beats.get(val)
        if beat is None:
            return False
        if voter in electorate.voters:
            beat.voters.add(voter)
        if stamp is not None:
            self.acknowledged[voter] = max(stamp, self.acknowledged.pop(voter, stamp))
            if len(self.acknowledged) > MAX_ACKNOWLEDGED:
                del self.acknowledged[next(iter(self.acknowledged))]
        self._renew(beat, electorate)
        return True

    def _renew(self, beat: Beat, electorate: Electorate) -> None:
        if electorate.agrees(beat.voters):
            self.leased = True
            self.lease_until = max(self.lease_until, beat.sent + self._times.lease)

    def is_agreed(self, electorate: Electorate) -> bool:
        """Whether a majority of an electorate has confirmed in this term to have it on disk."""
        have = {voter for voter, stamp in self.acknowledged.items() if stamp == electorate.stamp}
        return electorate.agrees(have | {self.voter})

    def next_electorate(self, electorate: Electorate, present: set[str]) -> Electorate | None:
        """The next electorate, one voter more or less; None if no change is needed or possible now.

        `present` are the voters among the registered nodes. An absent voter is removed if that makes a majority
        smaller: never one alone from an odd number.
        """
        if not self.is_agreed(electorate):
            return None
        absent = sorted(electorate.voters - present - {self.voter})
        if absent and len(electorate.voters) % 2 == 0:
            return electorate.without_voter(absent[0])
        new = sorted((present - electorate.voters).intersection(self.acknowledged))
        if new and len(electorate.voters) < MAX_VOTERS:
            return electorate.with_voter(new[0])
        if len(absent) > 1:
            return electorate.without_voter(absent[0])
        return None
