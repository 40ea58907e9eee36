"""The order of effects: what must be on disk before something leaves (docs/protocols/hydra.md, "What is on disk").

No I/O. While a write is not answered, everything that was said after it is held back. What others said is relayed
meanwhile, and leaving IRC waits for nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hydra.protocol.effects import ConnectIrc, Effect, LeaveIrc, Persist, Say, Stored

MAX_HELD: Final = 10_000
"""Effects held back for a disk that does not answer; then the node had better be dropped."""


class Outbox:
    """Collects the effects of one event after the other."""

    __slots__ = ("_answered", "_asked", "_held", "_ready", "_written")

    def __init__(self, written: Stored) -> None:
        """`written` is what is on disk now."""
        self._ready: list[Effect] = []
        self._held: deque[tuple[int, Effect]] = deque()
        self._asked = 0
        self._answered = 0
        self._written = written

    def persist(self, stored: Stored) -> None:
        """Have this written; nothing that is said from now on leaves before. What is the same is not written again."""
        if stored == self._written:
            return
        self._written = stored
        self._asked += 1
        self._ready.append(Persist(self._asked, stored))

    def say(self, effect: Effect) -> None:
        """Let this leave as soon as everything is on disk that was to be written up to now."""
        if self._answered == self._asked:
            self._ready.append(effect)
        else:
            self._held.append((self._asked, effect))

    def at_once(self, effect: Effect) -> None:
        """Let this leave now."""
        if type(effect) is LeaveIrc:
            self._held = deque(each for each in self._held if type(each[1]) not in (ConnectIrc, Say))
        self._ready.append(effect)

    def persisted(self, number: int) -> None:
        """The write with this number is on disk, and so are those before it."""
        self._answered = max(self._answered, number)
        while self._held and self._held[0][0] <= self._answered:
            self._ready.append(self._held.popleft()[1])

    @property
    def overfull(self) -> bool:
        """Whether more is held back than is reasonable."""
        return len(self._held) > MAX_HELD

    def forget_held(self) -> None:
        """Give up what is held back."""
        self._held.clear()

    def __deepcopy__(self, memo: object) -> Outbox:
        copy = Outbox(self._written)
        copy._ready, copy._held = self._ready.copy(), self._held.copy()
        copy._asked, copy._answered = self._asked, self._answered
        return copy

    def take(self) -> list[Effect]:
        """Return the effects collected since the last call."""
        ready, self._ready = self._ready, []
        return ready
