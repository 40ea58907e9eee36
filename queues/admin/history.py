"""The history of queues as charts: rates, depths and dead letters over an hour, a day or a month."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from queues.admin.chart_page import ChartPageAdmin
from queues.admin.charts import LARGE, Chart, Frame, Series, columns, format_number, format_rate, format_size, lines
from queues.models import Queue, QueueSample
from queues.store.samples import ALL_QUEUES, SPANS, Span, TimeSeries, read_series, span_start

DEFAULT_SPAN = "hour"


def asked_span(request: HttpRequest) -> str:
    """The span that `?span=` names, or the hour."""
    given = request.GET.get("span", "")
    return given if given in SPANS else DEFAULT_SPAN


def history_charts(series: TimeSeries, span: Span, now: float, frame: Frame = LARGE) -> list[Chart]:
    """The charts of a series that was read over this span at a Unix time."""
    places = _places(span, now)
    return [
        lines(
            "rates", f"Messages in and out a second, {span.label} (UTC)", places,
            [Series("in", series.incoming), Series("out", series.outgoing)], format_rate, frame,
        ),
        lines(
            "depth", f"Messages held, {span.label}", places,
            [
                Series("ready", series.ready), Series("unacknowledged", series.leased),
                Series("delayed", series.delayed), Series("dead letters", series.dead),
            ],
            format_number, frame,
        ),
    ]  # fmt: skip


def _all_charts(queue: int, span: Span) -> list[Chart]:
    """The charts of the history's page: also dead letters that came, and of all queues the size of the database."""
    now = time.time()
    series, places = read_series([queue], span, now)[queue], _places(span, now)
    charts = history_charts(series, span, now)
    charts.append(columns("died", "Messages that became dead letters", places, [Series("dead letters", series.died)]))
    if queue == ALL_QUEUES:
        charts.append(
            lines("size", "Size of the database", places, [Series("bytes", series.database_bytes)], format_size)
        )
    return charts


def _places(span: Span, now: float) -> list[str]:
    start = span_start(span, now)
    ends = (datetime.fromtimestamp(start + (n + 1) * span.width, UTC) for n in range(span.places))
    return [end.strftime(span.form) for end in ends]


@admin.register(QueueSample)
class QueueSampleAdmin(ChartPageAdmin):
    title = "History"
    template = "history"

    def charts(self, request: HttpRequest) -> dict[str, Any]:
        span, name = asked_span(request), request.GET.get("queue", "").strip()
        queue = Queue.objects.filter(name=name).values_list("pk", flat=True).first() if name else ALL_QUEUES
        return {
            "queue": name, "found": queue is not None, "spans": {key: one.label for key, one in SPANS.items()},
            "span": span, "charts": [] if queue is None else _all_charts(queue, SPANS[span]),
        }  # fmt: skip
