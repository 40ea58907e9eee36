"""The life of an Overhop connection as a table (docs/protocols/overhop.md, "The connection").

    CONNECTED --HELLO--> HELLOED --too old--> CHALLENGED
                            |                     |
                            +------REGISTER-------+--> REGISTERED

`TABLE` says for every state and every event what the server does and where the connection is then; other events
are ignored and change nothing. `Conversation` is one connection's place in the table; it is told the time,
in seconds of any clock that does not jump, and never asks for it.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from wire.overhop.codec.names import Type


class State(Enum):
    """The states of a connection."""

    CONNECTED = auto()
    HELLOED = auto()
    #: IDENT was sent: REGISTER, and before the deadline.
    CHALLENGED = auto()
    #: A worker: from now on time means nothing.
    REGISTERED = auto()
    CLOSED = auto()


class Event(Enum):
    """The events of a connection."""

    HELLO = auto()
    REGISTER = auto()
    #: REGISTER after the deadline, when no heartbeat has closed the connection yet.
    LATE_REGISTER = auto()
    #: Any other message that a worker may send.
    REQUEST = auto()
    #: A message of the wrong shape, of an unknown type, or one that only a server sends.
    WRONG = auto()
    #: The heartbeat found the state's time to be over.
    TOO_OLD = auto()
    #: End of stream, bytes that are no messages, or the server's own decision.
    DISCONNECT = auto()


class Action(Enum):
    """The server's actions."""

    #: Do nothing.
    IGNORE = auto()
    #: Answer HI.
    HI = auto()
    #: Make it a worker and answer OK with its `wid`.
    REGISTER = auto()
    #: Carry out the request and answer it.
    SERVE = auto()
    #: Send IDENT; the deadline is `Conversation.deadline`.
    CHALLENGE = auto()
    #: Send ERR PROTOCOL_VIOLATION with the message's request id, and close.
    VIOLATION = auto()
    #: Send ERR REGISTER_TIMEOUT with the message's request id, and close.
    REGISTER_TIMEOUT = auto()
    #: Send ERR CONNECTION_TIMEOUT with request id "0", and close.
    TIMEOUT = auto()
    #: Close without an answer.
    CLOSE = auto()


#: What holds in every state, unless its own rows say something else.
_COMMON: Final[Mapping[Event, tuple[Action, State]]] = {
    **dict.fromkeys((Event.HELLO, Event.REGISTER, Event.REQUEST, Event.WRONG), (Action.VIOLATION, State.CLOSED)),
    Event.DISCONNECT: (Action.IGNORE, State.CLOSED),
}

TABLE: Final[Mapping[State, Mapping[Event, tuple[Action, State]]]] = {
    State.CONNECTED: {
        **_COMMON,
        Event.HELLO: (Action.HI, State.HELLOED),
        Event.TOO_OLD: (Action.CLOSE, State.CLOSED),
    },
    State.HELLOED: {
        **_COMMON,
        Event.REGISTER: (Action.REGISTER, State.REGISTERED),
        Event.TOO_OLD: (Action.CHALLENGE, State.CHALLENGED),
    },
    State.CHALLENGED: {
        **_COMMON,
        Event.REGISTER: (Action.REGISTER, State.REGISTERED),
        Event.LATE_REGISTER: (Action.REGISTER_TIMEOUT, State.CLOSED),
        Event.TOO_OLD: (Action.TIMEOUT, State.CLOSED),
    },
    State.REGISTERED: {**_COMMON, Event.REQUEST: (Action.SERVE, State.REGISTERED)},
    State.CLOSED: {},
}

_EVENTS: Final[Mapping[int, Event]] = {
    **{int(kind): Event.REQUEST for kind in Type if kind < Type.OK},
    int(Type.HELLO): Event.HELLO,
    int(Type.REGISTER): Event.REGISTER,
}


class Limits(NamedTuple):
    """The longest times in each state, in seconds (docs/protocols/overhop.md, "The connection")."""

    #: Without a HELLO: then it is closed.
    unhelloed: float = 10.0
    #: After its HELLO, without a REGISTER: then it gets an IDENT.
    helloed_unregistered: float = 10.0
    #: After the IDENT: then it is closed.
    ident_register: float = 2.0

    @property
    def cadence(self) -> float:
        """Seconds between two heartbeats."""
        return min(self)


class Conversation:
    """One connection's place in the table."""

    def __init__(self, limits: Limits, now: float) -> None:
        """The connection was accepted `now`."""
        self.state = State.CONNECTED
        self._seconds = {
            State.CONNECTED: limits.unhelloed,
            State.HELLOED: limits.helloed_unregistered,
            State.CHALLENGED: limits.ident_register,
        }
        #: When the state's time is over; None once there is no limit.
        self.deadline: float | None = now + limits.unhelloed

    def on_message(self, t: int, now: float) -> Action:
        """A message of type `t`, its shape not being wrong, arrived `now`: return what to do."""
        event = _EVENTS.get(t, Event.WRONG)
        if event is Event.REGISTER and self.state is State.CHALLENGED and self._is_over(now):
            event = Event.LATE_REGISTER
        return self.on(event, now)

    def on_heartbeat(self, now: float) -> Action:
        """Return the action for the time that has passed, if any."""
        return self.on(Event.TOO_OLD, now) if self._is_over(now) else Action.IGNORE

    def _is_over(self, now: float) -> bool:
        return self.deadline is not None and now >= self.deadline

    def on(self, event: Event, now: float) -> Action:
        """Return the action for an event, and change the state. An event without a row in the table changes nothing."""
        before = self.state
        action, self.state = TABLE[before].get(event, (Action.IGNORE, before))
        if self.state is not before:
            seconds = self._seconds.get(self.state)
            self.deadline = None if seconds is None else now + seconds
        return action
