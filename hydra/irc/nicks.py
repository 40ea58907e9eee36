"""Alternatives to a nick that is in use. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

#: The longest nick that every server takes; some cut longer ones, so that all that begin alike are one.
SHORT: Final = 9
NUMBERED: Final = 9
DRAWN: Final = 5


def other_nicks(nick: str, rng: Random) -> Iterator[str]:
    """Yield `nick_`, `nick2` to `nick9`, then some short ones with random digits."""
    yield f"{nick}_"
    for number in range(2, NUMBERED + 1):
        yield f"{nick}{number}"
    for _ in range(DRAWN):
        yield drawn_nick(nick, rng)


def drawn_nick(nick: str, rng: Random) -> str:
    """A nick of at most 9 characters with random digits."""
    return f"{nick[: SHORT - 5]}{rng.randrange(100_000):05}"
