"""Rows that stand for several messages, as one for each: what most tests look at."""

from __future__ import annotations

from queues.audit.spans import parse_span


def messages_of(record: str) -> list[str]:
    """The ids of the messages that a row with this id stands for; its own if it is no message's."""
    messages = parse_span(record)
    return [record] if messages is None else [str(id) for id in messages]
