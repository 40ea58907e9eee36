"""Reads what the `irc` package makes of a server's line. No I/O."""

from __future__ import annotations

from typing import Final

from irc.client import Event  # type: ignore[import-untyped]

#: Characters of a server's text that are kept.
MAX_TEXT: Final = 300
#: Numerics beyond the 400s and 500s that refuse a command: try again later, the other side takes no private messages,
#: a forbidden channel or word, a command or mode that is not for this client.
_MORE_REFUSALS: Final = frozenset({"263", "716", "926", "936", "972", "974"})
#: Numerics of the 400s that answer no command: there is no message of the day.
_NO_REFUSALS: Final = frozenset({"422"})


def code_of(event: Event) -> str:
    """The three digits of a numeric, or the command."""
    return str(getattr(event.type, "code", event.type))


def is_refusal(event: Event) -> bool:
    """Whether an event refuses a command: a numeric of the 400s or 500s, a few others, or FAIL (IRCv3)."""
    code = code_of(event)
    if len(code) == 3 and code.isdigit():
        return (code[0] in "45" or code in _MORE_REFUSALS) and code not in _NO_REFUSALS
    return code.upper() == "FAIL"


def refusal_text(event: Event) -> str:
    """A refusal with its number, such as `404 #status Cannot send to channel`."""
    words = [code_of(event).upper(), *([event.target or ""] if event.type == "fail" else []), *event.arguments]
    return " ".join(words)[:MAX_TEXT]


def event_text(event: Event) -> str:
    """The server's text in an event, for logs."""
    return " ".join(event.arguments) or event.target or "no reason given"
