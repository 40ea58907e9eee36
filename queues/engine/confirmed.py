"""The messages that a writer has confirmed last, as a store with another past may have them or not.

Transactions of one connection follow each other in the server's log, and a standby has all of it up to some point: a
store that has one of these messages has every one that was confirmed before.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from queues.database.sql_files import array
from queues.engine.clock import now
from queues.engine.database import Connection

#: Seconds between two messages that are remembered, and how many.
APART = 1.0
MAX_CONFIRMED = 900
#: Seconds by which the clocks of two servers may differ.
MARGIN = 1.0


class Confirmed(NamedTuple):
    """A message, its queue, and when (monotonic) its transaction began at the earliest, and was confirmed."""

    id: int
    queue: int
    since: float
    at: float


class Confirmations:
    """Of one writer: the last one, and one a second."""

    __slots__ = ("_earlier", "_last", "_next")

    def __init__(self) -> None:
        self._last: Confirmed | None = None
        self._earlier: deque[Confirmed] = deque(maxlen=MAX_CONFIRMED)
        self._next = 0.0

    def note(self, id: int, queue: int, since: float | None) -> None:
        """A message was confirmed, the last one of its transaction."""
        time = now()
        self._last = Confirmed(id, queue, time if since is None else since, time)
        if time >= self._next:
            self._earlier.append(self._last)
            self._next = time + APART

    def forget(self) -> None:
        """The store has another past, in which nothing was confirmed."""
        self._last = None
        self._earlier.clear()

    async def lost_from(self, connection: Connection, offset: float) -> float | None:
        """The time from which on messages were confirmed that the store may lack: a Unix time of the server whose
        clock is so far from the monotonic one, 0.0 if it lacks all that are known. None: it has every one."""
        if self._last is None:
            return None
        known = [*self._earlier, self._last]
        found = await _stored(connection, offset, known)
        if self._last in found:
            return None
        return max((offset + one.at for one in known if one in found), default=0.0)


async def _stored(connection: Connection, offset: float, known: list[Confirmed]) -> set[Confirmed]:
    """Those that the store has, or has archived; an id that was given again has another time."""
    parameters = {
        "ids": array(one.id for one in known),
        "queues": array(one.queue for one in known),
        "sinces": [offset + one.since - MARGIN for one in known],
        "untils": [offset + one.at + MARGIN for one in known],
    }
    return {known[n - 1] for (n,) in await connection.rows("are_stored", parameters)}
