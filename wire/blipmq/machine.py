"""The server's side of a BlipMQ conversation as a table (docs/protocols/blipmq.md, "Conversation").

    AWAITING_HELLO --HELLO accepted--> AWAITING_AUTH --AUTH accepted--> READY

`TABLE` says for every state and every frame type what the server does: an `Action` to perform, or the
`Reject` to send as a NACK. The state changes only when the session reports a `Success`, by `PROGRESS`: a wrong
version or a wrong key leaves it where it was, and so does everything rejected. A session in READY may dispatch on the
frame type itself, without a look-up for each frame; its tests compare it with the table.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from wire.blipmq import codec
from wire.blipmq.codec import FrameType, Reject


class State(Enum):
    """The states of a connection."""

    AWAITING_HELLO = auto()
    AWAITING_AUTH = auto()
    READY = auto()


class Action(Enum):
    """The server's action for a legal frame. The frame's payload may still be wrong."""

    #: Compare the version; then HELLO_ACCEPTED and ACK(0), or NACK 426.
    NEGOTIATE = auto()
    #: Check the key; then AUTHENTICATED and ACK(0), or NACK 401.
    AUTHENTICATE = auto()
    #: Store and hand out the message; no answer.
    PUBLISH = auto()
    #: Make a subscription; ACK with its id.
    SUBSCRIBE = auto()
    #: A delivery was processed: forget it; no answer.
    SETTLE = auto()
    #: Deliver one message now, or say nothing.
    POLL = auto()
    #: Answer once all that was published before on this connection is durable.
    PONG = auto()
    #: Do nothing.
    IGNORE = auto()


class Success(Enum):
    """The successes of actions, as the session reports them."""

    HELLO_ACCEPTED = auto()
    AUTHENTICATED = auto()


class IllegalTransition(RuntimeError):
    """The session reported a success that the state does not allow; the state is as it was."""


def _before_auth(hello: Action | Reject, auth: Action | Reject) -> dict[int, Action | Reject]:
    return {**dict.fromkeys(FrameType, codec.UNAUTHENTICATED), FrameType.HELLO: hello, FrameType.AUTH: auth}


TABLE: Final[Mapping[State, Mapping[int, Action | Reject]]] = {
    State.AWAITING_HELLO: _before_auth(hello=Action.NEGOTIATE, auth=codec.HELLO_NOT_PERFORMED),
    State.AWAITING_AUTH: _before_auth(hello=codec.HELLO_ALREADY_PERFORMED, auth=Action.AUTHENTICATE),
    State.READY: {
        FrameType.HELLO: codec.HELLO_ALREADY_PERFORMED,
        FrameType.AUTH: codec.ALREADY_AUTHENTICATED,
        FrameType.PUBLISH: Action.PUBLISH,
        FrameType.SUBSCRIBE: Action.SUBSCRIBE,
        FrameType.ACK: Action.SETTLE,
        FrameType.NACK: Action.IGNORE,
        FrameType.PING: Action.PONG,
        FrameType.PONG: Action.IGNORE,
        FrameType.POLL: Action.POLL,
    },
}


#: The state after each success; no action belongs to it.
PROGRESS: Final[Mapping[State, Mapping[Success, tuple[tuple[()], State]]]] = {
    State.AWAITING_HELLO: {Success.HELLO_ACCEPTED: ((), State.AWAITING_AUTH)},
    State.AWAITING_AUTH: {Success.AUTHENTICATED: ((), State.READY)},
    State.READY: {},
}


class Conversation:
    """One connection's place in the table."""

    def __init__(self) -> None:
        self.state = State.AWAITING_HELLO

    def on(self, frame_type: int) -> Action | Reject:
        """Return what to do with a frame of this type; the state does not change."""
        return TABLE[self.state][frame_type]

    def succeeded(self, success: Success) -> None:
        """The action was carried out: go on to the next state. Raises IllegalTransition where it was not due."""
        if success not in PROGRESS[self.state]:
            raise IllegalTransition(f"{success.name} in {self.state.name}")
        _, self.state = PROGRESS[self.state][success]
