"""The history of queues as charts: rates, depths and dead letters over a quarter of an hour to a month."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin
from django.db import DEFAULT_DB_ALIAS, OperationalError
from django.http import HttpRequest
from django.urls import reverse

from queues.admin.chart_page import ChartPageAdmin
from queues.admin.charts import Charts, Event, Series, TimeChart
from queues.models import Queue, QueueSample
from queues.store.queries import query_within
from queues.store.samples import ALL_QUEUES, SPANS, Figures, Span, TimeSeries, read_series, span_start

DEFAULT_SPAN = "hour"
#: What operators do to queues that is seen in their figures.
EVENTS = ("pause", "resume", "purge", "delete", "add", "change")
#: Events on a page, of each kind, and the milliseconds that it takes to find them at most.
MAX_EVENTS, EVENTS_LIMIT = 50, 500


def asked_span(request: HttpRequest) -> str:
    """The span that `?span=` names, or the hour."""
    given = request.GET.get("span", "")
    return given if given in SPANS else DEFAULT_SPAN


def history_charts(series: TimeSeries, span: Span, now: float) -> list[TimeChart]:
    """The charts of a series that was read over this span at a Unix time: rates, depth, dead letters that came, and
    where it is known the size of the database."""
    times, begin = span.times(now), span_start(span, now)

    def chart(id: str, title: str, unit: str, figures: dict[str, Figures], stacked: bool = False) -> TimeChart:
        shown = [Series(name, values) for name, values in figures.items()]
        return TimeChart(id, f"{title}, {span.label}", shown, unit, times, begin, times[-1], stacked)

    rates = {"in": series.incoming, "acknowledged": series.acknowledged, "left otherwise": series.otherwise}
    held = {
        "ready": series.ready, "unacknowledged": series.leased, "delayed": series.delayed, "dead letters": series.dead,
    }  # fmt: skip
    charts = [
        chart("rates", "Messages in and out a second", "rate", rates),
        chart("depth", "Messages held", "count", held),
        chart("died", "Messages that became dead letters", "count", {"dead letters": series.died}, stacked=True),
    ]
    if any(series.database_bytes):
        charts.append(chart("size", "Size of the database", "bytes", {"size": series.database_bytes}))
    return charts


def history(
    charts: list[TimeChart], request: HttpRequest, span: str, queue: str | None = None, using: str = DEFAULT_DB_ALIAS
) -> Charts:
    """Charts over a span as a page shows them, of one queue or of all: they follow the broker, and have the events that
    the user may see."""
    asked = {"span": span} | ({} if queue is None else {"queue": queue})
    address = f"{reverse('admin:queues_queuesample_changelist')}?{urlencode(asked)}"
    may_see = bool(charts) and request.user.has_perm("queues.view_auditrow")
    events = _events(charts[0].begin, queue, using) if may_see else []
    return Charts(charts, address, live=True, events=events)


def _events(start: float, queue: str | None, using: str) -> list[Event]:
    """What was done to a queue or to any since a Unix time; nothing if that takes long to find."""
    asked = {"start": start, "queue": queue, "events": list(EVENTS), "most": MAX_EVENTS}
    try:
        rows = query_within("chart_events", using, EVENTS_LIMIT, **asked)
    except OperationalError:
        return []
    return [Event(at, f"{what} {which}{' by ' if by else ''}{by}") for at, what, which, by in rows]


@admin.register(QueueSample)
class QueueSampleAdmin(ChartPageAdmin):
    title = "History"
    template = "history"

    def may_read(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) or request.user.has_perm("queues.view_queue")

    def charts(self, request: HttpRequest) -> dict[str, Any]:
        name, span, now = request.GET.get("queue", "").strip() or None, asked_span(request), time.time()
        queue = Queue.objects.filter(name=name).values_list("pk", flat=True).first() if name else ALL_QUEUES
        drawn = []
        if queue is not None:
            drawn = history_charts(read_series([queue], SPANS[span], now)[queue], SPANS[span], now)
        return {
            "queue": name or "", "found": queue is not None, "span": span,
            "spans": {key: one.label for key, one in SPANS.items()}, "charts": history(drawn, request, span, name),
        }  # fmt: skip
