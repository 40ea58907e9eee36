"""The limits of prefetching that all local queues of one process share. The fetcher owns them."""

from __future__ import annotations

from queues.engine.consume.memory import Memory
from queues.engine.options import EngineOptions

#: Most messages of one claim.
BATCH = 4000


class FlowLimits:
    """Messages and bytes that one queue, and the process, may hold."""

    def __init__(self, options: EngineOptions) -> None:
        self.prefetch = options.prefetch
        self.queue_bytes = options.prefetch_bytes
        self.memory = Memory(options.prefetch_total_bytes)
        #: A queue with fewer prefetched messages asks for a claim.
        self.low_water = max(1, min(options.prefetch // 2, BATCH))

    def set_prefetch(self, messages: int) -> None:
        """Let one queue hold another number of messages."""
        self.prefetch = messages
