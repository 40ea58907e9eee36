"""Whether and when a client connects again after its connection was lost, and what it tells its program. No I/O.

Every client takes `reconnect` and `on_event`:

    def tell(event):
        if event.name == "reconnecting":
            print(f"the broker is away ({event.error}): next attempt in {event.delay:.1f} s")

    client = Client("127.0.0.1", 5555, "dev-key", on_event=tell)

A connection that is lost is made again. What the client asked and what may be asked twice is asked again; anything else
that was under way raises ConnectionLost, and the client goes on. Nothing is sent twice without the program's consent.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from queues.backoff import Backoff
from wire.client.errors import ClientError, TlsFailed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """What became of a client's connection.

    `connected`: the client has a connection, `again` or for the first time. `disconnected`: it was lost, with an
    `error`. `reconnecting`: the next attempt is after `delay` seconds, `error` is what went wrong last. `resent`:
    `count` messages that were not confirmed have been sent again. `closed`: there will be no further connection.
    """

    name: Literal["connected", "disconnected", "reconnecting", "resent", "closed"]
    again: bool = False
    error: Exception | None = None
    delay: float = 0.0
    count: int = 0


OnEvent: TypeAlias = Callable[[Event], object]
#: True for the usual waits, a Backoff for others; with False a lost connection is final.
Reconnect: TypeAlias = Backoff | bool


def passes(error: Exception) -> bool:
    """Return whether another attempt to connect may succeed."""
    return error.passing if isinstance(error, ClientError) else isinstance(error, OSError)


class Reconnecting:
    """The attempts of one client, and its events."""

    def __init__(self, reconnect: Reconnect = True, on_event: OnEvent | None = None) -> None:
        self._backoff = Backoff() if reconnect is True else reconnect or None
        self._on_event = on_event
        self._delays = (self._backoff or Backoff()).delays()
        self._delay = 0.0
        self._connected_at: float | None = None
        self._closed = False

    def goes_on(self, error: Exception) -> bool:
        """Return whether a connection that this error has ended is made again."""
        return self._backoff is not None and (not isinstance(error, TlsFailed) or error.passing)

    def connected(self, resent: int = 0) -> None:
        """Report a connection, on which `resent` messages are sent again."""
        again = self._connected_at is not None
        self._connected_at = time.monotonic()
        self._tell(Event("connected", again=again))
        if resent:
            self.resent(resent)

    def resent(self, count: int) -> None:
        """So many messages have been sent once more."""
        self._tell(Event("resent", count=count))

    def disconnected(self, error: Exception) -> None:
        """The connection has ended."""
        # One that lasted shorter than it was waited for is another failure in a row.
        if self._connected_at is None or time.monotonic() - self._connected_at > self._delay:
            self._delays = (self._backoff or Backoff()).delays()
        self._tell(Event("disconnected", error=error))

    def delay_after(self, error: Exception) -> float:
        """Return the seconds until the next attempt."""
        self._delay = next(self._delays)
        self._tell(Event("reconnecting", error=error, delay=self._delay))
        return self._delay

    def closed(self) -> None:
        """There will be no further connection."""
        if not self._closed:
            self._closed = True
            self._tell(Event("closed"))

    def _tell(self, event: Event) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # of the program, in the middle of the client's work
                logger.exception("on_event failed for %r", event)
