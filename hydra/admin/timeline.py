"""The timeline above the list of nodes: leaders, and holders of the IRC connection."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest

from hydra.models import Tenure
from queues.admin.charts import Stretch, Timeline
from queues.admin.history import asked_span
from queues.formats.times import clock, duration, zone
from queues.store.samples import SPANS

#: Tenures in a timeline, the newest.
MAX_SHOWN = 500
KINDS = (Tenure.Kind.LEAD, Tenure.Kind.IRC)


def timeline_context(request: HttpRequest) -> dict[str, Any]:
    """The template's context. Makes one query."""
    name = asked_span(request)
    return {"timeline": _chart(name), "span": name, "spans": {key: span.label for key, span in SPANS.items()}}


def _chart(span_name: str) -> Timeline:
    span, now = SPANS[span_name], datetime.now(UTC)
    start = now - timedelta(seconds=span.width * span.places)
    tenures = list(Tenure.objects.filter(until__gte=start)[:MAX_SHOWN])
    first, last = start.timestamp(), now.timestamp()
    stretches = [
        Stretch(
            one.name, KINDS.index(Tenure.Kind(one.kind)), one.began_at.timestamp(), one.until.timestamp(), _words(one)
        )
        for one in sorted(tenures, key=lambda one: one.name)
    ]  # fmt: skip
    left_out = f" The newest {MAX_SHOWN:,} are shown." if len(tenures) == MAX_SHOWN else ""
    return Timeline(
        "tenures", f"Leaders and the IRC connection, {span.label} ({zone()})", _summary(tenures) + left_out,
        [str(kind.label) for kind in KINDS], stretches, first, last,
        ["From", "Until", "For", "Node", "", "Term"],
        [
            [
                clock(one.began_at), clock(one.until), _lasted(one), one.name, str(one.get_kind_display()),
                f"{one.term:,}",
            ]
            for one in tenures
        ],
    )  # fmt: skip


def _lasted(tenure: Tenure) -> str:
    return duration((tenure.until - tenure.began_at).total_seconds())


def _words(tenure: Tenure) -> str:
    when = f"from {clock(tenure.began_at)} until {clock(tenure.until)}"
    return f"{tenure.name} {tenure.get_kind_display()} in term {tenure.term:,} {when}"


def _summary(tenures: list[Tenure]) -> str:
    """The timeline in words."""
    if not tenures:
        return "No node led."
    terms, nodes = {one.term for one in tenures}, {one.name for one in tenures}
    named = ", ".join(sorted(nodes)[:10])
    return f"{len(terms):,} terms, nodes that led or held IRC: {named}. Last: {_words(tenures[0])}."
