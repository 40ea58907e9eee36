"""Inductions: how a server becomes a node (docs/protocols/hydra.md, "Inductions"). No I/O.

The node at which a server knocks is its mediator: it asks all others, one induction at a time, and welcomes the server
when all have met it. A returning voter needs no new decision.
"""

from __future__ import annotations

from typing import Final

from hydra.protocol import links
from hydra.protocol.codec import split_tag
from hydra.protocol.core import Core
from hydra.protocol.links import NodeLink, State
from hydra.protocol.messages import Drop, Hello, Knock, Meet, Welcome
from hydra.protocol.roles import Role

#: Inductions in the whole network in which one node takes part at a time.
MAX_KNOCKS: Final = 64


class Mediation:
    """An induction with this node as its mediator."""

    def __init__(self, ind: int, tag: str, link: NodeLink, missing: set[int], ends: float) -> None:
        self.ind = ind
        self.tag = tag
        self.link = link
        self.missing = missing
        """The nodes whose MEET is missing."""
        self.ends = ends


class Induction:
    """One node's part in inductions: as mediator, as a node that is asked, and as the server that knocks."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.restart()

    def restart(self) -> None:
        """Forget all inductions."""
        self.mediation: Mediation | None = None
        self.waiting: dict[int, str] = {}
        """The tags of further links that knock."""
        self.knocks: dict[int, tuple[str, float]] = {}
        """The servers of other mediators: their tags, and how long they may be welcomed."""

    # As the mediator.

    def on_own_knock(self, message: Knock, link: NodeLink) -> None:
        """The other side of a link asks to be a node."""
        core = self.core
        if link.on(links.Event.KNOCK) is not links.Action.CONSIDER:
            return
        _, voter = split_tag(message.tag)
        link.set_extended(voter is not None)
        if message.ind == core.id or voter == core.voter:
            core.close(link, f"{message.ind} is this node")
        elif voter is not None and core.leader is not None and core.members.is_dropped(message.ind, core.now):
            core.answer(link, Drop(message.ind, "dropped before"))
        else:
            core.members.forgive(message.ind)
            if link.peer not in (None, message.ind):
                self.forget_link(link.number)  # it has withdrawn the request under its former id
            link.meet(message.ind)
            self._decide(message, link, voter)

    def _decide(self, message: Knock, link: NodeLink, voter: str | None) -> None:
        core = self.core
        member = core.members.get(message.ind)
        voters = core.electorate.voters if core.electorate is not None else frozenset()
        if member is not None and member.voter != voter:
            core.close(link, f"{message.ind} is another node's id")
        elif member is not None:
            member.answered(core.now)
            self._admit(message.ind, link)
        elif voter in voters and core.role is not Role.OUTSIDE:
            self._readmit(message, link, voter)
        else:
            self.waiting[link.number] = message.tag
            # Not at once after one's own knock: two that are both outside would answer each other without end.
            if core.role is Role.OUTSIDE and voter is not None and (not link.asked or core.now >= link.knock_at):
                self.knock(link)
            self.proceed()

    def _readmit(self, message: Knock, link: NodeLink, voter: str | None) -> None:
        """Let a server in at once: a majority has agreed to this voter before, or there is no leader to ask."""
        core = self.core
        if core.members.register(message.ind, voter, core.now) is None:
            core.close(link, f"{message.ind} cannot be registered")
            return
        core.say(message)
        self._admit(message.ind, link)
        core.say(Welcome(message.ind))
        core.say(Hello(message.ind, core.id, core.voter))

    def _admit(self, ind: int, link: NodeLink) -> None:
        """Answer a known node's KNOCK on its link alone."""
        core = self.core
        core.answer(link, Meet(ind, core.id, core.voter))
        core.answer(link, Welcome(ind))
        core.answer(link, Hello(ind, core.id, core.voter))
        link.on(links.Event.ADMITTED)

    def proceed(self) -> None:
        """Begin with the next server that knocked, if this node is free and in term."""
        core = self.core
        if core.orphaned and core.role is not Role.OUTSIDE:
            self._adopt()
        while self.mediation is None and self.waiting and core.leader is not None:
            number, tag = next(iter(self.waiting.items()))
            del self.waiting[number]
            link = core.links.get(number)
            if link is None or link.peer is None or link.state is State.JOINED:
                continue
            if link.peer in core.members:
                self._admit(link.peer, link)
            else:
                self._mediate(link.peer, tag, link)

    def _adopt(self) -> None:
        """Without a leader, let in servers that know attributes, as nodes without a vote.

        The voters may be unable to reach each other but through a node that has lost its disk.
        """
        for number, tag in list(self.waiting.items()):
            link = self.core.links.get(number)
            voter = split_tag(tag)[1]
            if link is not None and link.peer is not None and voter is not None:
                del self.waiting[number]
                self._readmit(Knock(link.peer, tag), link, voter)

    def _mediate(self, ind: int, tag: str, link: NodeLink) -> None:
        core = self.core
        missing = {member.id for member in core.members if core.silence(member) <= core.times.max_ping}
        self.mediation = Mediation(ind, tag, link, missing, core.now + core.times.max_meet)
        core.say(Knock(ind, tag))
        core.answer(link, Meet(ind, core.id, core.voter))
        self._welcome_if_agreed()

    def _welcome_if_agreed(self) -> None:
        core, mediation = self.core, self.mediation
        if mediation is None or mediation.missing:
            return
        self.mediation = None
        if core.members.welcome(mediation.ind, split_tag(mediation.tag)[1], core.now) is None:
            core.close(mediation.link, f"{mediation.ind} cannot be registered")
            return
        welcome, hello = Welcome(mediation.ind), Hello(mediation.ind, core.id, core.voter)
        core.answer(mediation.link, welcome)
        core.say(welcome)
        core.answer(mediation.link, hello)
        core.say(hello)
        mediation.link.on(links.Event.ADMITTED)

    def forget_node(self, id: int) -> None:
        """Wait no longer for the agreement of a dropped node."""
        if self.mediation is not None:
            self.mediation.missing.discard(id)
            self._welcome_if_agreed()

    def forget_link(self, number: int) -> None:
        """End the request of a server whose link was closed."""
        self.waiting.pop(number, None)
        if self.mediation is not None and self.mediation.link.number == number:
            self.mediation = None

    def expire(self) -> None:
        """End inductions that have taken longer than MAX_MEET."""
        core = self.core
        self._give_up_silent()
        mediation = self.mediation
        if mediation is not None and core.now >= mediation.ends:
            self.mediation = None
            core.close(mediation.link, f"{len(mediation.missing)} nodes have not agreed within MAX_MEET")
        while self.knocks and core.now >= next(iter(self.knocks.values()))[1]:
            del self.knocks[next(iter(self.knocks))]
        self.proceed()

    def _give_up_silent(self) -> None:
        """Wait for no member that was forgotten or has answered no heartbeat for MAX_PING."""
        core, mediation = self.core, self.mediation
        if mediation is None:
            return
        waited_for = [core.members.get(id) for id in mediation.missing]
        mediation.missing = {
            member.id for member in waited_for if member is not None and core.silence(member) <= core.times.max_ping
        }
        self._welcome_if_agreed()

    # As a node that is asked.

    def on_knock(self, message: Knock, link: NodeLink) -> None:
        """Agree to a server that another node mediates for."""
        core = self.core
        voter = split_tag(message.tag)[1]
        if message.ind == core.id or len(self.knocks) >= MAX_KNOCKS or not core.is_new(message):
            return
        core.relay(message, link)
        member = core.members.get(message.ind)
        if member is not None and member.voter != voter:
            return
        self.knocks.pop(message.ind, None)
        self.knocks[message.ind] = (message.tag, core.now + core.times.max_meet)
        if core.electorate is None or voter not in core.electorate.voters:
            core.say(Meet(message.ind, core.id, core.voter))

    def on_meet(self, message: Meet, link: NodeLink) -> None:
        core, mediation = self.core, self.mediation
        if message.ind == core.id:
            self._met(message, link)
        if not core.knows(message.id, message.voter, link) or not core.is_new(message):
            return
        core.relay(message, link)
        if mediation is not None and message.ind == mediation.ind:
            core.answer(mediation.link, message)
            mediation.missing.discard(message.id)
            self._welcome_if_agreed()

    def on_welcome(self, message: Welcome, link: NodeLink) -> None:
        """Register and greet a server to which all have agreed."""
        core = self.core
        knock = self.knocks.pop(message.ind, None)
        if knock is None or not core.is_new(message):
            return
        core.relay(message, link)
        self._register(message.ind, knock[0])
        core.say(Hello(message.ind, core.id, core.voter))

    def on_hello(self, message: Hello, link: NodeLink) -> None:
        core = self.core
        if message.ind == core.id:
            self._met(message, link)
        elif message.ind not in core.members and message.ind not in self.knocks:
            return
        if not core.knows(message.id, message.voter, link) or not core.is_new(message):
            return
        core.relay(message, link)
        knock = self.knocks.get(message.ind)
        if knock is not None:
            self._register(message.ind, knock[0])

    def _register(self, ind: int, tag: str) -> None:
        core = self.core
        name, voter = split_tag(tag)
        member = core.members.welcome(ind, voter, core.now)
        if member is not None:
            member.introduce(name, irc=member.irc)

    # As the server that knocks.

    def knock(self, link: NodeLink) -> None:
        """Send KNOCK over a link."""
        core = self.core
        link.knocked(core.now + core.times.knock_interval)
        core.answer(link, Knock(core.id, core.tag))

    def on_answer(self, message: Meet | Welcome | Hello, link: NodeLink) -> bool:
        """Handle an answer to a KNOCK; returns whether it is the WELCOME that makes this node one of the network."""
        if message.ind != self.core.id:
            return False
        if isinstance(message, Welcome):
            return link.on(links.Event.WELCOMED) is links.Action.JOIN
        self._met(message, link)
        return False

    def _met(self, message: Meet | Hello, link: NodeLink) -> None:
        """Register a node that agrees to this one or greets it; the first on a link is the neighbour itself."""
        core = self.core
        if link.asked and link.peer is None:
            link.meet(message.id)
        if link.asked and message.voter is not None and not link.extended:
            link.set_extended(True)
        core.members.register(message.id, message.voter if link.extended else None, core.now)
