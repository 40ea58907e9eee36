"""A node's role in the network as a table (docs/protocols/hydra.md, "Roles"). No I/O.

    OUTSIDE --INDUCTED--> WAITING --TIME_IS_UP--> NOMINEE --PLEDGES_IN--> CALLING --VOTES_IN--> LEADING
                             |  ^                                                                  |
                LEADER_HEARD |  | LEADER_SILENT, NOMINATION                  LEASE_OVER, NOMINATION |
                             v  |                                                                  v
                          FOLLOWING                                                             WAITING

`TABLE` gives the actions, in order, and the next role for a role and an event. An event without a row does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class Role(Enum):
    """A node's role."""

    OUTSIDE = auto()
    """Not in the network: it knocks."""
    WAITING = auto()
    """It knows no leader; it may have pledged to a nominee."""
    FOLLOWING = auto()
    """It has a leader."""
    NOMINEE = auto()
    """It has nominated itself and waits for pledges."""
    CALLING = auto()
    """It has the pledges of a majority and waits for the votes."""
    LEADING = auto()
    """It was elected, and its lease has not ended."""


class Event(Enum):
    """An event of a node."""

    INDUCTED = auto()
    """It was welcomed, or is known as a voter."""
    LEADER_HEARD = auto()
    """A heartbeat of this term's leader, or of a later term's."""
    LEADER_SILENT = auto()
    """No heartbeat for MAX_PING, or the leader was dropped."""
    NOMINATION = auto()
    """The first nomination of a term that has no leader, or of a later term."""
    TIME_IS_UP = auto()
    """The election's time is over, and this node may stand."""
    PLEDGES_IN = auto()
    VOTES_IN = auto()
    LEASE_OVER = auto()
    """No majority has answered the leader's heartbeats for a lease: the others may elect another leader."""
    RIVAL = auto()
    """Another node's heartbeat for the term that this one leads."""
    DROPPED = auto()
    """It was removed from the network."""


class Action(Enum):
    """A node's action."""

    AWAIT = auto()
    """Give the election some time, then stand."""
    FOLLOW = auto()
    """Answer the heartbeat, and promise its sender to give no pledge for MAX_PING."""
    CONSIDER = auto()
    """Pledge to the nominee once no promise forbids it, if its electorate is up to date."""
    STAND = auto()
    """Begin a new term: nominate this node and pledge to it."""
    STAND_AGAIN = auto()
    """The same, but in the present term if no other node has taken part in it."""
    CALL = auto()
    """Call for the votes, and vote."""
    LEAD = auto()
    """Begin the term with a heartbeat."""
    RESIGN = auto()
    """Leave IRC, at once."""
    REJOIN = auto()
    """Draw a new id, close all links, and knock again."""


_Row = Mapping[Event, tuple[tuple[Action, ...], Role]]

_FOLLOW = ((Action.FOLLOW,), Role.FOLLOWING)
_AWAIT = ((Action.AWAIT,), Role.WAITING)
_CONSIDER = ((Action.CONSIDER,), Role.WAITING)
_STAND = ((Action.STAND,), Role.NOMINEE)
_LEAD = ((Action.LEAD,), Role.LEADING)
_REJOIN = ((Action.REJOIN,), Role.OUTSIDE)

#: A node of the network that does not lead.
_MEMBER: Final[_Row] = {Event.LEADER_HEARD: _FOLLOW, Event.NOMINATION: _CONSIDER, Event.DROPPED: _REJOIN}

TABLE: Final[Mapping[Role, _Row]] = {
    Role.OUTSIDE: {
        Event.INDUCTED: _AWAIT,
        Event.DROPPED: _REJOIN,
    },
    Role.WAITING: {**_MEMBER, Event.TIME_IS_UP: _STAND},
    Role.FOLLOWING: {**_MEMBER, Event.LEADER_SILENT: _AWAIT},
    Role.NOMINEE: {
        **_MEMBER,
        Event.TIME_IS_UP: ((Action.STAND_AGAIN,), Role.NOMINEE),
        Event.PLEDGES_IN: ((Action.CALL,), Role.CALLING),
        Event.VOTES_IN: _LEAD,
    },
    Role.CALLING: {**_MEMBER, Event.TIME_IS_UP: _STAND, Event.VOTES_IN: _LEAD},
    Role.LEADING: {
        Event.LEADER_HEARD: ((Action.RESIGN, Action.FOLLOW), Role.FOLLOWING),
        Event.NOMINATION: ((Action.RESIGN, Action.CONSIDER), Role.WAITING),
        Event.LEASE_OVER: ((Action.RESIGN, Action.AWAIT), Role.WAITING),
        Event.RIVAL: ((Action.RESIGN, Action.STAND), Role.NOMINEE),
        Event.DROPPED: ((Action.RESIGN, Action.REJOIN), Role.OUTSIDE),
    },
}


class Candidacy:
    """One node's place in the table."""

    def __init__(self) -> None:
        self.role = Role.OUTSIDE

    def on(self, event: Event) -> tuple[Action, ...]:
        """Return the actions for an event, in order, and change the role."""
        actions, self.role = TABLE[self.role].get(event, ((), self.role))
        return actions
