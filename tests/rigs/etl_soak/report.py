"""The plan of a soak, and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from tests.rigs.etl_soak.checking import Comparison
from tests.rigs.etl_soak.exports import KillStage
from tests.rigs.etl_soak.watching import LongestHeld


@dataclass(frozen=True, slots=True)
class SoakPlan:
    """At least so many messages; whole runs, kills in each stage, and pairs of phases at full pace."""

    messages: int = 200_000
    runs: int = 20
    kills: int = 2
    pairs: int = 5
    seed: int = 0
    #: Seconds after which nothing new is begun.
    seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Settled messages a second beside a run and alone, for so many seconds each."""

    beside: float
    alone: float
    seconds: float

    @property
    def ratio(self) -> float:
        return self.beside / self.alone if self.alone else 0.0

    def __str__(self) -> str:
        return f"{self.beside:,.0f}/s beside a run, {self.alone:,.0f}/s without, ratio {self.ratio:.2f}"


@dataclass(slots=True)
class SoakReport:
    """The results; `comparison` is the verdict."""

    plan: SoakPlan
    runs: int = 0
    late_rows: int = 0
    published: int = 0
    settled: int = 0
    dead: int = 0
    held_rows: int = 0
    held_transactions: int = 0
    seconds: float = 0.0
    kills: list[str] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    held: LongestHeld = field(default_factory=LongestHeld)
    comparison: Comparison = field(default_factory=lambda: Comparison({}, {}, ("Nothing was compared.",)))

    @property
    def passed(self) -> bool:
        """Whether the output has exactly what the archive has, and that is something."""
        return not self.comparison.differences and self.comparison.rows > 0

    @property
    def ratio(self) -> float | None:
        """The median of the pairs'."""
        return median(pair.ratio for pair in self.pairs) if self.pairs else None

    @property
    def figures(self) -> dict[str, int | float | str | None]:
        """By name."""
        return {
            "messages_published": self.published, "messages_settled": self.settled, "dead_letters_left": self.dead,
            "whole_runs": self.runs, "whole_runs_planned": self.plan.runs + self.plan.pairs + 1,
            "killed_runs": len(self.kills), "killed_runs_planned": self.plan.kills * len(KillStage),
            "transactions_held_across_runs": self.held_transactions, "rows_of_these": self.held_rows,
            "rows_of_earlier_days": self.late_rows, "days_and_queues_compared": len(self.comparison.archive),
            "rows_compared": self.comparison.rows,
            "longest_transaction_seconds": round(self.held.transaction, 3),
            "longest_snapshot_seconds": round(self.held.snapshot, 3),
            "longest_snapshot_of_the_hot_table_seconds": round(self.held.hot, 3), "looks": self.held.looks,
            "settled_per_second_beside_a_run": _median([pair.beside for pair in self.pairs]),
            "settled_per_second_alone": _median([pair.alone for pair in self.pairs]),
            "ratio": None if self.ratio is None else round(self.ratio, 3), "seconds": round(self.seconds, 1),
        }  # fmt: skip

    def lines(self) -> Sequence[str]:
        """The figures and the verdict, a line each."""
        told = [f"{name.replace('_', ' ').ljust(46)}{_text(value):>14}" for name, value in self.figures.items()]
        told += [f"DIFFERS: {difference}" for difference in self.comparison.differences]
        return [*told, "passed" if self.passed else "FAILED"]


def _median(values: list[float]) -> int | None:
    return round(median(values)) if values else None


def _text(value: object) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
