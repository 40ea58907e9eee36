"""Hands each message to the part that knows its rules (docs/protocols/hydra.md, "Messages"). No I/O.

Over a link that has not joined, only the messages of its handshake are taken.
"""

from __future__ import annotations

from hydra.protocol.bridge import Bridge
from hydra.protocol.core import Core
from hydra.protocol.election import Election
from hydra.protocol.heartbeat import Heartbeat
from hydra.protocol.induction import Induction
from hydra.protocol.links import NodeLink, State
from hydra.protocol.messages import (
    Ask,
    Call,
    Drop,
    Elect,
    Hello,
    Knock,
    Meet,
    Message,
    Nominate,
    Ping,
    Pledge,
    Pong,
    Recv,
    Send,
    Welcome,
    bare,
)
from hydra.protocol.neighbours import Neighbours
from hydra.protocol.roles import Event
from hydra.protocol.transitions import Transitions


class Receiver:
    """A node's rules for received messages."""

    def __init__(
        self,
        core: Core,
        neighbours: Neighbours,
        heartbeat: Heartbeat,
        election: Election,
        induction: Induction,
        bridge: Bridge,
        transitions: Transitions,
    ) -> None:
        self._core = core
        self._neighbours = neighbours
        self._heartbeat = heartbeat
        self._election = election
        self._induction = induction
        self._bridge = bridge
        self._transitions = transitions

    def take(self, link: NodeLink, message: Message) -> None:
        """Handle a message of an open link."""
        if link.state is not State.JOINED:
            self._take_handshake(link, message)
            return
        if not link.extended:
            message = self._without_attributes(link, message)
        match message:
            case Ping():
                self._take_ping(link, message)
            case Pong():
                self._heartbeat.on_pong(message, link)
            case Recv():
                self._bridge.on_recv(message, link)
            case Send():
                self._bridge.on_send(message, link)
            case Ask():
                self._bridge.on_ask(message, link)
            case Drop():
                self._take_drop(link, message)
            case Nominate() | Pledge() | Call() | Elect():
                self._take_election(link, message)
            case _:
                self._take_induction(link, message)

    def _without_attributes(self, link: NodeLink, message: Message) -> Message:
        """Take attributes as a sign that the neighbour knows them, if this node has knocked; else remove them."""
        plain = bare(message)
        if plain == message or not link.asked:
            return plain
        link.set_extended(True)
        self._core.links.sort()
        return message

    def _take_handshake(self, link: NodeLink, message: Message) -> None:
        if isinstance(message, Knock):
            self._induction.on_own_knock(message, link)
        elif not link.asked:
            self._neighbours.count_ignored(link)
        elif isinstance(message, Drop):
            if message.id == self._core.id:
                self._told_dropped(link, message)
        elif isinstance(message, Meet | Welcome | Hello):
            if self._induction.on_answer(message, link):
                self._transitions.on(Event.INDUCTED)
        else:
            self._neighbours.count_ignored(link)

    def _take_ping(self, link: NodeLink, message: Ping) -> None:
        event = self._heartbeat.on_ping(message, link)
        if event is Event.LEADER_HEARD:
            self._transitions.on(event, heard=message)
            self._bridge.follow(message.next, link)
        else:
            self._transitions.on(event)

    def _take_election(self, link: NodeLink, message: Nominate | Pledge | Call | Elect) -> None:
        match message:
            case Nominate():
                if self._election.on_nominate(message, link):
                    self._transitions.on(Event.NOMINATION, nominated=message)
            case Pledge():
                self._transitions.on(self._election.on_pledge(message, link))
            case Call():
                self._election.on_call(message, link)
            case Elect():
                self._transitions.on(self._election.on_elect(message, link))

    def _take_induction(self, link: NodeLink, message: Message) -> None:
        match message:
            case Knock():
                if message.ind == link.peer:
                    self._induction.on_own_knock(message, link)
                else:
                    self._induction.on_knock(message, link)
            case Meet():
                self._induction.on_meet(message, link)
            case Welcome():
                self._induction.on_welcome(message, link)
            case Hello():
                self._induction.on_hello(message, link)

    # Dropping of nodes.

    def _take_drop(self, link: NodeLink, message: Drop) -> None:
        core = self._core
        if not core.is_new(message) and message.id not in core.members and message.id != core.id:
            return
        if self._heartbeat.withstands(message):
            return
        core.relay(message, link)
        if message.id == core.id:
            self._dropped(message.reason)
            return
        leaves = self._heartbeat.leaves(message)
        self.remove(message.id, leaves=leaves)

    def remove(self, id: int, *, leaves: bool = False) -> None:
        """Comply with a DROP of another node; `leaves`: it is the leader, and off IRC."""
        core = self._core
        self._heartbeat.remove(id)
        self._induction.forget_node(id)
        if id == core.leader:
            core.set_leader(None)
            if leaves:
                core.release(id, core.term + 1)
            self._transitions.on(Event.LEADER_SILENT)

    def _told_dropped(self, link: NodeLink, message: Drop) -> None:
        """A neighbour whose link has not joined says that this node was dropped."""
        if self._heartbeat.withstands(message):
            self._core.close(link, f"it takes this leader for dropped: {message.reason}")
        else:
            self._dropped(message.reason)

    def _dropped(self, reason: str) -> None:
        self._neighbours.close_all(f"dropped: {reason or 'no reason given'}")
        self._transitions.on(Event.DROPPED)
