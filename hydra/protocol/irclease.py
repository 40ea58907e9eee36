"""The leader's connection to IRC as a table (docs/protocols/hydra.md, "The bridge"). No I/O.

    OFF --LEASED--> CONNECTING --CONNECTED--> ON
     ^                |   ^                    |
     +---- ENDED -----+   +--- LOST, LEASED ---+

`TABLE` gives the action and the next state for a state and an event. An event without a row does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class State(Enum):
    """The state of the connection."""

    OFF = auto()
    CONNECTING = auto()
    ON = auto()


class Event(Enum):
    """An event of the connection."""

    LEASED = auto()
    """This node leads with its lease, and the wait between two attempts is over."""
    CONNECTED = auto()
    LOST = auto()
    """The connection was lost, or could not be made."""
    ENDED = auto()
    """This node leads no longer."""


class Action(Enum):
    """The node's action."""

    NOTHING = auto()
    CONNECT = auto()
    FLUSH = auto()
    """Send the lines that wait for the connection."""
    WAIT = auto()
    """Try again later."""
    LEAVE = auto()
    """Close the connection, or stop connecting, at once."""


TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = {
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


class IrcLease:
    """One node's place in the table."""

    def __init__(self) -> None:
        self.state = State.OFF

    def on(self, event: Event) -> Action:
        """Return the action for an event, and change the state."""
        action, self.state = TABLE[self.state].get(event, (Action.NOTHING, self.state))
        return action
