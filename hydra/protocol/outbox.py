"""The order of effects: no message leaves before the row that it rests on (docs/protocols/hydra.md, "Stored state").

No I/O. Until a write is answered, own messages after it are held back. Other nodes' messages are relayed meanwhile, and
leaving IRC never waits.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from hydra.protocol.effects import ConnectIrc, Effect, LeaveIrc, Persist, Say, StoredNode

#: Effects held back for a disk that does not answer; then the node gives up its links.
MAX_HELD: Final = 10_000


class Outbox:
    """Collects the effects of events."""

    def __init__(self, written: StoredNode) -> None:
        """`written` is the row on disk."""
        self._ready: list[Effect] = []
        self._held: deque[tuple[int, Effect]] = deque()
        self._asked = 0
        self._answered = 0
        self._written = written

    def persist(self, stored: StoredNode) -> None:
        """Write the row before any effect added from now on by `say`. An unchanged row is not written again."""
        if stored == self._written:
            return
        self._written = stored
        self._asked += 1
        self._ready.append(Persist(self._asked, stored))

    def say(self, effect: Effect) -> None:
        """Release an effect once all writes so far are on disk."""
        if self._answered == self._asked:
            self._ready.append(effect)
        else:
            self._held.append((self._asked, effect))

    def at_once(self, effect: Effect) -> None:
        """Release an effect now."""
        if type(effect) is LeaveIrc:
            self._held = deque(each for each in self._held if type(each[1]) not in (ConnectIrc, Say))
        self._ready.append(effect)

    def persisted(self, number: int) -> None:
        """The writes up to this number are on disk."""
        self._answered = max(self._answered, number)
        while self._held and self._held[0][0] <= self._answered:
            self._ready.append(self._held.popleft()[1])

    @property
    def overfull(self) -> bool:
        """Whether too many effects are held back."""
        return len(self._held) > MAX_HELD

    def forget_held(self) -> None:
        """Discard the effects held back."""
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
