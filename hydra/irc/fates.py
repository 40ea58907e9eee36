"""What became of a line for IRC. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

#: The kinds of a node's events about lines that came to no good end.
LINE_REFUSED: Final = "line refused"
LINE_LOST: Final = "line lost"
LINES_MISSED: Final = "lines missed"
ENDS: Final = LINE_REFUSED, LINE_LOST, LINES_MISSED


class FateKind(Enum):
    """The kind of an end that a line comes to."""

    SENT = auto()
    """The server has taken it, and has refused nothing."""
    REFUSED = auto()
    """The server has refused it, or it does not fit into a line of the server."""
    UNSENT = auto()
    """It was not sent, and will not be."""
    UNKNOWN = auto()
    """It was sent, and the connection ended before the server's answer."""


class Fate(NamedTuple):
    """The end that a line came to, and why."""

    kind: FateKind
    words: str = ""


#: A line is sent, and the server has answered what was sent behind it.
SENT: Final = Fate(FateKind.SENT)

#: Called once with a line's fate.
Settle = Callable[[Fate], None]
