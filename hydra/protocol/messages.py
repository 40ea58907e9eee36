"""Hydra's messages (docs/protocols/hydra.md, "Messages"). No I/O.

The fields before each class' blank line are the specification's. Those after it are attributes, which travel only
between nodes that know them (`hydra.protocol.codec`); None: not given.

`key` says what identifies a message: a node relays no message twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

from hydra.protocol.electorate import Electorate, Stamp


class Ping(NamedTuple):
    """The leader's heartbeat."""

    term: int
    val: str
    """Unique for each heartbeat of any leader."""
    id: int
    """The leader."""

    voter: str | None = None
    """The leader's lasting key."""
    next: int | None = None
    """The index of this term's next line."""
    electorate: Electorate | None = None
    """The newest electorate, while a node lacks it."""
    leave: str | None = None
    """The digest of the leader's `proof` (`hydra.protocol.farewell`)."""


class Pong(NamedTuple):
    """A node's answer to a heartbeat."""

    val: str
    id: int
    """The node."""
    hops: int
    """The number of times that it was relayed: the specification's `count`."""
    tag: str = ""

    voter: str | None = None
    stamp: Stamp | None = None
    """The electorate that the node has on disk."""
    irc: int | None = None
    """1 if it knows an IRC server, 0 if not."""


class Recv(NamedTuple):
    """A line from IRC, sent by the leader."""

    idx: int
    """Counts from 0 in each term."""
    line: str

    term: int | None = None
    first: int | None = None
    """In an answer to Ask: the oldest line that the neighbour still has."""


class Send(NamedTuple):
    """A line for IRC, on its way to the leader."""

    id: int
    """The node that has submitted it."""
    line: str

    term: int | None = None
    """The one term whose leader may send it."""
    message: str | None = None
    """The line's unique name."""


class Drop(NamedTuple):
    """A node is removed from the network."""

    id: int
    reason: str = ""

    proof: str | None = None
    """The proof that a leader leaves by itself (`hydra.protocol.farewell`)."""


class Nominate(NamedTuple):
    """A node stands for election."""

    term: int
    id: int

    voter: str | None = None
    electorate: Electorate | None = None
    """The electorate whose majority the nominee asks for."""


class Pledge(NamedTuple):
    """A node will vote for a nominee, and for no other in this term."""

    term: int
    nom: int
    id: int

    voter: str | None = None


class Call(NamedTuple):
    """The votes are called for."""

    term: int


class Elect(NamedTuple):
    """A node's vote."""

    term: int
    nom: int
    id: int

    voter: str | None = None


class Knock(NamedTuple):
    """A server asks to become a node; relayed, its mediator asks for it."""

    ind: int
    tag: str = ""


class Meet(NamedTuple):
    """A node agrees to an induction."""

    ind: int
    id: int

    voter: str | None = None


class Welcome(NamedTuple):
    """All have agreed: the server is a node."""

    ind: int


class Hello(NamedTuple):
    """A node greets the new one."""

    ind: int
    id: int

    voter: str | None = None


class Ask(NamedTuple):
    """A request for a term's lines from an index on. Only between neighbours that know attributes; not relayed."""

    term: int
    idx: int


Message = Ping | Pong | Recv | Send | Drop | Nominate | Pledge | Call | Elect | Knock | Meet | Welcome | Hello | Ask


#: Messages that are new again after MAX_MEET.
RECURRING: Final = frozenset({Knock, Meet, Welcome, Hello, Drop, Send})
#: Messages that a nominee and its voters repeat while an election lasts.
REPEATED: Final = frozenset({Nominate, Pledge, Call, Elect})


def key(message: Message) -> Hashable:
    """What identifies a message."""
    match message:
        case Ping():  # a copy without attributes must not hide the whole message
            return Ping, message.term, message.val, message.id, message.next is None
        case Recv() if message.term is not None:
            return Recv, message.term, message.idx
        case Send() if message.message is not None:
            return Send, message.term, message.message
        case Drop() if message.proof is not None:  # a forged DROP must not hide the leader's own
            return Drop, message.id, message.proof
    return type(message), *message[: _KEYS[type(message)]]


#: The number of fields that identify a message, unless `key` knows better.
_KEYS: Final[dict[type[Message], int]] = {
    Pong: 2, Recv: 2, Send: 2, Drop: 1, Nominate: 2, Pledge: 3, Call: 1, Elect: 3, Knock: 1, Meet: 2, Welcome: 1,
    Hello: 2, Ask: 2,
}  # fmt: skip
