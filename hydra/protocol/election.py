"""Elections: nominations, pledges and votes (docs/protocols/hydra.md, "Elections"). No I/O.

A node pledges once in a term; the pledge is on disk before it is sent. It votes only for the nominee of its pledge.
Methods return events for the table of roles.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol.core import Core
from hydra.protocol.electorate import NO_STAMP, Electorate
from hydra.protocol.links import NodeLink
from hydra.protocol.messages import Call, Elect, Nominate, Pledge
from hydra.protocol.roles import Event, Role

#: Nominees of one term whose votes are counted.
MAX_NOMINEES: Final = 1024
#: Voters counted for one nominee: more than there can be members at a time.
MAX_IDENTITIES: Final = 2048


class Tally:
    """The pledges and votes of one term."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.pledges: dict[int, set[str]] = {}
        self.votes: dict[int, set[str]] = {}
        self.deserved = False
        """Whether the nominee of this node's pledge asks the right electorate; False after a restart."""
        self.heard = False
        """Whether another node has taken part in this term's elections."""
        self.called = False
        """Whether this node has sent CALL."""
        self.voted = False
        self.answered: set[int] = set()
        """The links on which a repeated CALL was answered."""


class Election:
    """One node's part in elections."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.tally = Tally(core.term)
        self.deferred: Nominate | None = None
        """The nominee that gets the pledge once no promise forbids it."""
        self.ends = core.now
        """When this node stands itself, if there is no leader by then."""
        self.repeat_at = core.now
        """When a nominee repeats its messages."""

    # Messages received.

    def on_nominate(self, message: Nominate, link: NodeLink) -> Event | None:
        """Return NOMINATION if this one is the first of its term, and is to be considered."""
        core = self.core
        if not self._fits(message, link):
            return None
        core.relay(message, link)
        self._current().heard = True
        core.release(message.id, message.term)
        if message.term == core.term and message.id == core.pledge:
            core.say(Pledge(core.term, message.id, core.id, self._key()))
        taken = core.pledge is not None or self.deferred is not None or core.leader is not None
        return Event.NOMINATION if message.term > core.term or not taken else None

    def on_pledge(self, message: Pledge, link: NodeLink) -> Event | None:
        core = self.core
        if not self._fits(message, link):
            return None
        core.relay(message, link, echo=True)
        self._current().heard = True
        core.release(message.id, message.term)
        if message.term != core.term:
            return None
        self._add(self._current().pledges, message.nom, self._identity(message))
        return self._count_pledges()

    def on_call(self, message: Call, link: NodeLink) -> None:
        core = self.core
        if message.term < core.term or core.is_leap(message.term):
            return
        new = core.is_new(message)
        if new:
            core.relay(message, link)
        if message.term != core.term or core.pledge is None:
            return
        tally = self._current()
        if new or not tally.voted:
            self._vote()
        elif link.number not in tally.answered:
            tally.answered.add(link.number)
            core.answer(link, Elect(core.term, core.pledge, core.id, self._key()))

    def on_elect(self, message: Elect, link: NodeLink) -> Event | None:
        core = self.core
        if not self._fits(message, link):
            return None
        core.relay(message, link, echo=True)
        if message.term != core.term:
            return None
        self._add(self._current().votes, message.nom, self._identity(message))
        return self._count_votes()

    def _fits(self, message: Nominate | Pledge | Elect, link: NodeLink) -> bool:
        core = self.core
        if message.term < core.term or core.is_leap(message.term):
            return False
        return core.knows(message.id, message.voter, link) and core.is_new(message)

    # Actions.

    def drop_deferred(self) -> None:
        """Forget the nominee that waits for a pledge."""
        self.deferred = None

    def end_now(self) -> None:
        """Stand at once."""
        self.ends = self.core.now

    def wait(self, least: float, most: float) -> None:
        """Give the election a random time between these; more, if another voter should stand first."""
        self.ends = self.core.now + self.core.rng.uniform(least, most)
        if self.core.outdone:
            self.ends += 2 * self.core.times.max_vote_max

    def allow_time(self) -> None:
        """Give the election its MAX_VOTE."""
        self.wait(self.core.times.max_vote_min, self.core.times.max_vote_max)

    def consider(self, message: Nominate) -> None:
        """Go on to the nominee's term; pledge to it if its electorate is up to date and no promise forbids it."""
        core = self.core
        if message.term > core.term:
            core.adopt(message.term)
        self.deferred = None
        self.allow_time()
        if self.deserves(message):
            self.deferred = message
        elif core.votes:
            # This nominee cannot win: a voter that can should stand soon.
            self.wait(0, core.times.max_vote_min)
        self.settle()
        core.persist()

    def deserves(self, message: Nominate) -> bool:
        """Whether a nominee may get a pledge: one with an outdated electorate could win without a majority."""
        core = self.core
        if message.electorate is not None:
            core.install(message.electorate)
            return message.electorate.stamp >= core.stamp and message.voter in message.electorate.voters
        member = core.members.get(message.id)
        knows_attributes = message.voter is not None or (member is not None and member.voter is not None)
        return not knows_attributes or core.stamp == NO_STAMP

    def settle(self) -> None:
        """Pledge to the deferred nominee if no promise forbids it any more."""
        core = self.core
        if self.deferred is None or core.now < self.promise_ends():
            return
        nominee, self.deferred = self.deferred, None
        self._pledge(nominee.id, deserved=nominee.electorate is not None)

    def promise_ends(self) -> float:
        """When this node may give a pledge, also to itself."""
        return self.core.promise_until if self.core.times.wait_for_lease else self.core.now

    def may_stand(self) -> bool:
        """Whether this node may nominate itself: it has a vote, no promise binds it, and it has links or needs none."""
        core = self.core
        if core.now < self.promise_ends() or core.is_leap(core.term + 1):
            return False
        if core.electorate is None and not self._is_in_plain_network():
            return False
        return core.voter in core.base.voters and (bool(core.links.joined) or core.base.quorum == 1)

    def _is_in_plain_network(self) -> bool:
        """Whether no other node of the network knows electorates."""
        core = self.core
        return core.foreign and all(member.voter is None for member in core.members)

    def stand(self) -> Event | None:
        """Begin a new term, nominate this node and pledge to it."""
        core = self.core
        core.adopt(core.term + 1)
        self.deferred = None
        self.allow_time()
        core.pledge_to(core.id)
        core.say(Nominate(core.term, core.id, core.voter, core.electorate))
        self._pledge(core.id, deserved=True)
        self.repeat_at = core.now + core.times.repeat
        return self._count_pledges()

    def stand_again(self) -> Event | None:
        """Begin a new term, or go on in this one if no other node has taken part.

        A nominee that is cut off would otherwise come back with a term that deposes the others' leader.
        """
        if self._current().heard:
            return self.stand()
        self.allow_time()
        return None

    def repeat(self) -> None:
        """Repeat the nominee's messages: some may have been lost."""
        core = self.core
        self.repeat_at = core.now + core.times.repeat
        if core.role is Role.NOMINEE:
            core.say(Nominate(core.term, core.id, core.voter, core.electorate))
            core.say(Pledge(core.term, core.id, core.id, self._key()))
        else:
            core.say(Call(core.term))
            self._vote()

    def _pledge(self, nominee: int, *, deserved: bool) -> None:
        core = self.core
        self._current().deserved = deserved
        core.pledge_to(nominee)
        core.say(Pledge(core.term, nominee, core.id, self._key()))
        self._add(self._current().pledges, nominee, core.voter)

    def call(self) -> Event | None:
        """Call for the votes, and vote; the nominee's time starts again."""
        core = self.core
        tally = self._current()
        if core.pledge is None or tally.called:
            return None
        tally.called = True
        if core.pledge == core.id:
            self.allow_time()
        core.say(Call(core.term))
        if not tally.voted:
            self._vote()
        return self._count_votes()

    def _vote(self) -> None:
        core = self.core
        if core.pledge is not None:
            tally = self._current()
            tally.voted = True
            core.say(Elect(core.term, core.pledge, core.id, self._key()))
            self._add(tally.votes, core.pledge, core.voter)

    # Counting.

    def _count_pledges(self) -> Event | None:
        """Call for the votes when the nominee of this node's pledge has a majority of the pledges."""
        core = self.core
        tally = self._current()
        nominee = core.pledge
        if nominee is None or tally.called or not self._base(nominee).agrees(tally.pledges.get(nominee, ())):
            return None
        if nominee == core.id:
            return Event.PLEDGES_IN if core.role is Role.NOMINEE else None
        self.call()
        return None

    def _count_votes(self) -> Event | None:
        core = self.core
        if core.base.agrees(self._current().votes.get(core.id, ())):
            return Event.VOTES_IN
        return None

    def _base(self, nominee: int) -> Electorate:
        """The voters whose majority a nominee needs: all nodes, if it knows no electorates."""
        return self.core.members.plain if self._is_plain(nominee) else self.core.base

    def _is_plain(self, nominee: int) -> bool:
        member = self.core.members.get(nominee)
        return member is not None and member.voter is None

    def _identity(self, message: Pledge | Elect) -> str:
        """The identity that a vote counts for; a key only if the voter has checked the nominee's electorate."""
        member = self.core.members.get(message.id)
        if message.voter is None and member is not None and self._is_plain(message.nom):
            return member.identity
        return message.voter or f"#{message.id}"

    def _key(self) -> str | None:
        """The key in this node's votes: None unless the nominee asks the right electorate."""
        return self.core.voter if self._current().deserved else None

    def _current(self) -> Tally:
        if self.tally.term != self.core.term:
            self.tally = Tally(self.core.term)
        return self.tally

    @staticmethod
    def _add(tally: dict[int, set[str]], nominee: int, identity: str) -> None:
        if nominee in tally or len(tally) < MAX_NOMINEES:
            identities = tally.setdefault(nominee, set())
            if len(identities) < MAX_IDENTITIES:
                identities.add(identity)
