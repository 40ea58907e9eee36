"""The IRC lines that pass from IRC and to IRC (docs/protocols/hydra.md, "Lines"). No I/O."""

from __future__ import annotations

from typing import Final

#: The commands that nodes may send to IRC.
E_SEND: Final = frozenset({"JOIN", "PART", "PRIVMSG", "NOTICE", "MODE", "TOPIC", "KICK"})
#: The commands that the leader passes on from IRC.
E_RECV: Final = E_SEND | {"QUIT"}

#: Bytes that a line may have, so that it fits into a message with its attributes.
MAX_LINE: Final = 1900


#: Bytes of a line for IRC (RFC 2812, 2.3), without its end.
MAX_IRC: Final = 510


def command(line: str) -> str:
    """The command of an IRC line in capitals, or "".

    Tags (`@...`) and a source (`:...`) may stand before it, each with a space after it.
    """
    rest = line
    for mark in "@:":
        if rest.startswith(mark):
            rest = rest.partition(" ")[2].lstrip(" ")
    return rest.partition(" ")[0].upper()


def targets(line: str) -> list[str]:
    """The nicks or channels that a line is for: its first parameter, without tags and source."""
    rest = line
    for mark in "@:":
        if rest.startswith(mark):
            rest = rest.partition(" ")[2].lstrip(" ")
    words = rest.split(" :")[0].split()
    return words[1].split(",") if len(words) > 1 else []


def passes(line: str, commands: frozenset[str]) -> bool:
    """Whether a text is one line of one of these commands, and not too long."""
    return (
        command(line) in commands
        and len(line.encode(errors="replace")) <= MAX_LINE
        and not any(each in line for each in "\r\n\0")
    )


def is_sendable(line: str) -> bool:
    """Whether a line may be sent, and fits an IRC server's limit."""
    return passes(line, E_SEND) and len(line.encode(errors="replace")) <= MAX_IRC
