"""The memory that a process gives to prefetched messages: what each one takes, and who may have how much.

A queue may hold no more than is left for all: one alone gets half of the total, of many each the same, and one that
comes later finds room at once. A queue that holds nothing may always have one message, so that each goes on.
"""

from __future__ import annotations

from queues.engine.message import Detail, Message

#: Bytes that a message in memory takes beside its payload: the tuple, two numbers, the payload's own header, its place.
OVERHEAD = 200
#: What a detail takes beside what it holds.
DETAIL = 200
#: Bytes that a byte of JSON takes as a value in Python, about.
JSON_FACTOR = 4


class Memory:
    """The budget of one process, in bytes."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0

    def room(self, held: int) -> int:
        """How many more bytes a queue may take that holds so many; 0 or less is none."""
        return max(0, self.total - self.used - held) // 2 if held else max(1, (self.total - self.used) // 2)


def detail_weight(headers: int, key: str | None) -> int:
    """The bytes that a message's detail takes, given the size of its headers as JSON."""
    return DETAIL + JSON_FACTOR * headers + (0 if key is None else len(key))


def weight(message: Message) -> int:
    """The bytes that a message takes."""
    detail: Detail | None = message[3]
    return OVERHEAD + len(message[1]) + (0 if detail is None else detail.weight)
