"""Shared by the parts of a node: its identity, its promises, the other nodes, its links and its outbox. No I/O.

The rules are in the parts; they change the state here through methods alone.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import Final

from hydra.protocol.codec import MAX_ID, MAX_NUMBER, join_tag
from hydra.protocol.effects import CloseLink, RoleChanged, StoredNode, Transmit
from hydra.protocol.electorate import NO_STAMP, Electorate, Stamp
from hydra.protocol.links import Links, NodeLink
from hydra.protocol.members import Member, Members
from hydra.protocol.messages import RECURRING, REPEATED, Drop, Message, Recv, key
from hydra.protocol.outbox import Outbox
from hydra.protocol.roles import Candidacy, Role
from hydra.protocol.seen import Seen
from hydra.protocol.times import Times

#: The most by which a term may be ahead of one's own. Otherwise one message could use up all terms.
MAX_LEAP: Final = 100_000
LAST_TERM: Final = MAX_NUMBER - MAX_LEAP


class Core:
    """The state that the parts of one node share."""

    def __init__(self, name: str, times: Times, rng: Random, stored: StoredNode, now: float, irc: bool = True) -> None:
        self.name = name
        self.times = times
        self.rng = rng
        self.now = now
        self.irc = irc
        """Whether it knows an IRC server."""
        self.id = rng.randint(1, MAX_ID)
        self.voter = stored.voter
        self.term = stored.term
        self.pledge = stored.pledge
        self.electorate = stored.electorate
        self.leader: int | None = None
        self.foreign = False
        """Whether the last leader knows no electorates."""
        self.led_at = now
        """The last moment with a leader."""
        self.led_since = now
        """When this term's heartbeats began: no member could answer before."""
        self.promise_until = now
        """No pledge is given before: the leader counts on it."""
        self.promised: tuple[int, int] | None = None
        """The leader of that promise: its id and its term."""
        self.candidacy = Candidacy()
        self.members = Members(self.id, self.voter, times.memory)
        self.links = Links()
        self.closed: list[NodeLink] = []
        """The links closed in this event."""
        self.seen = Seen()
        self.outbox = Outbox(stored)
        self._changed: tuple[Role, int, int | None] = (Role.OUTSIDE, self.term, None)

    # Identity.

    @property
    def role(self) -> Role:
        """The node's place in the table of roles."""
        return self.candidacy.role

    @property
    def tag(self) -> str:
        """The tag of its KNOCK, which shows that it knows attributes."""
        return join_tag(self.name, self.voter)

    @property
    def orphaned(self) -> bool:
        """Whether there has been no leader for MAX_PING: waiting for one is of no use."""
        return self.leader is None and self.now >= self.led_at + self.times.max_ping

    @property
    def stamp(self) -> Stamp:
        """The stamp of its electorate."""
        return self.electorate.stamp if self.electorate is not None else NO_STAMP

    @property
    def votes(self) -> bool:
        """Whether it is in its electorate."""
        return self.electorate is not None and self.voter in self.electorate.voters

    @property
    def base(self) -> Electorate:
        """The voters whose majority elects: the electorate, or all nodes where none is agreed."""
        return self.electorate if self.electorate is not None else self.members.plain

    @property
    def outdone(self) -> bool:
        """Whether another voter knows an IRC server, and this node none."""
        return not self.irc and any(each.irc and each.voter in self.base.voters for each in self.members)

    def silence(self, member: Member) -> float:
        """Seconds since a member's last answer, counted from this term's first heartbeat at the earliest."""
        return self.now - max(member.heard, self.led_since)

    def draw_id(self) -> None:
        """Take a new id, for joining the network anew."""
        self.id = self.rng.randint(1, MAX_ID)
        self.members.restart(self.id, self.now)

    def begin_event(self, now: float) -> None:
        """Move the clock on; it never goes back."""
        self.now = max(now, self.now)

    # The leader.

    def set_leader(self, leader: int | None) -> None:
        """Know this leader, or none."""
        self.leader = leader

    def begin_term(self) -> None:
        """The first heartbeat of a term: no member could answer one before."""
        self.led_since = self.now

    def follow(self, leader: int, *, foreign: bool) -> None:
        """Follow a leader for MAX_PING; a `foreign` one knows no electorates."""
        self.leader = leader
        self.foreign = foreign
        self.promised = (leader, self.term)
        self.promise()

    def note_led(self) -> None:
        """Remember the moment if there is a leader."""
        if self.leader is not None:
            self.led_at = self.now

    def promise(self) -> None:
        """Give no pledge for MAX_PING."""
        self.promise_until = self.now + self.times.max_ping

    # Stored state.

    def found(self) -> None:
        """Begin a network: an electorate of this node alone."""
        self.electorate = Electorate(0, 1, frozenset({self.voter}))

    def change_electorate(self, electorate: Electorate) -> None:
        """Replace the electorate, as its leader, and have it written."""
        self.electorate = electorate
        self.persist()

    def pledge_to(self, nominee: int) -> None:
        """Pledge to a nominee in this term, and have it written."""
        self.pledge = nominee
        self.persist()

    def persist(self) -> None:
        """Have term, pledge and electorate written before any further message is sent."""
        self.outbox.persist(StoredNode(self.voter, self.term, self.pledge, self.electorate))

    def adopt(self, term: int) -> None:
        """Go on to a later term. To be persisted."""
        self.term = term
        self.pledge = None
        self.leader = None

    def is_leap(self, term: int) -> bool:
        """Whether a term is too far ahead to be accepted."""
        return term > self.term + MAX_LEAP or term > LAST_TERM

    def install(self, electorate: Electorate | None) -> bool:
        """Take a newer electorate; False if there is none. To be persisted."""
        if electorate is None or electorate.stamp <= self.stamp:
            return False
        self.electorate = electorate
        return True

    def release(self, id: int, term: int) -> None:
        """End the promise to a former leader that acts in a later term: it has left IRC, and has no lease."""
        if self.promised is not None and self.promised[0] == id and self.promised[1] < term:
            self.promised = None
            self.promise_until = self.now

    # Other nodes.

    def knows(self, id: int, voter: str | None, link: NodeLink) -> bool:
        """Whether a message of this node is accepted: it is registered here, or a neighbour vouches for its key.

        A dropped node that still speaks is told so.
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

    # Messages.

    def is_new(self, message: Message) -> bool:
        """Whether a message is new, and remember it; those that recur are new again after a while."""
        kind = type(message)
        if kind in REPEATED:
            lifetime = self.times.repeat / 2
        elif kind in RECURRING:
            lifetime = self.times.max_meet
        else:
            lifetime = inf
        return self.seen.add(key(message), self.now, lifetime)

    def say(self, message: Message) -> None:
        """Send an own message over all links, once, as soon as the row that it rests on is on disk."""
        if self.is_new(message):
            for effect in self._transmits(message, self.links.extended, self.links.plain):
                self.outbox.say(effect)

    def relay(self, message: Message, source: NodeLink, *, echo: bool = False) -> None:
        """Pass a message on; with `echo` also back to a neighbour without attributes, which expects that."""
        extended = tuple(each for each in self.links.extended if each != source.number)
        plain = self.links.plain if echo else tuple(each for each in self.links.plain if each != source.number)
        for effect in self._transmits(message, extended, plain):
            self.outbox.at_once(effect)

    def answer(self, link: NodeLink, message: Message) -> None:
        """Send a message over one link alone, as soon as the row that it rests on is on disk."""
        self.outbox.say(Transmit((link.number,), message, link.extended))

    def _transmits(self, message: Message, extended: tuple[int, ...], plain: tuple[int, ...]) -> list[Transmit]:
        found = []
        if extended:
            found.append(Transmit(extended, message, True))
        # Without its attributes a line of an earlier term would count as this term's.
        if plain and not (type(message) is Recv and message.term != self.term):
            found.append(Transmit(plain, message, False))
        return found

    def close(self, link: NodeLink, reason: str) -> None:
        """Close a link."""
        if self.links.remove(link.number) is None:
            return
        self.closed.append(link)
        self.outbox.at_once(CloseLink(link.number, reason))

    def note_changes(self) -> None:
        """Report a changed role, term or leader."""
        state = (self.role, self.term, self.leader)
        if state != self._changed:
            self._changed = state
            self.outbox.at_once(RoleChanged(*state))
