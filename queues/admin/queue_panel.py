"""The state of queues on their pages: the figures of a list, and the upper part of one queue's page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import DEFAULT_DB_ALIAS, OperationalError
from django.http import HttpRequest
from django.urls import reverse

from queues.admin.charts import format_number, format_rate
from queues.admin.columns import time_ago
from queues.admin.find import find_address
from queues.admin.history import asked_span, history, history_charts
from queues.admin.reasons import reasons_address
from queues.formats.times import duration
from queues.models import Queue
from queues.operations.overview import QueueState, oldest_ready, read_queues
from queues.operations.queue_page import ConsumerState, queue_details
from queues.store.counts import QueueCounts
from queues.store.queries import query_within
from queues.store.samples import SPANS, SPARK, read_series

#: Milliseconds that a statement may take, and the one that looks for first messages.
LIMIT, OLDEST_LIMIT = 2000, 500


@dataclass(frozen=True, slots=True)
class ListFigures:
    """One queue's line in the list."""

    counts: QueueCounts
    in_rate: float = 0.0
    out_rate: float = 0.0
    age: str = "-"
    consumers: str = "-"
    #: Ready and delayed messages within the last hour.
    depth: list[float | None] = field(default_factory=list)


NO_FIGURES = ListFigures(QueueCounts())


def list_figures(ids: Sequence[int], using: str = DEFAULT_DB_ALIAS) -> dict[int, ListFigures]:
    """The lines of a page of queues; four queries, none of which counts messages."""
    states = read_queues(ids, using, LIMIT)
    ages, series = _ages(ids, using), read_series(ids, SPARK, time.time(), using)
    workers: dict[int, int] = dict(query_within("list_workers", using, LIMIT, queues=list(ids)))
    return {
        id: ListFigures(
            state.counts, state.in_rate, state.out_rate, _age(ages, id), _consumers(state, workers.get(id, 0)),
            [_sum(ready, delayed) for ready, delayed in zip(series[id].ready, series[id].delayed, strict=True)],
        )
        for id, state in states.items()
    }  # fmt: skip


def _ages(ids: Sequence[int], using: str) -> dict[int, float] | None:
    """The ages of the first ready messages; None if they are hard to find, as while vacuum is held back."""
    try:
        return oldest_ready(ids, using, OLDEST_LIMIT)
    except OperationalError:
        return None


def _age(ages: Mapping[int, float] | None, id: int) -> str:
    if ages is None:
        return "unknown"
    return duration(ages[id]) if id in ages else "-"


def _consumers(state: QueueState, workers: int) -> str:
    parts = [f"nodes: {state.nodes}" if state.nodes else "", f"workers: {workers}" if workers else ""]
    return ", ".join(filter(None, parts)) or "-"


def _sum(*figures: float | None) -> float | None:
    known = [figure for figure in figures if figure is not None]
    return sum(known) if known else None


def _rows(consumers: Iterable[ConsumerState]) -> list[dict[str, Any]]:
    return [
        {
            "consumer": one, "address": reverse(f"admin:{one.page[0]}", args=[one.page[1]]),
            "since": time_ago(one.since),
        }
        for one in consumers
    ]


def queue_panel(queue: Queue, request: HttpRequest, using: str = DEFAULT_DB_ALIAS) -> dict[str, Any]:
    """The context of a queue's page above its settings; five queries."""
    now, span = time.time(), asked_span(request)
    state, ages = read_queues([queue.pk], using, LIMIT).get(queue.pk), _ages([queue.pk], using)
    counts = QueueCounts() if state is None else state.counts
    details = queue_details(queue, counts.leased, using)
    series = read_series([queue.pk], SPANS[span], now, using)[queue.pk]
    dead = f"{format_number(counts.settled)} messages ever left"
    if details.moved is not None:
        target, moved = details.moved
        dead = f"{format_number(moved)} ever went to {target}"
    return {
        "figures": [
            ("In", format_rate(0 if state is None else state.in_rate), f"{format_number(counts.published)} ever", ""),
            (
                "Out", format_rate(0 if state is None else state.out_rate),
                f"{format_number(counts.completed)} ever acknowledged", "",
            ),
            (
                "Ready", format_number(counts.ready), f"{format_number(counts.delayed)} delayed",
                find_address(queue.name, "ready"),
            ),
            ("Oldest", _age(ages, queue.pk), "first ready message", ""),
            ("Unacknowledged", format_number(counts.leased), "with consumers", find_address(queue.name, "leased")),
            ("Dead letters", format_number(counts.dead), dead, reasons_address(queue.name)),
        ],
        "charts": history(history_charts(series, SPANS[span], now)[:2], request, span, queue.name, using),
        "span": span, "spans": {key: one.label for key, one in SPANS.items()},
        "consumers": _rows(details.consumers), "line": _rows(details.line),
        "counts": counts,
    }  # fmt: skip
