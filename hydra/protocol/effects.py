"""Effects: a node's requests to its driver (docs/protocols/hydra.md, "The node and its driver"). No I/O.

The driver carries out effects in their order. Only `Persist` is answered (`Node.persisted`); the node returns effects
that depend on the answer after it.
"""

from __future__ import annotations

from typing import NamedTuple

from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Message
from hydra.protocol.roles import Role


class StoredNode(NamedTuple):
    """A node's row on disk, under its stable name: what a restart must not forget."""

    voter: str
    """Its lasting key: 16 hexadecimal digits, drawn with the row. Without its row a node is another voter."""
    term: int = 0
    pledge: int | None = None
    """The nominee it has pledged to vote for in `term`."""
    electorate: Electorate | None = None


class Transmit(NamedTuple):
    """Send a message over these links, with or without its attributes. A link that cannot take the message loses it."""

    links: tuple[int, ...]
    message: Message
    attributes: bool


class Dial(NamedTuple):
    """Connect to an address; answer with `Node.link_opened`, or with `Node.tick` if it fails."""

    target: str


class CloseLink(NamedTuple):
    """Close a link, and log why. No `Node.link_closed` is needed for it."""

    link: int
    reason: str


class Persist(NamedTuple):
    """Write this over the node's row; when it is committed, call `Node.persisted` with the number.

    Writes are made in the order in which they were asked for; a later one may stand in for those before it.
    """

    number: int
    stored: StoredNode


class ConnectIrc(NamedTuple):
    """Connect to IRC; answer with `Node.irc_connected` or `Node.irc_lost`."""


class LeaveIrc(NamedTuple):
    """Close the connection to IRC, or stop connecting, before the next effect."""

    reason: str


class Say(NamedTuple):
    """Send a line to IRC. If it cannot be sent now it is lost: at most once."""

    line: str
    message: str


class DeliverLine(NamedTuple):
    """Deliver a line from IRC; a term's lines come in order and without a gap.

    `(term, idx)` stored with the line is the `position` that a restarted `Node` continues from.
    """

    term: int
    idx: int
    line: str


class Missed(NamedTuple):
    """Lines `first` to `last` of a term are lost to this node: no neighbour has them any more."""

    term: int
    first: int
    last: int


class Refused(NamedTuple):
    """A submitted line will never be sent to IRC; why."""

    message: str
    reason: str


class RoleChanged(NamedTuple):
    """The node's role, term or leader has changed. For logs and status pages."""

    role: Role
    term: int
    leader: int | None


Effect = (
    Transmit | Dial | CloseLink | Persist | ConnectIrc | LeaveIrc | Say | DeliverLine | Missed | Refused | RoleChanged
)  # fmt: skip
