"""The term: heartbeats and their answers, and who is dropped. No I/O.

docs/protocols/hydra.md, "Heartbeats". What happens is returned as an event for the table of roles.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol.core import Core
from hydra.protocol.electorate import Electorate
from hydra.protocol.farewell import draw_proof, proves
from hydra.protocol.links import Link
from hydra.protocol.messages import Drop, Ping, Pong
from hydra.protocol.reign import Reign, knows_electorates
from hydra.protocol.roles import Event, Role

LEADER_LEAVES: Final = "the leader leaves"
"""The reason in the DROP of a leader for itself: it is off IRC, and its lease need not be waited for."""


class Termtime:
    """A node's part in a term, as its leader or not."""

    reign_class = Reign

    def __init__(self, core: Core) -> None:
        self.core = core
        self.reign: Reign | None = None
        """Set while this node leads."""
        self.silent_at = core.now
        """When the leader that is followed will have been silent for too long."""
        self.farewell: str | None = None
        """What the leader that is followed has announced to prove when it leaves; the first word counts in a term."""

    # As anybody.

    def on_ping(self, message: Ping, link: Link) -> Event | None:
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
        if message.next is None and message._replace(next=0).key() in core.seen:
            return None
        if not core.is_new(message):
            return None
        core.relay(message, link)
        return Event.LEADER_HEARD

    def _rival(self, message: Ping, link: Link) -> Event | None:
        """Somebody else claims this term: only its leader does something about it."""
        core = self.core
        if core.role is not Role.LEADING or not core.is_new(message):
            return None
        core.relay(message, link)
        return Event.RIVAL

    def follow(self, message: Ping) -> None:
        """Answer a heartbeat, and promise its sender to pledge to nobody for a while."""
        core = self.core
        if (message.term, message.id) != (core.term, core.leader):
            core.led_since, self.farewell = core.now, None
        if message.term > core.term:
            core.adopt(message.term)
        core.install(message.electorate)
        core.leader = message.id
        self.farewell = self.farewell or message.leave
        if (leader := core.members.get(message.id)) is not None:
            leader.heard = core.now
        self._forget_silent()
        core.foreign = message.next is None and not knows_electorates(message.val)
        core.persist()
        self.silent_at = core.promise_until = core.now + core.times.max_ping
        core.promised = (message.id, message.term)
        core.say(Pong(message.val, core.id, 0, core.name, core.voter, core.stamp, int(core.irc)))

    def on_pong(self, message: Pong, link: Link) -> None:
        core = self.core
        if message.hops == 0 and link.peer is None:
            link.peer = message.id
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
        member.name = message.tag
        member.irc = bool(message.irc)
        reign = self.reign
        if reign is None or reign.answered(message.val, member.identity, message.stamp, core.base):
            member.heard = core.now

    def _as_its_own(self, message: Pong, link: Link) -> Pong:
        """Read an answer as that of the neighbour it came from, if it bears the leader's id.

        One implementation answers with the leader's id and a count of 1 for its own id and 0.
        """
        if link.extended or link.peer is None or message.id != self.core.leader or message.id == link.peer:
            return message
        return message._replace(id=link.peer, hops=max(message.hops - 1, 0))

    # As the leader.

    def lead(self) -> None:
        """Begin the term with a heartbeat."""
        core = self.core
        core.leader = core.id
        if core.electorate is not None:
            core.electorate = core.electorate.confirmed(core.term)
            core.persist()
        self.reign = self.reign_class(core.term, core.voter, core.times, core.now, draw_proof(core.rng))
        core.led_since = core.now

    def resign(self) -> None:
        """Lead no longer."""
        self.core.leader = None
        self.reign = None

    def beat(self, next_line: int) -> None:
        """Send a heartbeat, drop the silent, and bring the electorate up to date."""
        core, reign = self.core, self.reign
        if reign is None:
            return
        self._drop_silent()
        self._change_electorate(reign)
        electorate = None if core.electorate is None or self._all_have(core.electorate) else core.electorate
        val = reign.beat(core.now, core.base)
        core.say(Ping(core.term, val, core.id, core.voter, next_line, electorate, reign.leave))

    def wants_beat(self) -> bool:
        """Whether a heartbeat is due, or worth sending because the electorate can be changed."""
        core, reign = self.core, self.reign
        if reign is None:
            return False
        return core.now >= reign.ping_at or self._next_electorate(reign) is not None

    def _drop_silent(self) -> None:
        core = self.core
        for member in list(core.members):
            if (silence := core.silence(member)) > core.times.max_ping:
                core.say(Drop(member.id, f"no PONG for {silence:.1f} s"))
                self.remove(member.id)

    def _forget_silent(self) -> None:
        """Forget who has answered no heartbeat for long: its leader may not know it, and would never drop it."""
        core = self.core
        for member in list(core.members):
            if member.id != core.leader and core.silence(member) > core.times.forget:
                core.members.forget(member.id)
                for link in core.links.of_peer(member.id):
                    core.close(link, f"node {member.id} has answered no heartbeat for {core.times.forget:g} s")

    # Who drops a leader.

    def leaves(self, message: Drop) -> bool:
        """Whether the leader that is followed says itself that it leaves."""
        if message.id != self.core.leader:
            return False
        return message.reason == LEADER_LEAVES if self.farewell is None else proves(message.proof, self.farewell)

    def withstands(self, message: Drop) -> bool:
        """Whether a leader goes on although a node would have it dropped: a majority answers it, or it was heard."""
        core = self.core
        if message.id == core.id:
            return self.reign is not None and self.reign.leased
        return message.id == core.leader and self.farewell is not None and not self.leaves(message)

    def remove(self, id: int) -> None:
        """Comply with a DROP: forget the node, and close the links to it."""
        core = self.core
        core.members.drop(id, core.now, shrink=core.leader is not None)
        for link in core.links.of_peer(id):
            core.close(link, f"node {id} was dropped")

    def _change_electorate(self, reign: Reign) -> None:
        core = self.core
        if (electorate := self._next_electorate(reign)) is not None:
            core.electorate = electorate
            core.persist()

    def _next_electorate(self, reign: Reign) -> Electorate | None:
        core = self.core
        if core.electorate is None:
            return None
        present = {member.voter for member in core.members if member.voter is not None}
        return reign.next_electorate(core.electorate, present)

    def _all_have(self, electorate: Electorate) -> bool:
        reign = self.reign
        return reign is not None and all(
            reign.acknowledged.get(member.voter) == electorate.stamp
            for member in self.core.members
            if member.voter is not None
        )
