"""A node's links, and the handshake of each as a table (docs/protocols/hydra.md, "Links"). No I/O.

    dialled:   KNOCKING --WELCOMED or ADMITTED--> JOINED
    accepted:  SILENT --KNOCK--> KNOCKED --ADMITTED or WELCOMED--> JOINED
    any:       --CLOSED--> CLOSED

Who is a node itself lets the other side in; who is none yet, and is knocked at, knocks back. Over a link that is not
JOINED nothing is taken but what belongs to the handshake.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from hydra.protocol.codec import LineDecoder


class State(Enum):
    """Where a link's handshake stands."""

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
    """What happens to a link's handshake."""

    KNOCK = auto()
    """The other side knocks for itself."""
    ADMITTED = auto()
    """This side has sent its WELCOME."""
    WELCOMED = auto()
    """The other side's WELCOME has come."""
    CLOSED = auto()


class Action(Enum):
    """What a node does."""

    IGNORE = auto()
    CONSIDER = auto()
    """Ask all nodes, or answer at once if this one is known."""
    JOIN = auto()
    """From now on everything goes over this link too."""


TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = MappingProxyType(
    {
        State.SILENT: {
            Event.KNOCK: (Action.CONSIDER, State.KNOCKED),
            Event.CLOSED: (Action.IGNORE, State.CLOSED),
        },
        State.KNOCKED: {
            Event.KNOCK: (Action.CONSIDER, State.KNOCKED),
            Event.ADMITTED: (Action.JOIN, State.JOINED),
            Event.WELCOMED: (Action.JOIN, State.JOINED),
            Event.CLOSED: (Action.IGNORE, State.CLOSED),
        },
        State.KNOCKING: {
            Event.KNOCK: (Action.CONSIDER, State.KNOCKING),
            Event.ADMITTED: (Action.JOIN, State.JOINED),
            Event.WELCOMED: (Action.JOIN, State.JOINED),
            Event.CLOSED: (Action.IGNORE, State.CLOSED),
        },
        State.JOINED: {
            Event.KNOCK: (Action.CONSIDER, State.JOINED),
            Event.ADMITTED: (Action.JOIN, State.JOINED),
            Event.WELCOMED: (Action.IGNORE, State.JOINED),
            Event.CLOSED: (Action.IGNORE, State.CLOSED),
        },
        State.CLOSED: {},
    }
)


class Link:
    """A connection to a neighbour."""

    __slots__ = (
        "asked", "begun", "decoder", "extended", "ignored", "knock_at", "number", "opened", "origin", "peer", "state",
        "target",
    )  # fmt: skip

    def __init__(self, number: int, now: float, *, target: str | None, origin: str) -> None:
        self.number = number
        self.opened = now
        self.target = target
        """The address that was dialled; None for a link that was accepted."""
        self.origin = origin
        """Where an accepted link came from."""
        self.state = State.SILENT if target is None else State.KNOCKING
        self.peer: int | None = None
        """The neighbour's id, once it is known."""
        self.extended = False
        """Whether the neighbour knows attributes."""
        self.asked = False
        """Whether this side has knocked."""
        self.begun = False
        """Whether the other side's first line was a message; else there is no neighbour at its end."""
        self.knock_at = now
        self.ignored = 0
        """Lines that meant nothing."""
        self.decoder = LineDecoder()

    def on(self, event: Event) -> Action:
        """Something has happened: return what to do. What is not in the table leaves the state as it is."""
        action, self.state = TABLE[self.state].get(event, (Action.IGNORE, self.state))
        return action


class Links:
    """All links by their numbers, and those that messages are relayed to."""

    __slots__ = ("_links", "extended", "joined", "plain")

    def __init__(self) -> None:
        self._links: dict[int, Link] = {}
        self.joined: tuple[int, ...] = ()
        self.extended: tuple[int, ...] = ()
        """The joined links whose other side knows attributes."""
        self.plain: tuple[int, ...] = ()
        """The other joined links."""

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def __len__(self) -> int:
        return len(self._links)

    def get(self, number: int) -> Link | None:
        """The link with this number, if it is open."""
        return self._links.get(number)

    def add(self, link: Link) -> None:
        """A link was opened."""
        self._links[link.number] = link

    def remove(self, number: int) -> Link | None:
        """A link was closed."""
        link = self._links.pop(number, None)
        if link is not None:
            link.on(Event.CLOSED)
            self.sort()
        return link

    def of_peer(self, id: int) -> list[Link]:
        """The links to a neighbour."""
        return [link for link in self._links.values() if link.peer == id]

    def targets(self) -> set[str]:
        """The addresses that were dialled and are connected."""
        return {link.target for link in self._links.values() if link.target is not None}

    def sort(self) -> None:
        """A link has joined, or was found to know attributes: bring the groups up to date."""
        joined = [link for link in self._links.values() if link.state is State.JOINED]
        self.joined = tuple(link.number for link in joined)
        self.extended = tuple(link.number for link in joined if link.extended)
        self.plain = tuple(link.number for link in joined if not link.extended)
