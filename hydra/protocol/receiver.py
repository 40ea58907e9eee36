"""Hands each message to the part that knows its rules (docs/protocols/hydra.md, "Messages"). No I/O.

Over a link that has not joined, only the messages of its handshake are taken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from hydra.protocol import messages
from hydra.protocol.codec import bare
from hydra.protocol.links import NodeLink, State
from hydra.protocol.messages import Drop, Knock, Message, Ping
from hydra.protocol.neighbours import Neighbours
from hydra.protocol.roles import Event
from hydra.protocol.transitions import Transitions


@dataclass(frozen=True, eq=False)
class Receiver:
    """A node's rules for received messages."""

    neighbours: Neighbours
    transitions: Transitions
    """The parts of the node, and the changes of its role."""

    def take(self, link: NodeLink, message: Message) -> None:
        """Handle a message of an open link."""
        if link.state is not State.JOINED:
            self._take_handshake(link, message)
            return
        if not link.extended:
            message = self._without_attributes(link, message)
        event = _RULES[type(message)](self)(message, link)
        self.transitions.on(event, message)
        if event is Event.LEADER_HEARD and isinstance(message, Ping):
            self.transitions.bridge.follow(message.next, link)

    def _without_attributes(self, link: NodeLink, message: Message) -> Message:
        """Take attributes as a sign that the neighbour knows them, if this node has knocked; else remove them."""
        plain = bare(message)
        if plain == message or not link.asked:
            return plain
        link.set_extended(True)
        return message

    def _take_handshake(self, link: NodeLink, message: Message) -> None:
        if isinstance(message, Knock):
            self.transitions.induction.on_own_knock(message, link)
        elif not link.asked:
            self.neighbours.count_ignored(link)
        elif isinstance(message, Drop):
            if message.id == self.transitions.core.id:
                self._told_dropped(link, message)
        elif isinstance(message, messages.Meet | messages.Welcome | messages.Hello):
            if self.transitions.induction.on_answer(message, link):
                self.transitions.on(Event.INDUCTED)
        else:
            self.neighbours.count_ignored(link)

    def on_knock(self, message: Knock, link: NodeLink) -> None:
        """A neighbour knocks for itself, or the mediator for a server."""
        if message.ind == link.peer:
            self.transitions.induction.on_own_knock(message, link)
        else:
            self.transitions.induction.on_knock(message, link)

    # Dropping of nodes.

    def on_drop(self, message: Drop, link: NodeLink) -> None:
        """A node is dropped: this one, or another."""
        core = self.transitions.core
        if not core.is_new(message) and message.id not in core.members and message.id != core.id:
            return
        if self.transitions.heartbeat.withstands(message):
            return
        core.relay(message, link)
        if message.id == core.id:
            self._dropped(message.reason)
            return
        self.remove(message.id, leaves=self.transitions.heartbeat.leaves(message))

    def remove(self, id: int, *, leaves: bool = False) -> None:
        """Comply with a DROP of another node; `leaves`: it is the leader, and off IRC."""
        core = self.transitions.core
        self.transitions.heartbeat.remove(id)
        self.transitions.induction.forget_node(id)
        if id == core.leader:
            core.set_leader(None)
            if leaves:
                core.release(id, core.term + 1)
            self.transitions.on(Event.LEADER_SILENT)

    def _told_dropped(self, link: NodeLink, message: Drop) -> None:
        """A neighbour whose link has not joined says that this node was dropped."""
        if self.transitions.heartbeat.withstands(message):
            self.transitions.core.close(link, f"it takes this leader for dropped: {message.reason}")
        else:
            self._dropped(message.reason)

    def _dropped(self, reason: str) -> None:
        self.neighbours.close_all(f"dropped: {reason or 'no reason given'}")
        self.transitions.on(Event.DROPPED)


#: Handles a message, and returns the event that it is for the table of roles, if it is one.
_Rule = Callable[[Any, NodeLink], Event | None]

_RULES: Final[dict[type[Message], Callable[[Receiver], _Rule]]] = {
    Ping: lambda receiver: receiver.transitions.heartbeat.on_ping,
    messages.Pong: lambda receiver: receiver.transitions.heartbeat.on_pong,
    messages.Recv: lambda receiver: receiver.transitions.bridge.on_recv,
    messages.Send: lambda receiver: receiver.transitions.bridge.on_send,
    messages.Ask: lambda receiver: receiver.transitions.bridge.on_ask,
    Drop: lambda receiver: receiver.on_drop,
    messages.Nominate: lambda receiver: receiver.transitions.election.on_nominate,
    messages.Pledge: lambda receiver: receiver.transitions.election.on_pledge,
    messages.Call: lambda receiver: receiver.transitions.election.on_call,
    messages.Elect: lambda receiver: receiver.transitions.election.on_elect,
    Knock: lambda receiver: receiver.on_knock,
    messages.Meet: lambda receiver: receiver.transitions.induction.on_meet,
    messages.Welcome: lambda receiver: receiver.transitions.induction.on_welcome,
    messages.Hello: lambda receiver: receiver.transitions.induction.on_hello,
}
