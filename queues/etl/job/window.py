"""Which rows of the archive a run reads. Pure.

Ids and times say nothing of when a row became visible: transactions commit out of order and may stay open for long.
So each row has the number of its transaction (`xid`), and a run is the difference of two snapshots: it reads what the
later one sees and the earlier one does not. A transaction still open at the later one belongs to a later run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class TransactionSnapshot:
    """A `pg_current_snapshot()`: transactions below `xmax` have ended, but for those in `running`."""

    xmax: int
    running: frozenset[int] = frozenset()

    @classmethod
    def parse(cls, text: str) -> TransactionSnapshot:
        """Read `xmin:xmax:xid,xid`. Raises ValueError."""
        low, high, running = text.split(":")
        snapshot = cls(int(high), frozenset(map(int, running.split(","))) if running else frozenset())
        if not int(low) <= snapshot.xmax or any(not int(low) <= xid < snapshot.xmax for xid in snapshot.running):
            raise ValueError(text)
        return snapshot

    def sees(self, xid: int) -> bool:
        """Whether this transaction had ended; if it has committed, its rows are seen."""
        return xid < self.xmax and xid not in self.running


@dataclass(frozen=True, slots=True)
class Window:
    """The transactions that `after` sees and `before` does not; without `before` all that `after` sees.

    With `since`, a time in ISO 8601, also what was finished then or later, whether `before` sees it or not; in a first
    window nothing else.
    """

    before: TransactionSnapshot | None
    after: TransactionSnapshot
    since: str | None = None

    def has(self, xid: int) -> bool:
        """Whether rows of this transaction belong to the window, without regard to `since`."""
        return self.after.sees(xid) and not (self.before is not None and self.before.sees(xid))

    @property
    def low(self) -> int:
        """First transaction that is read in ranges."""
        return 0 if self.before is None or self.since is not None else self.before.xmax

    @property
    def stragglers(self) -> list[int]:
        """The window's transactions below `low`: those that ran when the last window was cut."""
        if self.before is None or self.since is not None:
            return []
        return sorted(xid for xid in self.before.running if self.has(xid))

    def predicates(self, bounds: Iterable[int]) -> list[str]:
        """SQL conditions, one per query. Together they cover the window, and no row meets two."""
        inner = sorted({bound for bound in bounds if self.low < bound < self.after.xmax})
        edges = [self.low, *inner, self.after.xmax]
        found = [self._range(low, high) for low, high in pairwise(edges) if low < high]
        if self.stragglers:
            found.append(f"xid in {_tuple(self.stragglers)}")
        return found

    def _range(self, low: int, high: int) -> str:
        parts = [f"xid >= {low} and xid < {high}"]
        parts += _unless_in(xid for xid in self.after.running if low <= xid < high)
        if self.since is not None:
            parts.append(self._again(low, high))
        return " and ".join(parts)

    def _again(self, low: int, high: int) -> str:
        """The part of a range that is new or was finished after `since`."""
        late = f"finished_at >= timestamptz '{self.since}'"
        if self.before is None:
            return late
        new = [f"xid >= {self.before.xmax}"] if high > self.before.xmax else []
        running = sorted(xid for xid in self.before.running if low <= xid < high)
        new += [f"xid in {_tuple(running)}"] if running else []
        return f"({' or '.join([*new, late])})"


def _unless_in(xids: Iterable[int]) -> list[str]:
    running = sorted(xids)
    return [f"xid not in {_tuple(running)}"] if running else []


def _tuple(numbers: Sequence[int]) -> str:
    return f"({', '.join(map(str, numbers))})"


def partition_bounds(sample: Iterable[tuple[int, float, float]], rows: float, size: float) -> list[int]:
    """Values that divide a sample into partitions of about `rows` rows and `size` bytes.

    The sample is of (value, rows it stands for, bytes it stands for), in any order.
    """
    bounds: list[int] = []
    seen_rows = seen_size = 0.0
    last = None
    for value, weight, weight_size in sorted(sample):
        if (seen_rows >= rows or seen_size >= size) and value != last:
            bounds.append(value)
            seen_rows = seen_size = 0.0
        seen_rows += weight
        seen_size += weight_size
        last = value
    return bounds
