"""The leader's connection to IRC as a table (docs/protocols/hydra.md, "The bridge"). No I/O.

    OFF --LEASED--> CONNECTING --CONNECTED--> ON
     ^                |   ^                    |
     +---- ENDED -----+   +--- LOST, LEASED ---+

`TABLE` says for every state and every event what the node does and where the connection is then; what is not in it does
nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final


class State(Enum):
    """Where the connection stands."""

    OFF = auto()
    CONNECTING = auto()
    ON = auto()


class Event(Enum):
    """What happens to it."""

    LEASED = auto()
    """This node leads and has its lease, and any wait between two attempts is over."""
    CONNECTED = auto()
    LOST = auto()
    """The connection was lost, or could not be made."""
    ENDED = auto()
    """This node leads no longer."""


class Action(Enum):
    """What the node does."""

    NOTHING = auto()
    CONNECT = auto()
    FLUSH = auto()
    """Say what has waited for the connection."""
    WAIT = auto()
    """Try again in a while."""
    LEAVE = auto()
    """Close the connection, or stop connecting, at once."""


TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = MappingProxyType(
    {
        State.OFF: {
            Event.LEASED: (Action.CONNECT, State.CONNECTING),
        },
        State.CONNECTING: {
            Event.CONNECTED: (Action.FLUSH, State.ON),
            Event.LOST: (Action.WAIT, State.OFF),
            Event.ENDED: (Action.LEAVE, State.OFF),
        },
        State.ON: {
            Event.LOST: (Action.WAIT, State.OFF),
            Event.ENDED: (Action.LEAVE, State.OFF),
        },
    }
)


class IrcLease:
    """One node's connection to IRC in the table."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.OFF

    def on(self, event: Event) -> Action:
        """Something has happened: return what to do. What is not in the table leaves the state as it is."""
        action, self.state = TABLE[self.state].get(event, (Action.NOTHING, self.state))
        return action
