"""Heartbeats, their answers, and DROP (docs/protocols/hydra.md, "Heartbeats"). No I/O.

Methods return events for the table of roles.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol.core import Core
from hydra.protocol.electorate import Electorate
from hydra.protocol.farewell import draw_proof, proves
from hydra.protocol.leader_term import LeaderTerm, knows_electorates
from hydra.protocol.links import NodeLink
from hydra.protocol.messages import Drop, Ping, Pong, key
from hydra.protocol.roles import Event, Role

#: The reason in a leader's DROP of itself: it is off IRC, and no node need wait for its lease.
LEADER_LEAVES: Final = "the leader leaves"


class Heartbeat:
    """One node's part in a term, as leader or follower."""

    leader_term_class = LeaderTerm

    def __init__(self, core: Core) -> None:
        self.core = core
        self.leader_term: LeaderTerm | None = None
        """Set while this node leads."""
        self.silent_at = core.now
        """When the leader counts as silent, unless it is heard before."""
        self.farewell: str | None = None
        """The `leave` digest of the leader that is followed: the first of its term."""

    # As any node.

    def on_ping(self, message: Ping, link: NodeLink) -> Event | None:
        """Return LEADER_HEARD if the heartbeat is to be followed."""
        core = self.core
        if message.term < core.term or core.is_leap(message.term) or message.id == core.id:
            return None
        if message.term > core.term:
            core.members.forgive(message.id)  # it was elected since it was dropped
        if not core.knows(message.id, message.voter, link):
            return None
        if message.term == core.term and core.leader not in (None, message.id):
            return self._rival(message, link)
        if message.next is None and key(message._replace(next=0)) in core.seen:
            return None
        if not core.is_new(message):
            return None
        core.relay(message, link)
        return Event.LEADER_HEARD

    def _rival(self, message: Ping, link: NodeLink) -> Event | None:
        """Another node claims this term: only its leader reacts."""
        core = self.core
        if core.role is not Role.LEADING or not core.is_new(message):
            return None
        core.relay(message, link)
        return Event.RIVAL

    def follow(self, message: Ping) -> None:
        """Answer a heartbeat, and promise its sender to give no pledge for MAX_PING."""
        core = self.core
        if (message.term, message.id) != (core.term, core.leader):
            core.begin_term()
            self.farewell = None
        if message.term > core.term:
            core.adopt(message.term)
        core.install(message.electorate)
        core.follow(message.id, foreign=message.next is None and not knows_electorates(message.val))
        self.farewell = self.farewell or message.leave
        if (leader := core.members.get(message.id)) is not None:
            leader.answered(core.now)
        self._forget_silent()
        core.persist()
        self.silent_at = core.promise_until
        core.say(Pong(message.val, core.id, 0, core.name, core.voter, core.stamp, int(core.irc)))

    def on_pong(self, message: Pong, link: NodeLink) -> None:
        core = self.core
        if message.hops == 0 and link.peer is None:
            link.meet(message.id)
        message = self._as_its_own(message, link)
        if message.id == core.id or not core.knows(message.id, message.voter, link):
            return
        fresh = core.is_new(message)
        member = core.members.get(message.id)
        if member is None:
            return
        member.route(link.number, message.hops + 1, fresh=fresh)
        if not fresh:
            return
        core.relay(message._replace(hops=message.hops + 1), link)
        member.introduce(message.tag, irc=bool(message.irc))
        leader_term = self.leader_term
        if leader_term is None or leader_term.answered(message.val, member.identity, message.stamp, core.base):
            member.answered(core.now)

    def _as_its_own(self, message: Pong, link: NodeLink) -> Pong:
        """Read an answer with the leader's id as the neighbour's own.

        One implementation answers with the leader's id and a count of 1 for its own id and 0.
        """
        if link.extended or link.peer is None or message.id != self.core.leader or message.id == link.peer:
            return message
        return message._replace(id=link.peer, hops=max(message.hops - 1, 0))

    # As the leader.

    def lead(self) -> None:
        """Begin the term with a heartbeat."""
        core = self.core
        core.set_leader(core.id)
        if core.electorate is not None:
            core.change_electorate(core.electorate.confirmed(core.term))
        self.leader_term = self.leader_term_class(core.term, core.voter, core.times, core.now, draw_proof(core.rng))
        core.begin_term()

    def resign(self) -> None:
        """Stop leading."""
        self.core.set_leader(None)
        self.leader_term = None

    def beat(self, next_line: int) -> None:
        """Drop silent members, bring the electorate up to date, and send a heartbeat."""
        core, leader_term = self.core, self.leader_term
        if leader_term is None:
            return
        self._drop_silent()
        if (changed := self._next_electorate(leader_term)) is not None:
            core.change_electorate(changed)
        electorate = None if core.electorate is None or self._all_have(core.electorate) else core.electorate
        val = leader_term.beat(core.now, core.base)
        core.say(Ping(core.term, val, core.id, core.voter, next_line, electorate, leader_term.leave))

    def wants_beat(self) -> bool:
        """Whether a heartbeat is due, or the electorate can be changed now."""
        core, leader_term = self.core, self.leader_term
        if leader_term is None:
            return False
        return core.now >= leader_term.ping_at or self._next_electorate(leader_term) is not None

    def _drop_silent(self) -> None:
        core = self.core
        for member in list(core.members):
            if (silence := core.silence(member)) > core.times.max_ping:
                core.say(Drop(member.id, f"no PONG for {silence:.1f} s"))
                self.remove(member.id)

    def _forget_silent(self) -> None:
        """Forget members without an answer for 2 MAX_PING: a leader that does not know them drops them never."""
        core = self.core
        for member in list(core.members):
            if member.id != core.leader and core.silence(member) > core.times.forget:
                core.members.forget(member.id)
                for link in core.links.of_peer(member.id):
                    core.close(link, f"node {member.id} has answered no heartbeat for {core.times.forget:g} s")

    # DROP.

    def leaves(self, message: Drop) -> bool:
        """Whether the leader that is followed announces its own end."""
        if message.id != self.core.leader:
            return False
        return message.reason == LEADER_LEAVES if self.farewell is None else proves(message.proof, self.farewell)

    def withstands(self, message: Drop) -> bool:
        """Whether a DROP has no effect: of a leader with a lease, or of one whose heartbeats are heard."""
        core = self.core
        if message.id == core.id:
            return self.leader_term is not None and self.leader_term.leased
        return message.id == core.leader and self.farewell is not None and not self.leaves(message)

    def remove(self, id: int) -> None:
        """Comply with a DROP: forget the node, and close the links to it."""
        core = self.core
        core.members.drop(id, core.now, shrink=core.leader is not None)
        for link in core.links.of_peer(id):
            core.close(link, f"node {id} was dropped")

    def _next_electorate(self, leader_term: LeaderTerm) -> Electorate | None:
        core = self.core
        if core.electorate is None:
            return None
        present = {member.voter for member in core.members if member.voter is not None}
        return leader_term.next_electorate(core.electorate, present)

    def _all_have(self, electorate: Electorate) -> bool:
        leader_term = self.leader_term
        return leader_term is not None and all(
            leader_term.acknowledged.get(member.voter) == electorate.stamp
            for member in self.core.members
            if member.voter is not None
        )
