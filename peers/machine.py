"""The life of a peerbus connection on the broker's side as a table (docs/protocols/peerbus.md, "The connection").

    AWAITING_REGISTER --REGISTER--> REGISTERING --REGISTERED--> ESTABLISHED
            |                            |                           |
            +---------- UNFIT, NO_FRAME, REFUSED, DISCONNECT --------+--> CLOSED

`TABLE` gives the broker's action and the next state for each state and event; a pair that is not in it does nothing
and changes nothing. `Conversation` is one connection's place in the table.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from peers.codec.envelope import Envelope
from peers.codec.frames import Ack, Frame, Ignored, PeersRequest, Register


class State(Enum):
    """The state of a connection."""

    AWAITING_REGISTER = auto()
    #: The register is fit; the token, the name and the store are being asked.
    REGISTERING = auto()
    ESTABLISHED = auto()
    CLOSED = auto()


class Event(Enum):
    """An event of a connection."""

    #: A register, which is fit if it is the first frame (`codec.handshake`).
    REGISTER = auto()
    #: A first frame that `codec.handshake` answers with a Rejection.
    UNFIT = auto()
    #: The time for the first frame is over.
    NO_FRAME = auto()
    #: The name is bound to this connection, durably.
    REGISTERED = auto()
    #: The token, the name or the store say no.
    REFUSED = auto()
    ENVELOPE = auto()
    ACK = auto()
    PEERS = auto()
    #: Anything else: binary messages, text that is no JSON, a deliver.
    IGNORED = auto()
    #: The connection has ended, or the broker ends it for a reason of its own.
    DISCONNECT = auto()


class Action(Enum):
    """An action of the broker."""

    NOTHING = auto()
    #: Ask whether the token may have the name, and bind it.
    BIND = auto()
    #: Close with the Rejection's code and reason.
    REJECT = auto()
    #: Keep the frame: it is handled, in order, when the connection is established.
    HOLD = auto()
    #: Send `peers`, then everything pending, then handle the frames that were held.
    WELCOME = auto()
    #: Store the envelope for its recipients.
    ROUTE = auto()
    #: Settle the delivery with this key, if it is this peer's.
    ACKNOWLEDGE = auto()
    #: Answer `peers` when everything before it is committed.
    LIST = auto()
    #: Only count it.
    COUNT = auto()


_REJECTED = (Action.REJECT, State.CLOSED)
_HELD = (Action.HOLD, State.REGISTERING)
_GONE = (Action.NOTHING, State.CLOSED)

TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = {
    State.AWAITING_REGISTER: {
        Event.REGISTER: (Action.BIND, State.REGISTERING),
        Event.UNFIT: _REJECTED,
        Event.NO_FRAME: _REJECTED,
        Event.DISCONNECT: _GONE,
    },
    State.REGISTERING: {
        Event.REGISTERED: (Action.WELCOME, State.ESTABLISHED),
        Event.REFUSED: _REJECTED,
        Event.REGISTER: (Action.COUNT, State.REGISTERING),
        Event.ENVELOPE: _HELD,
        Event.ACK: _HELD,
        Event.PEERS: _HELD,
        Event.IGNORED: (Action.COUNT, State.REGISTERING),
        Event.DISCONNECT: _GONE,
    },
    State.ESTABLISHED: {
        Event.REGISTER: (Action.COUNT, State.ESTABLISHED),
        Event.ENVELOPE: (Action.ROUTE, State.ESTABLISHED),
        Event.ACK: (Action.ACKNOWLEDGE, State.ESTABLISHED),
        Event.PEERS: (Action.LIST, State.ESTABLISHED),
        Event.IGNORED: (Action.COUNT, State.ESTABLISHED),
        Event.DISCONNECT: _GONE,
    },
    State.CLOSED: {},
}

#: The event that each kind of frame is.
EVENTS: Final[Mapping[type[Frame], Event]] = {
    Register: Event.REGISTER,
    Ack: Event.ACK,
    PeersRequest: Event.PEERS,
    Envelope: Event.ENVELOPE,
    Ignored: Event.IGNORED,
}


#: The action for each kind of frame of an established connection, which none of them ends.
SERVED: Final[Mapping[type[Frame], Action]] = {
    kind: TABLE[State.ESTABLISHED][event][0] for kind, event in EVENTS.items()
}


class Conversation:
    """One connection's place in the table."""

    def __init__(self) -> None:
        self.state = State.AWAITING_REGISTER

    def on(self, event: Event) -> Action:
        """Take an event and return the action. A pair that is not in the table leaves the state as it is."""
        action, self.state = TABLE[self.state].get(event, (Action.NOTHING, self.state))
        return action

    def on_frame(self, frame: Frame) -> Action:
        """Take a frame of `codec.parse_frame`, or a Register of `codec.handshake`, and return the action."""
        return self.on(EVENTS[type(frame)])
