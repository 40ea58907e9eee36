"""Rounds of figures of several systems, summed up: medians, ranges, and ratios of what was measured side by side."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from brokersite.rigs.bench.columns import Verified
from brokersite.rigs.bench.measures import Figures
from queues.management.shell import table


class Column(NamedTuple):
    """A figure as it is shown."""

    heading: str
    decimals: int = 0


#: The figures of each measurement; those with a decimal are microseconds of CPU a message.
COLUMNS: Final[Mapping[str, Mapping[str, Column]]] = {
    "latency": {
        "confirm_alone_p50_us": Column("one in flight: confirm p50 µs"),
        "deliver_alone_p50_us": Column("one in flight: deliver p50 µs"),
        "confirm_p50_us": Column("at the rate: confirm p50 µs"),
        "confirm_p99_us": Column("p99"),
        "confirm_p999_us": Column("p99.9"),
        "deliver_p50_us": Column("at the rate: deliver p50 µs"),
        "deliver_p99_us": Column("p99"),
        "deliver_p999_us": Column("p99.9"),
    },
    "throughput": {
        "published_per_s": Column("published/s"),
        "end_to_end_per_s": Column("end to end/s"),
        "generator_cpu_us": Column("CPU µs: generator", 1),
        "broker_cpu_us": Column("broker", 1),
        "postgresql_cpu_us": Column("PostgreSQL", 1),
    },
    "backlog": {"filled_per_s": Column("filled/s"), "drained_per_s": Column("drained/s")},
    "fanout": {
        "end_to_end_per_s": Column("deliveries/s"),
        "message_ms": Column("ms a message", 2),
        "generator_cpu_us": Column("CPU µs a delivery: generator", 2),
        "broker_cpu_us": Column("broker", 2),
        "postgresql_cpu_us": Column("PostgreSQL", 2),
    },
    "connections": {
        "opened_per_s": Column("opened/s"),
        "confirmed_per_s": Column("confirmed/s"),
        "confirm_p50_us": Column("confirm p50 µs"),
        "confirm_p99_us": Column("p99"),
        "confirm_p999_us": Column("p99.9"),
    },
    "stream": {
        "published_per_s": Column("published/s"),
        "end_to_end_per_s": Column("end to end/s"),
        "publisher_cpu_us": Column("CPU µs: publisher", 1),
        "consumer_cpu_us": Column("consumer", 1),
    },
    "confirms": {"confirmed_per_s": Column("confirmed/s")},
    "alone": {
        "confirm_p50_us": Column("one in flight: confirm p50 µs"),
        "deliver_p50_us": Column("deliver p50 µs"),
    },
    "workers": {"jobs_per_s": Column("jobs/s from a backlog")},
    "memory": {
        "backlog_mib": Column("MiB with a backlog"),
        "idle_mib": Column("MiB with idle consumers"),
        "idle_cpu_percent": Column("% CPU", 1),
    },
    "celery": {
        "calls_per_s": Column("calls/s"),
        "through_per_s": Column("tasks/s"),
        "backlog_per_s": Column("tasks/s from a backlog"),
    },
    "etl": {
        "copy_rows_per_s": Column("COPY TO rows/s"),
        "export_rows_per_s": Column("export rows/s"),
        "run_rows_per_s": Column("whole run rows/s"),
    },
}


class Rounds:
    """The figures of each system in each round, and the system that its ratios refer to."""

    def __init__(self) -> None:
        self._played: dict[str, dict[str, list[Figures]]] = {}
        self._against: dict[str, str] = {}

    def add(self, measure: str, system: str, figures: Figures, against: str | None = None) -> None:
        """One measurement; ratios are the first system's figures, or those of `against`, over this one's."""
        played = self._played.setdefault(measure, {})
        played.setdefault(system, []).append(figures)
        self._against[system] = against or next(iter(played))

    def verified(self) -> dict[str, dict[str, int]]:
        """By system, how many messages were verified, and how many were lost, came twice, and so on."""
        counts: dict[str, dict[str, int]] = {}
        for systems in self._played.values():
            for system, played in systems.items():
                mine = counts.setdefault(system, dict.fromkeys(("messages", *Verified._fields), 0))
                for name in mine:
                    mine[name] += int(sum(one.get(name, 0) for one in played))
        return counts

    def verdict(self) -> str | None:
        """The fault that fails the run, or None. A repetition is allowed, and a repeated message comes out of order."""
        for system, counts in self.verified().items():
            if counts["lost"] or counts["foreign"] or (counts["unordered"] and not counts["duplicates"]):
                return f"Messages were lost, foreign or out of order: {system}, {counts}."
        return None

    def summary(self) -> dict[str, Any]:
        """{measurement: {system: {figure: median, lowest, highest, ratio and its range}}}."""
        return {
            measure: {system: self._system(measure, system) for system in systems}
            for measure, systems in self._played.items()
        }

    def _system(self, measure: str, system: str) -> dict[str, Any]:
        played = self._played[measure]
        mine, first = played[system], played.get(self._against[system], [])
        summed: dict[str, Any] = {}
        for name in COLUMNS[measure]:
            values = [one[name] for one in mine if name in one]
            if not values:
                continue
            summed[name] = _spread(values)
            ratios = [a[name] / b[name] for a, b in zip(first, mine, strict=False) if a.get(name) and b.get(name)]
            if ratios and self._against[system] != system:
                summed[name]["ratio"] = _spread(ratios)
        return summed

    def tables(self, markdown: bool) -> list[str]:
        """A table for each measurement."""
        texts = []
        for measure, systems in self.summary().items():
            names = [name for name in COLUMNS[measure] if any(name in one for one in systems.values())]
            heads = [measure, *(COLUMNS[measure][name].heading for name in names)]
            rows = [
                [system, *(_cell(one.get(name), COLUMNS[measure][name].decimals) for name in names)]
                for system, one in systems.items()
            ]
            texts.append(_markdown(heads, rows) if markdown else table(heads, rows))
        return texts


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Rounded to four digits of the largest, or to whole numbers, but never to nothing."""
    digits = max(0, 3 - math.floor(math.log10(max(values) or 1)))
    median, lowest, highest = statistics.median(values), min(values), max(values)
    return {"median": round(median, digits), "lowest": round(lowest, digits), "highest": round(highest, digits)}


def _cell(figure: Mapping[str, Any] | None, decimals: int) -> str:
    """The median and, in brackets, the range; then the ratio with its range."""
    if figure is None:
        return "-"
    text = f"{figure['median']:,.{decimals}f}"
    if figure["lowest"] != figure["highest"]:
        text += f" ({figure['lowest']:,.{decimals}f} to {figure['highest']:,.{decimals}f})"
    if ratio := figure.get("ratio"):
        text += f" / {ratio['median']:.2f}"
        if ratio["lowest"] != ratio["highest"]:
            text += f" ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
    return text


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
