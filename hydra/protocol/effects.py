"""What a node asks of those who run it (docs/protocols/hydra.md, "The node and its driver"). No I/O.

Effects are carried out in the order in which they are returned. None needs to be waited for but `Persist`, whose
answer the node is told (`Node.persisted`): what must not leave before is not returned before.
"""

from __future__ import annotations

from typing import NamedTuple

from hydra.protocol.electorate import Electorate
from hydra.protocol.messages import Message
from hydra.protocol.roles import Role


class Stored(NamedTuple):
    """What a node has on disk under its stable key, so that a restart does not make it forget a promise."""

    voter: str
    """Its lasting key: 16 hexadecimal digits, drawn when the row is made. Who has lost the row is another voter."""
    term: int = 0
    pledge: int | None = None
    """The nominee it has pledged to vote for in `term`."""
    electorate: Electorate | None = None


class Transmit(NamedTuple):
    """Send a message over these links, with or without its attributes. A link that cannot take it loses it."""

    links: tuple[int, ...]
    message: Message
    attributes: bool


class Dial(NamedTuple):
    """Connect to an address; answer with `Node.link_opened` or `Node.dial_failed`."""

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
    stored: Stored


class ConnectIrc(NamedTuple):
    """Connect to IRC; answer with `Node.irc_connected` or `Node.irc_lost`."""


class LeaveIrc(NamedTuple):
    """Be off IRC before the next effect is carried out: close the connection at once, or stop connecting."""

    reason: str


class Say(NamedTuple):
    """Send a line to IRC. If it cannot be sent now it is lost: it may be said once, or never."""

    line: str
    message: str


class Deliver(NamedTuple):
    """A line from IRC, in order and without a gap in its term: for those who asked for it.

    Storing `(term, idx)` with it allows to start again where one has stopped (`Node`'s `position`).
    """

    term: int
    idx: int
    line: str


class Missed(NamedTuple):
    """The lines from `first` up to `last` of a term are lost to this node: nobody near has them any more."""

    term: int
    first: int
    last: int


class Refused(NamedTuple):
    """A line that was to be sent to IRC is not sent and never will be, and why."""

    message: str
    reason: str


class Changed(NamedTuple):
    """The node's role, term or leader is another now. For logs and status pages."""

    role: Role
    term: int
    leader: int | None


Effect = (
    Transmit | Dial | CloseLink | Persist | ConnectIrc | LeaveIrc | Say | Deliver | Missed | Refused | Changed
)  # fmt: skip
