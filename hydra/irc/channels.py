"""The channels of a connection and their states. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from hydra.irc.casemapping import fold


class ChannelState(Enum):
    """The state of a channel."""

    ASKED = auto()
    """JOIN was sent, and not answered yet."""
    REFUSED = auto()
    """Refused, not answered, or removed by the server; to be tried again."""
    JOINED = auto()
    LEFT = auto()
    """Left by a node's PART: not joined again on this connection."""


class Channels:
    """The wanted channels of one connection."""

    def __init__(self, wanted: Iterable[str]) -> None:
        """`wanted` has `#name` or `#name key`."""
        self._joins = {fold(each.partition(" ")[0]): each for each in wanted}
        self._states = dict.fromkeys(self._joins, ChannelState.REFUSED)
        #: Why the server has refused or removed this client last.
        self._reasons: dict[str, str] = {}

    def settled(self) -> bool:
        """Whether every JOIN has its answer."""
        return ChannelState.ASKED not in self._states.values()

    def ask(self) -> list[str]:
        """The JOINs of all refused channels."""
        return [f"JOIN {self._joins[name]}" for name in self._change_all(ChannelState.REFUSED, ChannelState.ASKED)]

    def give_up(self) -> list[str]:
        """Count unanswered channels as refused; returns their names."""
        return self._change_all(ChannelState.ASKED, ChannelState.REFUSED)

    def _change_all(self, before: ChannelState, after: ChannelState) -> list[str]:
        names = [name for name, state in self._states.items() if state is before]
        self._states |= dict.fromkeys(names, after)
        return names

    def refused(self, words: Iterable[str], reason: str = "") -> str | None:
        """The channel if an error with these words answers its JOIN, else None."""
        for word in words:
            if self._states.get(fold(word)) is ChannelState.ASKED:
                self.change(word, ChannelState.REFUSED, reason)
                return word
        return None

    def change(self, channel: str, state: ChannelState, reason: str = "") -> None:
        """The server has let this client into a channel, removed it, or it has left by itself."""
        if fold(channel) in self._states:
            self._states[fold(channel)] = state
            self._reasons[fold(channel)] = reason

    def awaited(self, names: Iterable[str]) -> str | None:
        """Why a line to these has to wait: one is a wanted channel that this client is not in at the moment."""
        for name in names:
            if self._states.get(fold(name)) in (ChannelState.ASKED, ChannelState.REFUSED):
                return f"not in {name}: {self._reasons.get(fold(name)) or 'the server has not answered JOIN'}"
        return None
