"""The low watermark of a queue: the id at and below which it has no ready message.

Claims and publishes do not look there: dead index entries lie below it, and walking over them again and again makes
queues in a database slow. Ids do not become visible in their order: a transaction may take its ids and commit only
after a later id was claimed. So the watermark does not follow a claim at once. It follows when a later claim has looked
below and found no more, and that claim's snapshot has an xmin at or above the earlier claim's xmax
(`pg_current_snapshot`, `xmin:xmax:…`): every transaction of the earlier claim's time has ended. A transaction that
stores messages has its id before it takes theirs.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

#: Below all ids. Ids of high priorities are negative.
LOWEST = -(2**63) + 1
#: The lowest possible id. From here on means every message.
FIRST = LOWEST + 1
#: Limit of claimed rows and segments that are read again, so that a transaction of hours does not hold the watermark
#: down. Its messages are announced by notification; until then later ones may overtake them.
MAX_AGAIN = 20_000
#: Seconds after which an idle queue stops waiting for such a transaction.
TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Claimed:
    """A claim's highest id, the first transaction it knew nothing of, how many rows and segments it took, and when
    (monotonic)."""

    id: int
    xmax: int
    count: int
    at: float


class LowWatermark:
    """One queue's low watermark, as one node knows it."""

    __slots__ = ("_again", "_claims", "value")

    def __init__(self) -> None:
        self.value = LOWEST
        self._claims: deque[Claimed] = deque()
        self._again = 0

    def lower(self, first_id: int) -> None:
        """Messages from `first_id` on became ready."""
        self.value = max(LOWEST, min(self.value, first_id - 1))

    def reset(self) -> None:
        """Any message may be ready."""
        self.value = LOWEST
        self._claims.clear()
        self._again = 0

    def pass_over(self, id: int) -> None:
        """The message of this id cannot be claimed."""
        self.value = max(self.value, id)

    @property
    def lags(self) -> bool:
        """Whether the watermark is behind the claims."""
        return bool(self._claims)

    @property
    def highest(self) -> int:
        """The highest id that a claim has reached."""
        return max([self.value, *(claim.id for claim in self._claims)])

    def looked(self, snapshot: str, up_to: int | None) -> None:
        """With this snapshot every message from the watermark up to an id was taken; None: every message."""
        xmin, _ = _bounds(snapshot)
        while self._claims and (self._claims[0].xmax <= xmin or self._again > MAX_AGAIN):
            self._rise(up_to)
            if up_to is not None and up_to < self._claims[0].id:
                return
            self._forget()

    def claimed(self, snapshot: str, last_id: int, count: int) -> None:
        """A claim with this snapshot took so many rows and segments, the last message of them with this id."""
        _, xmax = _bounds(snapshot)
        self._claims.append(Claimed(last_id, xmax, count, time.monotonic()))
        self._again += count

    def give_up_waiting(self, now: float) -> None:
        """Follow claims older than TIMEOUT: a transaction that still writes announces its messages."""
        while self._claims and now - self._claims[0].at > TIMEOUT:
            self._rise(None)
            self._forget()

    def _rise(self, up_to: int | None) -> None:
        id = self._claims[0].id
        self.value = max(self.value, id if up_to is None else min(id, up_to))

    def _forget(self) -> None:
        self._again -= self._claims.popleft().count


def _bounds(snapshot: str) -> tuple[int, int]:
    xmin, xmax, _ = snapshot.split(":", 2)
    return int(xmin), int(xmax)
