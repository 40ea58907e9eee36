"""A blocking connection to an Overhop broker, for one thread at a time: the counterpart of `async_connection`."""

import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

from wire.client.drivers import ClientDriver
from wire.client.protocol import over_tls
from wire.overhop.client_core import ClientCore, Reply
from wire.overhop.requests import Quest, Request

T = TypeVar("T")


class Connection:
    """Requests one after the other. Every method may raise ConnectionLost, ReplyTimeout or ProtocolViolation."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timeout: float,
        max_envelope: int,
        tls: ssl.SSLContext | None,
        server_hostname: str | None,
    ) -> None:
        """Make a connection that is not open yet: call `connect`."""
        self.core = ClientCore(timeout, max_envelope)
        self._address = host, port
        self._driver = ClientDriver(over_tls(self.core, tls, host, server_hostname), timeout)

    def connect(self) -> None:
        """Connect and register, or raise OSError, OverhopError or ProtocolViolation."""
        self._driver.connect(*self._address, self.core.handshake())

    def ask(self, request: Request[T]) -> T:
        """Send a request and return its answer. Raises OverhopError, Unencodable, MessageTooLarge."""
        return self._driver.run(self.core.ask(request))

    def settle(self, replies: Sequence[Reply[Any]]) -> None:
        """Send prepared requests and wait for all answers, refusals too."""
        for reply in replies:
            self.core.submit(reply)
        self._driver.run(self.core.settled(replies))

    def next_quest(self, timeout: float | None) -> Quest | None:
        """Return the next QUEST, or None when the time is over."""
        return self._driver.run(self.core.next_quest(timeout))

    def close(self) -> None:
        """Disconnect when the broker has taken everything sent."""
        self._driver.close()
