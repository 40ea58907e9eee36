"""Hydra's messages (docs/protocols/hydra.md, "Messages"). No I/O.

The fields before each class' blank line are the specification's. Those after it are attributes, which travel only
between nodes that know them (`hydra.protocol.codec`); None: not given.

`key` identifies a message: a node relays no message twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

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

    def key(self) -> Hashable:
        # A copy without attributes must not hide the whole message.
        return "PING", self.term, self.val, self.id, self.next is None


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

    def key(self) -> Hashable:
        return "PONG", self.val, self.id


class Recv(NamedTuple):
    """A line from IRC, sent by the leader."""

    idx: int
    """Counts from 0 in each term."""
    line: str

    term: int | None = None
    first: int | None = None
    """In an answer to Ask: the oldest line that the neighbour still has."""

    def key(self) -> Hashable:
        return ("RECV", self.idx, self.line) if self.term is None else ("RECV", self.term, self.idx)


class Send(NamedTuple):
    """A line for IRC, on its way to the leader."""

    id: int
    """The node that has submitted it."""
    line: str

    term: int | None = None
    """The one term whose leader may send it."""
    message: str | None = None
    """The line's unique name."""

    def key(self) -> Hashable:
        return ("SEND", self.id, self.line) if self.message is None else ("SEND", self.term, self.message)


class Drop(NamedTuple):
    """A node is removed from the network."""

    id: int
    reason: str = ""

    proof: str | None = None
    """The proof that a leader leaves by itself (`hydra.protocol.farewell`)."""

    def key(self) -> Hashable:
        # A forged DROP must not hide the leader's own.
        return ("DROP", self.id) if self.proof is None else ("DROP", self.id, self.proof)


class Nominate(NamedTuple):
    """A node stands for election."""

    term: int
    id: int

    voter: str | None = None
    electorate: Electorate | None = None
    """The electorate whose majority the nominee asks for."""

    def key(self) -> Hashable:
        return "NOMINATE", self.term, self.id


class Pledge(NamedTuple):
    """A node will vote for a nominee, and for no other in this term."""

    term: int
    nom: int
    id: int

    voter: str | None = None

    def key(self) -> Hashable:
        return "PLEDGE", self.term, self.nom, self.id


class Call(NamedTuple):
    """The votes are called for."""

    term: int

    def key(self) -> Hashable:
        return "CALL", self.term


class Elect(NamedTuple):
    """A node's vote."""

    term: int
    nom: int
    id: int

    voter: str | None = None

    def key(self) -> Hashable:
        return "ELECT", self.term, self.nom, self.id


class Knock(NamedTuple):
    """A server asks to become a node; relayed, its mediator asks for it."""

    ind: int
    tag: str = ""

    def key(self) -> Hashable:
        return "KNOCK", self.ind


class Meet(NamedTuple):
    """A node agrees to an induction."""

    ind: int
    id: int

    voter: str | None = None

    def key(self) -> Hashable:
        return "MEET", self.ind, self.id


class Welcome(NamedTuple):
    """All have agreed: the server is a node."""

    ind: int

    def key(self) -> Hashable:
        return "WELCOME", self.ind


class Hello(NamedTuple):
    """A node greets the new one."""

    ind: int
    id: int

    voter: str | None = None

    def key(self) -> Hashable:
        return "HELLO", self.ind, self.id


class Ask(NamedTuple):
    """A request for a term's lines from an index on. Only between neighbours that know attributes; not relayed."""

    term: int
    idx: int

    def key(self) -> Hashable:
        return "ASK", self.term, self.idx


Message = Ping | Pong | Recv | Send | Drop | Nominate | Pledge | Call | Elect | Knock | Meet | Welcome | Hello | Ask


#: Messages that are new again after MAX_MEET.
RECURRING: Final = frozenset({Knock, Meet, Welcome, Hello, Drop, Send})
#: Messages that a nominee and its voters repeat while an election lasts.
REPEATED: Final = frozenset({Nominate, Pledge, Call, Elect})


def bare(message: Message) -> Message:
    """A message without its attributes, as a neighbour that knows none sends it."""
    make: type[Any] = type(message)
    width = _WIDTHS.get(make)
    bare: Message = message if width is None else make(*message[:width])
    return bare


#: The number of the specification's fields in messages that have attributes.
_WIDTHS: Final = {Ping: 3, Pong: 4, Recv: 2, Send: 2, Drop: 2, Nominate: 2, Pledge: 3, Elect: 3, Meet: 2, Hello: 2}
