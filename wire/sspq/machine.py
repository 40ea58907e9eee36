"""The slot of an SSPQ connection as a table (docs/protocols/sspq.md, "The slot").

A connection has room for one message, asked for by RECEIVE or DEAD_RECEIVE:

    IDLE --RECEIVE--> WAITING --DELIVERED--> HOLDING --CONFIRM--> IDLE

and the same with the dead letters. `TABLE` says for every state and every event what the server does and
where the slot is then; other events are ignored and change nothing.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from wire.sspq.codec import CONFIRM, DEAD_RECEIVE, MAX_RETRIES, RECEIVE


class State(Enum):
    """The states of a connection's slot."""

    IDLE = auto()
    WAITING = auto()
    WAITING_DEAD = auto()
    HOLDING = auto()
    HOLDING_DEAD = auto()
    CLOSED = auto()


class Event(Enum):
    """The events of a slot: three packets of the client, two decisions of the server, and the end."""

    RECEIVE = auto()
    DEAD_RECEIVE = auto()
    CONFIRM = auto()
    #: A message was found for the waiting connection.
    DELIVERED = auto()
    #: There will be none: paused with refusal, draining, or no dead-letter queue.
    REFUSED = auto()
    #: End of stream, an error, or a packet that ends the connection.
    DISCONNECT = auto()


class Action(Enum):
    """The server's actions."""

    #: Do nothing.
    IGNORE = auto()
    #: Queue up for a message, behind the connections that wait already.
    WAIT = auto()
    #: Queue up for a dead letter.
    WAIT_DEAD = auto()
    #: Send the message as SEND with its remaining retries (`remaining`).
    DELIVER = auto()
    #: Send the dead letter as SEND with retry counter 0.
    DELIVER_DEAD = auto()
    #: Stop waiting and send NO_RECEIVE.
    REFUSE = auto()
    #: Remove the message for good.
    SETTLE = auto()
    #: Remove the dead letter for good.
    SETTLE_DEAD = auto()
    #: Spend one retry: to the tail of the queue, or to the dead letters if none was left.
    RETURN = auto()
    #: Put the dead letter back unchanged.
    RETURN_DEAD = auto()
    #: Stop waiting.
    WITHDRAW = auto()
    #: The message was never sent: back to where it was, without spending a retry.
    PUT_BACK = auto()


#: The packets that concern the slot. SEND does not; NO_RECEIVE from a client means nothing.
PACKET_EVENTS: Final[Mapping[int, Event]] = {
    RECEIVE: Event.RECEIVE,
    DEAD_RECEIVE: Event.DEAD_RECEIVE,
    CONFIRM: Event.CONFIRM,
}

TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = {
    State.IDLE: {
        Event.RECEIVE: (Action.WAIT, State.WAITING),
        Event.DEAD_RECEIVE: (Action.WAIT_DEAD, State.WAITING_DEAD),
        Event.DELIVERED: (Action.PUT_BACK, State.IDLE),
        Event.DISCONNECT: (Action.IGNORE, State.CLOSED),
    },
    State.WAITING: {
        Event.DELIVERED: (Action.DELIVER, State.HOLDING),
        Event.REFUSED: (Action.REFUSE, State.IDLE),
        Event.DISCONNECT: (Action.WITHDRAW, State.CLOSED),
    },
    State.WAITING_DEAD: {
        Event.DELIVERED: (Action.DELIVER_DEAD, State.HOLDING_DEAD),
        Event.REFUSED: (Action.REFUSE, State.IDLE),
        Event.DISCONNECT: (Action.WITHDRAW, State.CLOSED),
    },
    State.HOLDING: {
        Event.CONFIRM: (Action.SETTLE, State.IDLE),
        Event.DELIVERED: (Action.PUT_BACK, State.HOLDING),
        Event.DISCONNECT: (Action.RETURN, State.CLOSED),
    },
    State.HOLDING_DEAD: {
        Event.CONFIRM: (Action.SETTLE_DEAD, State.IDLE),
        Event.DELIVERED: (Action.PUT_BACK, State.HOLDING_DEAD),
        Event.DISCONNECT: (Action.RETURN_DEAD, State.CLOSED),
    },
    State.CLOSED: {Event.DELIVERED: (Action.PUT_BACK, State.CLOSED)},
}


class Slot:
    """One connection's place in the table."""

    def __init__(self) -> None:
        self.state = State.IDLE

    def on(self, event: Event) -> Action:
        """Move to the next state and return what to do now."""
        action, self.state = TABLE[self.state].get(event, (Action.IGNORE, self.state))
        return action


def deliveries_allowed(retries: int) -> int | None:
    """Return how often a message sent with this retry counter may be delivered; None is without limit."""
    return None if retries == MAX_RETRIES else retries + 1


def remaining(max_attempts: int | None, attempts: int) -> int:
    """Return the retry counter of a delivery: `attempts` counts deliveries so far, this one included.

    A limit above what the byte can say (another protocol's message) shows as 254: 255 would mean none.
    """
    if max_attempts is None:
        return MAX_RETRIES
    return min(max(max_attempts - attempts, 0), MAX_RETRIES - 1)
