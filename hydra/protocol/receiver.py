"""Hands each message to the part that knows its rules (docs/protocols/hydra.md, "Messages"). No I/O.

Over a link that has not joined, only the messages of its handshake are taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from hydra.protocol import messages
from hydra.protocol.bridge import Bridge
from hydra.protocol.core import Core
from hydra.protocol.election import Election
from hydra.protocol.heartbeat import Heartbeat
from hydra.protocol.induction import Induction
from hydra.protocol.links import NodeLink, State
from hydra.protocol.messages import Drop, Message, Ping, bare
from hydra.protocol.neighbours import Neighbours
from hydra.protocol.roles import Event
from hydra.protocol.transitions import Transitions


@dataclass(frozen=True, eq=False)
class Receiver:
    """A node's rules for received messages."""

    core: Core
    neighbours: Neighbours
    heartbeat: Heartbeat
    election: Election
    induction: Induction
    bridge: Bridge
    transitions: Transitions

    def take(self, link: NodeLink, message: Message) -> None:
        """Handle a message of an open link."""
        if link.state is not State.JOINED:
            self._take_handshake(link, message)
            return
        if not link.extended:
            message = self._without_attributes(link, message)
        match message:
            case messages.Ping():
                self._take_ping(link, message)
            case messages.Pong():
                self.heartbeat.on_pong(message, link)
            case messages.Recv():
                self.bridge.on_recv(message, link)
            case messages.Send():
                self.bridge.on_send(message, link)
            case messages.Ask():
                self.bridge.on_ask(message, link)
            case messages.Drop():
                self._take_drop(link, message)
            case messages.Nominate():
                if self.election.on_nominate(message, link):
                    self.transitions.on(Event.NOMINATION, nominated=message)
            case messages.Pledge():
                self.transitions.on(self.election.on_pledge(message, link))
            case messages.Call():
                self.election.on_call(message, link)
            case messages.Elect():
                self.transitions.on(self.election.on_elect(message, link))
            case messages.Knock() if message.ind == link.peer:
                self.induction.on_own_knock(message, link)
            case messages.Knock():
                self.induction.on_knock(message, link)
            case messages.Meet():
                self.induction.on_meet(message, link)
            case messages.Welcome():
                self.induction.on_welcome(message, link)
            case messages.Hello():
                self.induction.on_hello(message, link)

    def _without_attributes(self, link: NodeLink, message: Message) -> Message:
        """Take attributes as a sign that the neighbour knows them, if this node has knocked; else remove them."""
        plain = bare(message)
        if plain == message or not link.asked:
            return plain
        link.set_extended(True)
        self.core.links.sort()
        return message

    def _take_handshake(self, link: NodeLink, message: Message) -> None:
        if isinstance(message, messages.Knock):
            self.induction.on_own_knock(message, link)
        elif not link.asked:
            self.neighbours.count_ignored(link)
        elif isinstance(message, Drop):
            if message.id == self.core.id:
                self._told_dropped(link, message)
        elif isinstance(message, messages.Meet | messages.Welcome | messages.Hello):
            if self.induction.on_answer(message, link):
                self.transitions.on(Event.INDUCTED)
        else:
            self.neighbours.count_ignored(link)

    def _take_ping(self, link: NodeLink, message: Ping) -> None:
        event = self.heartbeat.on_ping(message, link)
        if event is Event.LEADER_HEARD:
            self.transitions.on(event, heard=message)
            self.bridge.follow(message.next, link)
        else:
            self.transitions.on(event)

    # Dropping of nodes.

    def _take_drop(self, link: NodeLink, message: Drop) -> None:
        core = self.core
        if not core.is_new(message) and message.id not in core.members and message.id != core.id:
            return
        if self.heartbeat.withstands(message):
            return
        core.relay(message, link)
        if message.id == core.id:
            self._dropped(message.reason)
            return
        self.remove(message.id, leaves=self.heartbeat.leaves(message))

    def remove(self, id: int, *, leaves: bool = False) -> None:
        """Comply with a DROP of another node; `leaves`: it is the leader, and off IRC."""
        core = self.core
        self.heartbeat.remove(id)
        self.induction.forget_node(id)
        if id == core.leader:
            core.set_leader(None)
            if leaves:
                core.release(id, core.term + 1)
            self.transitions.on(Event.LEADER_SILENT)

    def _told_dropped(self, link: NodeLink, message: Drop) -> None:
        """A neighbour whose link has not joined says that this node was dropped."""
        if self.heartbeat.withstands(message):
            self.core.close(link, f"it takes this leader for dropped: {message.reason}")
        else:
            self._dropped(message.reason)

    def _dropped(self, reason: str) -> None:
        self.neighbours.close_all(f"dropped: {reason or 'no reason given'}")
        self.transitions.on(Event.DROPPED)
