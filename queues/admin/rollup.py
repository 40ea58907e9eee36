"""Traffic of the queues by the hour, as charts, from the figures that ETL runs have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db import DEFAULT_DB_ALIAS
from django.db.models import Aggregate, Count, Max, QuerySet, Sum
from django.http import HttpRequest
from django.urls import reverse
from django.utils.dateparse import parse_datetime

from queues.admin.chart_page import ChartPageAdmin
from queues.admin.charts import BarChart, Charts, Series, TimeChart
from queues.formats.times import clock
from queues.models import Rollup
from queues.store.queries import query

#: Spans of the page, in hours.
SPANS = {24: "last 24 hours", 168: "last 7 days"}
#: Columns of a rollup that say how messages ended.
OUTCOMES = ("acknowledged", "expired", "purged", "dropped", "removed", "dead_letters")
LATENCIES = ("deliver_p50", "deliver_p95", "deliver_p99", "settle_p50", "settle_p95", "settle_p99")
#: Queues with a bar of their own.
MAX_QUEUES = 15
#: Reasons, producers and consumers with a bar, by the names of their charts: title, unit.
MAX_NAMES = 10
TOPS = {
    "reasons": ("Dead letters by reason", "dead letters"),
    "producers": ("Keys that published most", "messages"),
    "consumers": ("Keys that acknowledged most", "messages"),
}

HOUR = timedelta(hours=1)
Figures = Mapping[str, Any]


def span(until: datetime, hours: int) -> list[datetime]:
    """The hours, the last one the one in which `until` is."""
    last = until.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return [last - n * HOUR for n in reversed(range(hours))]


def rollup_charts(hours: Sequence[datetime], queue: str = "") -> list[TimeChart | BarChart]:
    """The charts of some hours in a row, of one queue or of all; two queries."""
    found = _found(hours, queue)
    sums = {name: Sum(name) for name in OUTCOMES}
    rows = _by_hour(found, hours, queues=Count("id"), **sums, **{name: Max(name) for name in LATENCIES})
    by_queue = list(found.order_by().values("queue").annotate(**sums))
    slowest = "" if queue else ", the slowest queue's"
    return [
        _columns("messages", "Messages by the hour in which they ended", hours, _series(rows, OUTCOMES)),
        _lines("settle", f"From publish to acknowledgement{slowest}", hours, _percentiles(rows, "settle")),
        _lines("deliver", f"From publish to the last delivery{slowest}", hours, _percentiles(rows, "deliver")),
        _outcomes_by_queue(by_queue),
    ]


def detail_charts(hours: Sequence[datetime], queue: str = "") -> list[TimeChart | BarChart]:
    """The other figures of the rollups: bytes and failures by the hour, reasons, producers, consumers; two queries."""
    rows = _by_hour(_found(hours, queue), hours, attempts=Sum("attempts"), bytes=Sum("bytes"))
    tops: dict[str, list[tuple[str, int]]] = {kind: [] for kind in TOPS}
    asked = {"since": hours[0], "until": hours[-1], "queue": queue, "most": MAX_NAMES}
    for kind, name, count in query("rollup_tops", DEFAULT_DB_ALIAS, **asked):
        tops[kind].append((name, count))
    return [
        _columns("bytes", "Bytes of payloads", hours, _series(rows, ["bytes"]), "bytes"),
        _columns("attempts", "Deliveries without success", hours, _series(rows, ["attempts"])),
        *(
            BarChart(kind, title, [Series(unit, [count for _, count in top])], "count", [name for name, _ in top])
            for (kind, (title, unit)), top in zip(TOPS.items(), tops.values(), strict=True)
        ),
    ]


def rollup_address(hours: Sequence[datetime], queue: str = "") -> str:
    """The page of these charts, for the same hours at any time."""
    asked = {"hours": len(hours), "queue": queue, "until": hours[-1].isoformat()}
    return f"{reverse('admin:queues_rollup_changelist')}?{urlencode(asked)}"


def _columns(id: str, title: str, hours: Sequence[datetime], series: list[Series], unit: str = "count") -> TimeChart:
    return TimeChart(id, title, series, unit, *_period(hours), stacked=True)


def _lines(id: str, title: str, hours: Sequence[datetime], series: list[Series]) -> TimeChart:
    return TimeChart(id, title, series, "seconds", *_period(hours))


def _period(hours: Sequence[datetime]) -> tuple[list[float], float, float]:
    """The beginnings of hours, the first one, and the end of the last or, within it, now."""
    times = [hour.timestamp() for hour in hours]
    return times, times[0], min((hours[-1] + HOUR).timestamp(), datetime.now(UTC).timestamp())


def _found(hours: Sequence[datetime], queue: str = "") -> QuerySet[Rollup]:
    """The rollups of some hours in a row, of one queue or of all."""
    found = Rollup.objects.filter(hour__gte=hours[0], hour__lte=hours[-1])
    return found.filter(queue=queue) if queue else found


def _by_hour(found: QuerySet[Rollup], hours: Sequence[datetime], **figures: Aggregate) -> list[Figures]:
    """The figures of each hour; none where nothing was found."""
    by_hour = {row["hour"]: row for row in found.order_by().values("hour").annotate(**figures)}
    return [by_hour.get(hour, {}) for hour in hours]


def _outcomes_by_queue(rows: Sequence[Figures]) -> BarChart:
    ordered = sorted(rows, key=lambda row: (-sum(row[name] for name in OUTCOMES), row["queue"]))
    shown, others = ordered[:MAX_QUEUES], ordered[MAX_QUEUES:]
    names = [row["queue"] for row in shown]
    if others:
        names.append(f"{len(others)} others")
        shown.append({name: sum(row[name] for row in others) for name in OUTCOMES})
    return BarChart("queues", "Outcomes by queue", _series(shown, OUTCOMES), "count", names)


def _series(rows: Sequence[Figures], names: Sequence[str]) -> list[Series]:
    return [Series(name.replace("_", " "), [row.get(name, 0) for row in rows]) for name in names]


def _percentiles(rows: Sequence[Figures], name: str) -> list[Series]:
    return [Series(f"p{one}", [row.get(f"{name}_p{one}") for row in rows]) for one in (50, 95, 99)]


@admin.register(Rollup)
class RollupAdmin(ChartPageAdmin):
    title = "Charts"
    template = "rollup_charts"

    def charts(self, request: HttpRequest) -> dict[str, Any]:
        given = request.GET.get("hours", "")
        until = _moment(request.GET.get("until", ""))
        hours = span(until or datetime.now(UTC), int(given) if given in map(str, SPANS) else min(SPANS))
        queue = request.GET.get("queue", "")
        names = list(_found(hours).order_by("queue").values_list("queue", flat=True).distinct())
        drawn = [*rollup_charts(hours, queue), *detail_charts(hours, queue)]
        last = Rollup.objects.aggregate(last=Max("computed_at"))["last"]
        return {
            "queue": queue, "queues": names if queue in names or not queue else [queue, *names],
            "spans": SPANS, "hours": len(hours), "until": until and until.isoformat(),
            "charts": Charts(drawn, rollup_address(hours, queue)),
            "computed_at": last and clock(last, "%Y-%m-%d %H:%M %Z"),
        }  # fmt: skip


def _moment(text: str) -> datetime | None:
    """A moment that an address names; None: it names none."""
    try:
        found = parse_datetime(text)
    except ValueError:
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)
