"""The memory of a broker."""

from __future__ import annotations

from tests.peers.running import WebBroker

MIB = 1 << 20
#: A receive buffer that makes a client slow at once.
SMALL = 4096


class Watch:
    """The growth of a broker's memory."""

    def __init__(self, broker: WebBroker) -> None:
        self.broker = broker
        self.before = broker.rss
        self.most = 0

    def grown(self) -> int:
        """Bytes more than at first, at most so far."""
        self.most = max(self.most, self.broker.rss - self.before)
        return self.most
