"""The growing wait before another attempt. No I/O."""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple


def even() -> float:
    """The chance of a :class:`Backoff` whose delays do not vary."""
    return 0.0


class Backoff(NamedTuple):
    """Delays in seconds: from `first` on each is twice the one before, up to `most`, less up to half by chance.

    An attempt that succeeds begins again with new `delays`.
    """

    first: float = 0.1
    most: float = 5.0
    #: From 0 up to 1. Chance keeps the clients of a broker that comes back from coming all at once.
    chance: Callable[[], float] = random.random

    def delays(self) -> Iterator[float]:
        """Yield the delay before each attempt in a row, without end."""
        delay = self.first
        while True:
            yield delay * (1 - self.chance() / 2)
            delay = min(2 * delay, self.most)
