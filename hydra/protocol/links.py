"""A node's links, and the handshake of each as a table (docs/protocols/hydra.md, "Links"). No I/O.

    dialled:   KNOCKING --WELCOMED or ADMITTED--> JOINED
    accepted:  SILENT --KNOCK--> KNOCKED --ADMITTED or WELCOMED--> JOINED
    any:       --CLOSED--> CLOSED

A node lets the other side in; a server that is no node yet answers a KNOCK with its own. Over a link that is not JOINED
only messages of the handshake are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import Final

from hydra.protocol.codec import LineDecoder


class State(Enum):
    """The state of a link's handshake."""

    SILENT = auto()
    """Accepted; the other side has not knocked."""
    KNOCKED = auto()
    """The other side has knocked and waits."""
    KNOCKING = auto()
    """Dialled; this side knocks until it is welcomed."""
    JOINED = auto()
    """Both sides are nodes."""
    CLOSED = auto()


class Event(Enum):
    """An event of a link's handshake."""

    KNOCK = auto()
    """The other side knocks for itself."""
    ADMITTED = auto()
    """This side has sent its WELCOME."""
    WELCOMED = auto()
    """The other side's WELCOME has come."""
    CLOSED = auto()


class Action(Enum):
    """A node's action."""

    IGNORE = auto()
    CONSIDER = auto()
    """Ask all nodes, or answer a known one at once."""
    JOIN = auto()
    """Use the link for all messages."""


#: What holds once either side has knocked, unless a state's own rows say something else.
_KNOCKED: Final[Mapping[Event, tuple[Action, State]]] = {
    **dict.fromkeys((Event.ADMITTED, Event.WELCOMED), (Action.JOIN, State.JOINED)),
    Event.CLOSED: (Action.IGNORE, State.CLOSED),
}

TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = {
    State.SILENT: {
        Event.KNOCK: (Action.CONSIDER, State.KNOCKED),
        Event.CLOSED: (Action.IGNORE, State.CLOSED),
    },
    State.KNOCKED: {**_KNOCKED, Event.KNOCK: (Action.CONSIDER, State.KNOCKED)},
    State.KNOCKING: {**_KNOCKED, Event.KNOCK: (Action.CONSIDER, State.KNOCKING)},
    State.JOINED: {
        **_KNOCKED,
        Event.KNOCK: (Action.CONSIDER, State.JOINED),
        Event.WELCOMED: (Action.IGNORE, State.JOINED),
    },
    State.CLOSED: {},
}


class NodeLink:
    """A connection to a neighbour."""

    def __init__(self, number: int, now: float, *, target: str | None, origin: str) -> None:
        self.number = number
        self.opened = now
        self.target = target
        """The dialled address; None for an accepted link."""
        self.origin = origin
        """The remote address of an accepted link."""
        self.state = State.SILENT if target is None else State.KNOCKING
        self.peer: int | None = None
        """The neighbour's id, once it is known."""
        self.extended = False
        """Whether the neighbour knows attributes."""
        self.asked = False
        """Whether this side has knocked."""
        self.begun = False
        """Whether the other side's first line was a message."""
        self.knock_at = now
        self.ignored = 0
        """Meaningless lines so far."""
        self.decoder = LineDecoder()

    def begin(self) -> None:
        """The other side has sent a message."""
        self.begun = True

    def meet(self, peer: int) -> None:
        """The neighbour has this id."""
        self.peer = peer

    def set_extended(self, extended: bool) -> None:
        """Whether the neighbour knows attributes has been learnt."""
        self.extended = extended

    def knocked(self, again_at: float) -> None:
        """This side has knocked, and knocks again at that time."""
        self.asked = True
        self.knock_at = again_at

    def count_ignored(self) -> int:
        """Count a meaningless line; returns their number."""
        self.ignored += 1
        return self.ignored

    def on(self, event: Event) -> Action:
        """Return the action for an event, and change the state. An event without a row in the table changes nothing."""
        action, self.state = TABLE[self.state].get(event, (Action.IGNORE, self.state))
        return action


class Links:
    """All links by their numbers, and the groups that messages are relayed to."""

    def __init__(self) -> None:
        self._links: dict[int, NodeLink] = {}

    @property
    def joined(self) -> tuple[int, ...]:
        """The links over which both sides are nodes."""
        return tuple(link.number for link in self._links.values() if link.state is State.JOINED)

    @property
    def extended(self) -> tuple[int, ...]:
        """The joined links to neighbours that know attributes."""
        return tuple(link.number for link in self._links.values() if link.state is State.JOINED and link.extended)

    @property
    def plain(self) -> tuple[int, ...]:
        """The other joined links."""
        return tuple(link.number for link in self._links.values() if link.state is State.JOINED and not link.extended)

    def __iter__(self) -> Iterator[NodeLink]:
        return iter(list(self._links.values()))

    def __len__(self) -> int:
        return len(self._links)

    def get(self, number: int) -> NodeLink | None:
        """The open link with this number."""
        return self._links.get(number)

    def add(self, link: NodeLink) -> None:
        """Add an open link."""
        self._links[link.number] = link

    def remove(self, number: int) -> NodeLink | None:
        """Remove a closed link."""
        link = self._links.pop(number, None)
        if link is not None:
            link.on(Event.CLOSED)
        return link

    def of_peer(self, id: int) -> list[NodeLink]:
        """The links to a neighbour."""
        return [link for link in self._links.values() if link.peer == id]

    def targets(self) -> set[str]:
        """The dialled addresses that are connected."""
        return {link.target for link in self._links.values() if link.target is not None}
