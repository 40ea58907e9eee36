"""The path of a backlog, from messages in the store to a node that has them all, as a table (docs/architecture.md).

    BEHIND --CLAIM_BEGUN--> CLAIMING --CLAIMED_ALL--> CAUGHT_UP --STORING_BEGUN--> STORING
       ^                       |   ^                   |   ^                          |
       +------CLAIMED_SOME-----+   |                   |   +----------STORED----------+
       +---------------------------|------ARRIVED------+
                                   |
    NEARLY_DONE ----CLAIM_BEGUN----+

Two ways bring messages to consumers. A claim takes ready ones from the store. In the fast gear new ones are stored as
leased to this node, and delivered from memory: only from CAUGHT_UP, when nothing older can be in the store. No claim
begins while messages are being stored so, and nothing is stored so while a claim is under way: the order would be lost.
What arrives in the store meanwhile is remembered by the state (CLAIMING_BEHIND, STORING_BEHIND), so that a claim or a
transaction that began before it proves nothing about it.

`TABLE` gives the action and the next state for a state and an event; an event without a row is a fault of the engine.
Not in the table is what follows from numbers: whether a claim may begin while messages go back to the store
(`PrefetchedQueue.in_transit`), and whether a prefetched message waits for one of the store that belongs before it
(`PrefetchedQueue.overtaken`: it is behind, and `Backlog.first` is lower). A `Backlog` has a place in the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final


class State(Enum):
    """A node's knowledge of one queue's ready messages in the store, and the statements under way."""

    __hash__ = object.__hash__  # an enumeration's own hash is a Python function, and each commit looks up the table

    BEHIND = auto()
    """The store may have some; a claim is made when consumers want messages."""
    CLAIMING = auto()
    """A claim is under way."""
    CLAIMING_BEHIND = auto()
    """A claim is under way, and some arrived since it began."""
    NEARLY_DONE = auto()
    """A claim took all but those that arrived meanwhile: while publishes keep arriving, the publish writer makes the
    next claim itself between two transactions, where no new one can slip in."""
    CAUGHT_UP = auto()
    """The store has none: the fast gear."""
    STORING = auto()
    """A transaction is under way that may lease new messages to this node."""
    STORING_BEHIND = auto()
    """The same, and messages arrived in the store since it began."""


class Event(Enum):
    """An event of a backlog."""

    __hash__ = object.__hash__

    ARRIVED = auto()
    """Messages became ready in the store."""
    RETURNED = auto()
    """Messages of this node are on their way back to the store, or its leases are lost."""
    CLAIM_BEGUN = auto()
    CLAIMED_SOME = auto()
    """The claim came back, and more was ready."""
    CLAIMED_ALL = auto()
    """The claim came back: nothing more was ready, or no more can be had now."""
    CLAIM_FAILED = auto()
    EXHAUSTED = auto()
    """The messages left in the store cannot be claimed."""
    STORING_BEGUN = auto()
    STORED = auto()
    """The transaction has ended: what it leased is about to be in memory."""
    WRITER_IDLE = auto()
    """The publish writer has nothing to write, and makes no claim."""


class Action(Enum):
    """The action of an event."""

    NOTHING = auto()
    ASK = auto()
    """Ask the fetcher for a claim, if consumers wait."""


class IllegalTransition(RuntimeError):
    """An event that the state does not allow; the state is as it was."""


_Row = Mapping[Event, tuple[Action, State]]


def _at_rest(behind: State) -> dict[Event, tuple[Action, State]]:
    """The common rows of idle states; `behind`: the state after an arrival."""
    return {
        Event.ARRIVED: (Action.ASK, behind),
        Event.RETURNED: (Action.NOTHING, behind),
        Event.CLAIM_BEGUN: (Action.NOTHING, State.CLAIMING),
        Event.EXHAUSTED: (Action.NOTHING, State.CAUGHT_UP),
    }


def _under_way(state: State, behind: State) -> dict[Event, tuple[Action, State]]:
    """The common rows of states in which a claim or a transaction is under way."""
    return {
        Event.ARRIVED: (Action.NOTHING, behind),
        Event.RETURNED: (Action.NOTHING, behind),
        Event.EXHAUSTED: (Action.NOTHING, state),
    }


TABLE: Final[Mapping[State, _Row]] = MappingProxyType(
    {
        State.BEHIND: _at_rest(behind=State.BEHIND),
        State.CLAIMING: {
            **_under_way(State.CLAIMING, behind=State.CLAIMING_BEHIND),
            Event.CLAIMED_SOME: (Action.NOTHING, State.BEHIND),
            Event.CLAIMED_ALL: (Action.NOTHING, State.CAUGHT_UP),
            Event.CLAIM_FAILED: (Action.NOTHING, State.BEHIND),
        },
        State.CLAIMING_BEHIND: {
            **_under_way(State.CLAIMING_BEHIND, behind=State.CLAIMING_BEHIND),
            Event.CLAIMED_SOME: (Action.NOTHING, State.BEHIND),
            Event.CLAIMED_ALL: (Action.NOTHING, State.NEARLY_DONE),
            Event.CLAIM_FAILED: (Action.NOTHING, State.BEHIND),
        },
        State.NEARLY_DONE: {**_at_rest(behind=State.NEARLY_DONE), Event.WRITER_IDLE: (Action.NOTHING, State.BEHIND)},
        State.CAUGHT_UP: {**_at_rest(behind=State.BEHIND), Event.STORING_BEGUN: (Action.NOTHING, State.STORING)},
        State.STORING: {
            **_under_way(State.STORING, behind=State.STORING_BEHIND),
            Event.STORED: (Action.NOTHING, State.CAUGHT_UP),
        },
        State.STORING_BEHIND: {
            **_under_way(State.STORING_BEHIND, behind=State.STORING_BEHIND),
            Event.STORED: (Action.ASK, State.BEHIND),
        },
    }
)

ASK: Final = Action.ASK
