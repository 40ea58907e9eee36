"""Columns and charts of the pages of ETL runs: figures in words, progress."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.contrib import admin
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queues.admin import charts
from queues.admin.columns import anchor, column
from queues.admin.etl_progress import in_order, progress_of, run_seconds
from queues.admin.rollup import rollup_address, rollup_charts, span
from queues.formats.times import clock, relative
from queues.models import EtlRun, EtlState

#: Hours before a run's end that its page shows.
HOURS = 24
#: The exported tables, in the order of the page.
TABLES = ("messages", "audit", "live")
#: Characters of a reason that the list shows.
SHORT = 80
BAR, PROGRESS = "admin/queues/etlrun/bar.html", "admin/queues/etlrun/progress.html"


class RunColumns:
    """Columns of the list, and fields of a run's page."""

    number_shown = column("run", lambda run: f"Run {run.pk}")

    @admin.display(description="state")
    def state_shown(self, run: EtlRun) -> SafeString:
        words = "cancelling" if run.cancelling and not run.is_finished else run.get_state_display()
        bad = run.state in (EtlState.FAILED, EtlState.LOST)
        return format_html('<strong class="error">{}</strong>' if bad else "{}", words)

    def started(self, run: EtlRun) -> SafeString:
        if run.started_at is None:
            return format_html("{}", "-")
        ago = relative(run.started_at, datetime.now(UTC))
        return format_html('<span title="{}">{}</span>', clock(run.started_at, "%Y-%m-%d %H:%M:%S %Z"), ago)

    @admin.display(description="transactions")
    def window(self, run: EtlRun) -> str:
        if not run.window_to:
            return "-"
        before = run.window_from.partition(":")[0]
        return f"{before or 'the beginning'} to {run.window_to.split(':')[1]}"

    rows = column("rows in → out", lambda run: f"{run.rows_in:,} → {run.rows_out:,}")
    rows_in_shown = column("rows in", lambda run: _counts(run, "rows_in"))
    rows_out_shown = column("rows out", lambda run: _counts(run, "rows_out"))
    size = column("written", lambda run: filesizeformat(run.bytes))

    @admin.display(description="duration")
    def took(self, run: EtlRun) -> str:
        taken = run_seconds(run)
        return "-" if taken is None else charts.format_seconds(taken)

    how_far = column("progress", lambda run: render_to_string(BAR, {"progress": progress_of(run)}))

    def problem(self, run: EtlRun) -> SafeString:
        text = run.error or (f"{len(run.warnings)} warnings" if run.warnings else "-")
        return format_html('<span title="{}">{}</span>', run.error, text if len(text) <= SHORT else f"{text[:SHORT]}…")

    progress = column(
        "progress", lambda run: render_to_string(PROGRESS, {"run": run, "progress": progress_of(run, log=True)})
    )

    restart_shown = column(
        "restart of", lambda run: anchor(page(id), f"run {id}") if (id := run.restart_of_id) is not None else "-"
    )

    @admin.display(description="audit chains")
    def audit(self, run: EtlRun) -> str:
        verdicts = run.figures.get("audit", {})
        broken = [
            f"{name} was not read to its end" if "error" in one else f"{name} is broken at seq {one['broken_seq']}"
            for name, one in verdicts.items()
            if not one["ok"]
        ]
        if broken or not verdicts:
            return "; ".join(broken) or "not verified"
        return f"{len(verdicts)} right, {sum(one['rows'] for one in verdicts.values()):,} rows"

    warnings_shown = column("warnings", lambda run: "\n".join(run.warnings) or "-")

    @admin.display(description="process")
    def looked_after(self, run: EtlRun) -> str:
        if run.pid is None or run.heartbeat_at is None:
            return "none"
        return f"{run.pid} on {run.host}, last sign of life {relative(run.heartbeat_at, datetime.now(UTC))}"

    @admin.display(description="figures")
    def charts(self, run: EtlRun) -> str:
        if run.ended_at is None:
            return "They appear when the run has ended."
        drawn = [charts.Charts(_run_charts(run))]
        if run.state == EtlState.SUCCEEDED:
            # Rounded up: an hour that has just begun belongs to those before the end.
            hours = span(run.ended_at + timedelta(seconds=1), HOURS)
            drawn.append(charts.Charts(rollup_charts(hours), rollup_address(hours)))
        return format_html_join("", "{}", ((one,) for one in drawn if one.charts)) or "It has left no figures."


def page(id: int) -> str:
    """The address of a run's page."""
    return reverse("admin:queues_etlrun_change", args=[id])


def _counts(run: EtlRun, what: str) -> str:
    """Rows over all tables, and of each where there are several."""
    tables = {name: one[what] for name, one in _tables(run).items() if one[what]}
    parts = ", ".join(f"{name} {count:,}" for name, count in tables.items())
    total = f"{getattr(run, what):,}"
    return f"{total} ({parts})" if len(tables) > 1 else total


def _tables(run: EtlRun) -> dict[str, dict[str, int]]:
    """Figures by table; what the database keeps has no order."""
    found = run.figures.get("tables", {})
    return {name: found[name] for name in (*TABLES, *found) if name in found}


def _run_charts(run: EtlRun) -> list[charts.BarChart]:
    """The run's own news."""
    drawn = []
    if taken := run.figures.get("seconds"):
        stages = in_order(taken)
        series = [charts.Series("seconds", [taken[name] for name in stages])]
        drawn.append(charts.BarChart("stages", "Time by stage", series, "seconds", stages))
    if tables := _tables(run):
        rows = [charts.Series("rows", [one["rows_out"] for one in tables.values()])]
        drawn.append(charts.BarChart("tables", "Rows written by table", rows, "count", list(tables)))
    return drawn
