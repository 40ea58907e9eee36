"""The times for which a node led a term, and for which it held IRC, as its status tells them. No I/O.

A tenure counts no longer than the node's lease: a process that stood still led no more, whatever it finds when it goes
on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hydra.snapshot import NodeSnapshot

#: Ended tenures that wait to be written; then the oldest are dropped.
MAX_WAITING: Final = 100
LEAD, IRC = "lead", "irc"


@dataclass(slots=True)
class TenureRow:
    """One of them. Times are Unix times of the database."""

    kind: str
    term: int
    began: float
    until: float


class Tenures:
    """The tenures of one process."""

    def __init__(self) -> None:
        self._open: dict[str, TenureRow] = {}
        self._ended: deque[TenureRow] = deque(maxlen=MAX_WAITING)

    def follow(self, status: NodeSnapshot, now: float, lease_until: float | None) -> None:
        """The node is like this at a moment; `lease_until` is the end of its lease, None unless it leads."""
        held = {LEAD} if status.role == "leading" else set()
        if status.irc == "on":
            held.add(IRC)
        for kind in (LEAD, IRC):
            tenure = self._open.get(kind)
            if tenure is not None and (kind not in held or tenure.term != status.term):
                self._ended.append(self._open.pop(kind))
                tenure = None
            if kind in held:
                if tenure is None:
                    tenure = self._open[kind] = TenureRow(kind, status.term, now, now)
                tenure.until = max(tenure.began, now if lease_until is None else min(now, lease_until))

    def __iter__(self) -> Iterator[TenureRow]:
        """The tenures to write: the ended ones, and those that go on."""
        yield from self._ended
        yield from self._open.values()

    def written(self, count: int) -> None:
        """The first so many of them are written; of these the ended ones are done with."""
        for _ in range(min(count, len(self._ended))):
            self._ended.popleft()
