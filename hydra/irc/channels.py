"""Which channels are to be joined, and which have been. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import cast

from irc.strings import lower  # type: ignore[import-untyped]


def fold(name: str) -> str:
    """A nick or a channel's name as IRC compares it: without regard to case."""
    return cast(str, lower(name))


class State(Enum):
    """Where one channel stands."""

    ASKED = auto()
    """JOIN was sent, and not answered yet."""
    REFUSED = auto()
    """The server refuses, does not answer, or has taken it away; to be tried again."""
    JOINED = auto()
    LEFT = auto()
    """Left because a node has said so: not to be joined again on this connection."""


class Channels:
    """The wanted channels of one connection."""

    __slots__ = ("_joins", "_states")

    def __init__(self, wanted: Iterable[str]) -> None:
        """`wanted` has `#name` or `#name key`."""
        self._joins = {fold(each.partition(" ")[0]): each for each in wanted}
        self._states = dict.fromkeys(self._joins, State.REFUSED)

    def settled(self) -> bool:
        """Whether every JOIN has its answer."""
        return State.ASKED not in self._states.values()

    def ask(self) -> list[str]:
        """Try all that are refused: return what to say."""
        names = [name for name, state in self._states.items() if state is State.REFUSED]
        for name in names:
            self._states[name] = State.ASKED
        return [f"JOIN {self._joins[name]}" for name in names]

    def give_up(self) -> list[str]:
        """What was asked has gone unanswered for too long: return the names, which count as refused now."""
        names = [name for name, state in self._states.items() if state is State.ASKED]
        for name in names:
            self._states[name] = State.REFUSED
        return names

    def joined(self, channel: str) -> None:
        """The server says that this client is in a channel."""
        self._change(channel, State.JOINED)

    def left(self, channel: str) -> None:
        """This client has left a channel of its own will."""
        self._change(channel, State.LEFT)

    def removed(self, channel: str) -> None:
        """This client was removed from a channel."""
        self._change(channel, State.REFUSED)

    def refused(self, words: Iterable[str]) -> str | None:
        """An error has come with these words in it: return the channel if it is the answer to a JOIN."""
        for word in words:
            if self._states.get(fold(word)) is State.ASKED:
                self._change(word, State.REFUSED)
                return word
        return None

    def _change(self, channel: str, state: State) -> None:
        if fold(channel) in self._states:
            self._states[fold(channel)] = state
