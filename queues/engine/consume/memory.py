"""The memory budget of a process for prefetched messages, and the memory that one message takes.

A queue may hold no more than is left for all: a single queue gets half of the total, each of many the same share, and a
later one finds room at once. A queue that holds nothing may always have one message, so that no queue stops.
`FlowLimits` are the limits that all prefetched queues of a process share; the fetcher owns them.
"""

from __future__ import annotations

from queues.engine.message import Detail, Message
from queues.engine.options import EngineOptions

#: Bytes of a message in memory without its payload: the tuple, two numbers, the payload's header, its place.
OVERHEAD = 200
#: Bytes of a detail without its headers and key.
DETAIL = 200
#: Approximate bytes of a Python value per byte of JSON.
JSON_FACTOR = 4
#: Limit of messages in one claim.
BATCH = 4000


class Memory:
    """The budget of one process, in bytes."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0

    def hold(self, size: int) -> None:
        """Change the bytes that a queue holds by `size`."""
        self.used += size

    def room(self, held: int) -> int:
        """The bytes that a queue with `held` bytes may add; 0 or less: none."""
        return max(0, self.total - self.used - held) // 2 if held else max(1, (self.total - self.used) // 2)


class FlowLimits:
    """Messages and bytes that one queue, and the process, may hold."""

    def __init__(self, options: EngineOptions) -> None:
        self.prefetch = options.prefetch
        self.queue_bytes = options.prefetch_bytes
        self.memory = Memory(options.prefetch_total_bytes)
        #: A queue asks for a claim below this number of prefetched messages.
        self.low_water = max(1, min(options.prefetch // 2, BATCH))

    def set_prefetch(self, messages: int) -> None:
        """Change the number of messages that one queue may hold."""
        self.prefetch = messages


def detail_weight(headers: int, key: str | None) -> int:
    """Bytes of a message's detail; `headers` is the size of its headers as JSON."""
    return DETAIL + JSON_FACTOR * headers + (0 if key is None else len(key))


def weight(message: Message) -> int:
    """Bytes of a message."""
    detail: Detail | None = message[3]
    return OVERHEAD + len(message[1]) + (0 if detail is None else detail.weight)
