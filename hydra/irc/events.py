"""Reads what the `irc` package makes of a server's line. No I/O."""

from __future__ import annotations

from irc.client import Event  # type: ignore[import-untyped]


def is_refusal(event: Event) -> bool:
    """Whether an event is a numeric of the 400s or 500s."""
    code = getattr(event.type, "code", "")
    return len(code) == 3 and code.isdigit() and code[0] in "45"


def event_text(event: Event) -> str:
    """The server's text in an event, for logs."""
    return " ".join(event.arguments) or event.target or "no reason given"
