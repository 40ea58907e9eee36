"""The server's side of a BlipMQ conversation as a table (docs/protocols/blipmq.md, "Conversation").

    AWAITING_HELLO --HELLO accepted--> AWAITING_AUTH --AUTH accepted--> READY

`TABLE` says for every state and every frame type what the server does: an `Action` to perform, or the
`Reject` to send as a NACK. The state changes only when the caller reports success (`hello_accepted`,
`authenticated`): a wrong version or a wrong key leaves it where it was, and so does everything rejected.
A session in READY may dispatch on the frame type itself, without a look-up for each frame; the table is
then what it is tested against.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

from wire.blipmq.codec import (
    ACK,
    ALREADY_AUTHENTICATED,
    AUTH,
    HELLO,
    HELLO_ALREADY_PERFORMED,
    HELLO_NOT_PERFORMED,
    NACK,
    PING,
    POLL,
    PONG,
    PUBLISH,
    SUBSCRIBE,
    UNAUTHENTICATED,
    FrameType,
    Reject,
)


class State(Enum):
    """Where a connection stands."""

    AWAITING_HELLO = auto()
    AWAITING_AUTH = auto()
    READY = auto()


class Action(Enum):
    """What a legal frame asks the server to do. Its payload may still be wrong."""

    NEGOTIATE = auto()
    """Compare the version; then `hello_accepted()` and ACK(0), or NACK 426."""
    AUTHENTICATE = auto()
    """Check the key; then `authenticated()` and ACK(0), or NACK 401."""
    PUBLISH = auto()
    """Store and hand out the message; no answer."""
    SUBSCRIBE = auto()
    """Make a subscription; ACK with its id."""
    SETTLE = auto()
    """A delivery was processed: forget it; no answer."""
    POLL = auto()
    """Deliver one message now, or say nothing."""
    PONG = auto()
    """Answer once all that was published before on this connection is durable."""
    IGNORE = auto()
    """Do nothing."""


class IllegalTransition(RuntimeError):
    """The caller reported a success that the state does not allow; the state is as it was."""


_HANDSHAKE = frozenset((HELLO, AUTH))


def _before_auth(hello: Action | Reject, auth: Action | Reject) -> dict[int, Action | Reject]:
    others: dict[int, Action | Reject] = {int(k): UNAUTHENTICATED for k in FrameType if k not in _HANDSHAKE}
    return {HELLO: hello, AUTH: auth, **others}


TABLE: Final[Mapping[State, Mapping[int, Action | Reject]]] = MappingProxyType(
    {
        State.AWAITING_HELLO: _before_auth(hello=Action.NEGOTIATE, auth=HELLO_NOT_PERFORMED),
        State.AWAITING_AUTH: _before_auth(hello=HELLO_ALREADY_PERFORMED, auth=Action.AUTHENTICATE),
        State.READY: {
            HELLO: HELLO_ALREADY_PERFORMED,
            AUTH: ALREADY_AUTHENTICATED,
            PUBLISH: Action.PUBLISH,
            SUBSCRIBE: Action.SUBSCRIBE,
            ACK: Action.SETTLE,
            NACK: Action.IGNORE,
            PING: Action.PONG,
            PONG: Action.IGNORE,
            POLL: Action.POLL,
        },
    }
)


class Conversation:
    """One connection's place in the table."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = State.AWAITING_HELLO

    def on(self, frame_type: int) -> Action | Reject:
        """Return what to do with a frame of this type; the state does not change."""
        return TABLE[self.state][frame_type]

    def hello_accepted(self) -> None:
        """The version was right: wait for AUTH. Raises IllegalTransition outside AWAITING_HELLO."""
        self._move(State.AWAITING_HELLO, State.AWAITING_AUTH)

    def authenticated(self) -> None:
        """The key was right: everything is allowed now. Raises IllegalTransition outside AWAITING_AUTH."""
        self._move(State.AWAITING_AUTH, State.READY)

    def _move(self, source: State, target: State) -> None:
        if self.state is not source:
            raise IllegalTransition(f"to {target.name} from {self.state.name}, not from {source.name}")
        self.state = target
