"""What the parts of a node share: who it is, whom it knows, what it has promised, and how it speaks. No I/O."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final

from hydra.protocol.codec import MAX_ID, MAX_NUMBER, join_tag
from hydra.protocol.effects import Changed, CloseLink, Stored, Transmit
from hydra.protocol.electorate import NO_STAMP, Electorate, Stamp
from hydra.protocol.links import Link, Links
from hydra.protocol.members import Member, Members
from hydra.protocol.messages import (
    Call,
    Drop,
    Elect,
    Hello,
    Knock,
    Meet,
    Message,
    Nominate,
    Pledge,
    Recv,
    Send,
    Welcome,
)
from hydra.protocol.outbox import Outbox
from hydra.protocol.roles import Candidacy, Role
from hydra.protocol.seen import Seen
from hydra.protocol.times import Times

MAX_LEAP: Final = 100_000
"""How far ahead of one's own a term may be. Otherwise one message could use up all terms."""
LAST_TERM: Final = MAX_NUMBER - MAX_LEAP
_RECURRING: Final = frozenset({Knock, Meet, Welcome, Hello, Drop, Send})
_REPEATED: Final = frozenset({Nominate, Pledge, Call, Elect})


class Core:
    """A node's identity, promises and acquaintances. The rules are in the parts that use it."""

    def __init__(self, name: str, times: Times, rng: Random, stored: Stored, now: float, irc: bool = True) -> None:
        self.name = name
        self.times = times
        self.rng = rng
        self.now = now
        self.irc = irc
        """Whether it could be on IRC: it knows a server."""
        self.id = rng.randint(1, MAX_ID)
        self.voter = stored.voter
        self.term = stored.term
        self.pledge = stored.pledge
        self.electorate = stored.electorate
        self.leader: int | None = None
        self.foreign = False
        """Whether the last leader was one that knows no electorates."""
        self.led_at = now
        """When there was a leader last."""
        self.led_since = now
        """When this term's heartbeats began: before, no member had one to answer."""
        self.promise_until = now
        """Until then no pledge is given, because the leader may count on it."""
        self.promised: tuple[int, int] | None = None
        """To whom that was promised: the leader's id and its term."""
        self.candidacy = Candidacy()
        self.members = Members(self.id, self.voter, times.memory)
        self.links = Links()
        self.closed: list[Link] = []
        """The links that this event has closed."""
        self.seen = Seen()
        self.outbox = Outbox(stored)
        self._changed: tuple[Role, int, int | None] = (Role.OUTSIDE, self.term, None)

    # Who it is.

    @property
    def role(self) -> Role:
        """The node's place in the table of roles."""
        return self.candidacy.role

    @property
    def tag(self) -> str:
        """What it knocks with: who reads attributes knows by it that this node reads them too."""
        return join_tag(self.name, self.voter)

    @property
    def orphaned(self) -> bool:
        """Whether there has been no leader for so long that nobody can be waited for."""
        return self.leader is None and self.now >= self.led_at + self.times.max_ping

    @property
    def stamp(self) -> Stamp:
        """Which electorate it has."""
        return self.electorate.stamp if self.electorate is not None else NO_STAMP

    @property
    def votes(self) -> bool:
        """Whether it is in its electorate."""
        return self.electorate is not None and self.voter in self.electorate.voters

    @property
    def base(self) -> Electorate:
        """Whose majority it would need to lead: the electorate's, or where nobody agrees on one, that of all."""
        return self.electorate if self.electorate is not None else self.members.plain

    @property
    def outdone(self) -> bool:
        """Whether it could not be on IRC as the leader, but another voter could."""
        return not self.irc and any(each.irc and each.voter in self.base.voters for each in self.members)

    def silence(self, member: Member) -> float:
        """Seconds in which a member could have answered a heartbeat and has not."""
        return self.now - max(member.heard, self.led_since)

    def draw_id(self) -> None:
        """Take a new id, as a node does that joins the network anew."""
        self.id = self.rng.randint(1, MAX_ID)
        self.members.restart(self.id, self.now)

    # What it has promised.

    def persist(self) -> None:
        """Have term, pledge and electorate written before anything more is said."""
        self.outbox.persist(Stored(self.voter, self.term, self.pledge, self.electorate))

    def adopt(self, term: int) -> None:
        """Go on to a later term. To be persisted."""
        self.term = term
        self.pledge = None
        self.leader = None

    def is_leap(self, term: int) -> bool:
        """Whether a term is too far ahead to be believed."""
        return term > self.term + MAX_LEAP or term > LAST_TERM

    def install(self, electorate: Electorate | None) -> bool:
        """Take a newer electorate; False if it is none. To be persisted."""
        if electorate is None or electorate.stamp <= self.stamp:
            return False
        self.electorate = electorate
        return True

    def release(self, id: int, term: int) -> None:
        """A node has said something of this term: if it was leader before, it has left IRC, and counts on nobody."""
        if self.promised is not None and self.promised[0] == id and self.promised[1] < term:
            self.promised = None
            self.promise_until = self.now

    # Whom it knows.

    def knows(self, id: int, voter: str | None, link: Link) -> bool:
        """Whether a message of this node may be taken: it is registered, or a neighbour that has registered it says so.

        Who was dropped and does not know it is told.
        """
        if id == self.id:
            return voter is None or voter == self.voter
        member = self.members.get(id)
        if member is not None and (voter is None or voter == member.voter):
            return True
        if self.members.is_dropped(id, self.now):
            self.answer(link, Drop(id, "dropped before"))
            return False
        if voter is None:
            return False
        return self.members.register(id, voter, self.now) is not None

    # How it speaks.

    def is_new(self, message: Message) -> bool:
        """Whether a message was not seen before, or not lately if it is of a kind that recurs; from now on it was."""
        kind = type(message)
        if kind in _REPEATED:
            lifetime = self.times.repeat / 2
        elif kind in _RECURRING:
            lifetime = self.times.max_meet
        else:
            lifetime = inf
        return self.seen.add(message.key(), self.now, lifetime)

    def say(self, message: Message) -> None:
        """Send a message of one's own to everybody, once, when what it promises is on disk."""
        if self.is_new(message):
            for effect in self._transmits(message, self.links.extended, self.links.plain):
                self.outbox.say(effect)

    def relay(self, message: Message, source: Link, *, echo: bool = False) -> None:
        """Pass a message on; with `echo` also back to a neighbour that expects to see it come back."""
        extended = tuple(each for each in self.links.extended if each != source.number)
        plain = self.links.plain if echo else tuple(each for each in self.links.plain if each != source.number)
        for effect in self._transmits(message, extended, plain):
            self.outbox.at_once(effect)

    def answer(self, link: Link, message: Message) -> None:
        """Send a message over one link only, when what it promises is on disk."""
        self.outbox.say(Transmit((link.number,), message, link.extended))

    def _transmits(self, message: Message, extended: tuple[int, ...], plain: tuple[int, ...]) -> list[Transmit]:
        found = []
        if extended:
            found.append(Transmit(extended, message, True))
        # Without its term a line of an earlier one would pass for this one's.
        if plain and not (type(message) is Recv and message.term != self.term):
            found.append(Transmit(plain, message, False))
        return found

    def close(self, link: Link, reason: str) -> None:
        """Close a link."""
        if self.links.remove(link.number) is None:
            return
        self.closed.append(link)
        self.outbox.at_once(CloseLink(link.number, reason))

    def note_changes(self) -> None:
        """Tell if role, term or leader are not what was told last."""
        state = (self.role, self.term, self.leader)
        if state != self._changed:
            self._changed = state
            self.outbox.at_once(Changed(*state))
