"""Hydra's messages (docs/protocols/hydra.md, "Messages"). No I/O.

The fields before the blank line of each class are the document's. Those after it are attributes: they travel only
between nodes that know them (`hydra.protocol.codec`), and None stands for an attribute that was not given.

`key` is what makes a message the same as another: a node relays no message twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, NamedTuple

from hydra.protocol.electorate import Electorate, Stamp


class Ping(NamedTuple):
    """The leader lives: its heartbeat, sent by nobody else."""

    term: int
    val: str
    """Unique for each heartbeat of any leader."""
    id: int
    """The leader."""

    voter: str | None = None
    """The leader's lasting key."""
    next: int | None = None
    """The index that the next line of this term will have."""
    electorate: Electorate | None = None
    """The newest electorate, as long as a node does not have it."""
    leave: str | None = None
    """The digest of what the leader says when it leaves (`hydra.protocol.farewell`)."""

    def key(self) -> Hashable:
        # A copy that came through a node that does not know attributes must not stand in for the whole one.
        return "PING", self.term, self.val, self.id, self.next is None


class Pong(NamedTuple):
    """A node's answer to a heartbeat."""

    val: str
    id: int
    """The node."""
    hops: int
    """How often it was relayed; the document calls it `count`."""
    tag: str = ""

    voter: str | None = None
    stamp: Stamp | None = None
    """The electorate that the node has on disk."""
    irc: int | None = None
    """1 if it could be on IRC, 0 if it knows no server."""

    def key(self) -> Hashable:
        return "PONG", self.val, self.id


class Recv(NamedTuple):
    """A line that the leader had from IRC."""

    idx: int
    """Counts from 0 in each term."""
    line: str

    term: int | None = None
    first: int | None = None
    """In an answer to Ask: the oldest line that the one who answers still has."""

    def key(self) -> Hashable:
        return ("RECV", self.idx, self.line) if self.term is None else ("RECV", self.term, self.idx)


class Send(NamedTuple):
    """A line for IRC, on its way to the leader."""

    id: int
    """The node that it comes from."""
    line: str

    term: int | None = None
    """The one term whose leader may say it."""
    message: str | None = None
    """Unique for each line that is to be said."""

    def key(self) -> Hashable:
        return ("SEND", self.id, self.line) if self.message is None else ("SEND", self.term, self.message)


class Drop(NamedTuple):
    """A node is no part of the network any more."""

    id: int
    reason: str = ""

    proof: str | None = None
    """Of a leader that leaves: that it says so itself (`hydra.protocol.farewell`)."""

    def key(self) -> Hashable:
        # A forged one must not stand in for the leader's own.
        return ("DROP", self.id) if self.proof is None else ("DROP", self.id, self.proof)


class Nominate(NamedTuple):
    """A node stands for election."""

    term: int
    id: int

    voter: str | None = None
    electorate: Electorate | None = None
    """Whose majority the nominee will ask."""

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
    """A server asks to be a node; relayed, its mediator asks for it."""

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
    """Lines of a term from an index on are missing here. Only between neighbours that know attributes; not relayed."""

    term: int
    idx: int

    def key(self) -> Hashable:
        return "ASK", self.term, self.idx


Message = Ping | Pong | Recv | Send | Drop | Nominate | Pledge | Call | Elect | Knock | Meet | Welcome | Hello | Ask


def bare(message: Message) -> Message:
    """Return a message without its attributes, as it is taken from a neighbour that does not know any."""
    make: type[Any] = type(message)
    width = _WIDTHS.get(make)
    bare: Message = message if width is None else make(*message[:width])
    return bare


_WIDTHS: Final = {Ping: 3, Pong: 4, Recv: 2, Send: 2, Drop: 2, Nominate: 2, Pledge: 3, Elect: 3, Meet: 2, Hello: 2}
"""How many fields are the document's, of the messages that have attributes."""
