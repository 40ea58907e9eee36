"""The life of a peerbus connection on the broker's side as a table (docs/protocols/peerbus.md, "The connection").

    AWAITING_REGISTER --REGISTER--> REGISTERING --REGISTERED--> ESTABLISHED
            |                            |                           |
            +---------- UNFIT, NO_FRAME, REFUSED, DISCONNECT --------+--> CLOSED

`TABLE` says for every state and every event what the broker does and where the connection is then; what is not in it
does nothing and changes nothing. `Conversation` is one connection's place in the table.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from peers.codec.envelope import Envelope
from peers.codec.frames import Ack, Frame, Ignored, PeersRequest, Register


class State(Enum):
    """Where a connection stands."""

    AWAITING_REGISTER = auto()
    REGISTERING = auto()
    """The register is fit; the token, the name and the store are being asked."""
    ESTABLISHED = auto()
    CLOSED = auto()


class Event(Enum):
    """What happens to a connection."""

    REGISTER = auto()
    """A register, which is fit if it is the first frame (`codec.handshake`)."""
    UNFIT = auto()
    """A first frame that `codec.handshake` answers with a Rejection."""
    NO_FRAME = auto()
    """The time for the first frame is over."""
    REGISTERED = auto()
    """The name is bound to this connection, durably."""
    REFUSED = auto()
    """The token, the name or the store say no."""
    ENVELOPE = auto()
    ACK = auto()
    PEERS = auto()
    IGNORED = auto()
    """Anything that is none of these: binary messages, what is no JSON, a deliver."""
    DISCONNECT = auto()
    """The connection has ended, or the broker ends it for a reason of its own."""


class Action(Enum):
    """What the broker does."""

    NOTHING = auto()
    BIND = auto()
    """Ask whether the token may have the name, and bind it."""
    REJECT = auto()
    """Close with the Rejection's code and reason."""
    HOLD = auto()
    """Keep the frame: it is looked at, in order, when the connection is established."""
    WELCOME = auto()
    """Send `peers`, then everything pending, then look at what was held."""
    ROUTE = auto()
    """Store the envelope for its recipients."""
    ACKNOWLEDGE = auto()
    """Settle the delivery with this key, if it is this peer's."""
    LIST = auto()
    """Answer `peers` when everything before it is committed."""
    COUNT = auto()
    """Only count it."""


_REJECTED = (Action.REJECT, State.CLOSED)
_HELD = (Action.HOLD, State.REGISTERING)
_GONE = (Action.NOTHING, State.CLOSED)

TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = MappingProxyType(
    {
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
)

EVENTS: Final[Mapping[type[Frame], Event]] = MappingProxyType(
    {
        Register: Event.REGISTER,
        Ack: Event.ACK,
        PeersRequest: Event.PEERS,
        Envelope: Event.ENVELOPE,
        Ignored: Event.IGNORED,
    }
)
"""The event that each kind of frame is."""


class Conversation:
    """One connection's place in the table."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.AWAITING_REGISTER

    def on(self, event: Event) -> Action:
        """Something has happened: return what to do. What is not in the table leaves the state as it is."""
        action, self.state = TABLE[self.state].get(event, (Action.NOTHING, self.state))
        return action

    def on_frame(self, frame: Frame) -> Action:
        """`codec.parse_frame` has returned this, or `codec.handshake` a Register: return what to do."""
        return self.on(EVENTS[type(frame)])
