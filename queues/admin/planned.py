"""Pages of what a cron expression schedules: its times, the result of the last run, and a run now."""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from queues.admin.audited import AbstractAdmin, AuditedAdmin, row_action
from queues.admin.columns import column
from queues.formats.cron import cron_problem, explain
from queues.formats.times import local, relative
from queues.schedules.planning import save_planned, set_enabled, upcoming

#: Runs ahead that the page of one shows.
UPCOMING = 5


class PlannedAdmin(AuditedAdmin, metaclass=AbstractAdmin):
    """Periodic jobs and ETL schedules."""

    actions = ("run_now", "enable", "disable", "delete_selected")

    @abstractmethod
    def run(self, request: HttpRequest, planned: Any) -> tuple[str, str]:
        """Run it now; returns what the run is called, and a text that says so with a link."""

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        runs = ("Runs", {"fields": self.readonly_fields})
        return self.fieldsets if obj is None else (*(self.fieldsets or ()), runs)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        if form.changed_data or not change:
            save_planned(obj, form.changed_data if change else None)

    @admin.display(ordering="cron")
    def schedule(self, planned: Any) -> str:
        return format_html('<span title="{}, {}">{}</span>', self.in_words(planned), planned.timezone, planned.cron)

    @admin.display(description="schedule in words")
    def in_words(self, planned: Any) -> str:
        return cron_problem(planned.cron) or explain(planned.cron)

    @admin.display(ordering="next_run_at")
    def next_run(self, planned: Any) -> str:
        if not planned.enabled:
            return "-"
        return moment_shown(planned, planned.next_run_at) if planned.next_run_at else "not planned"

    @admin.display(description="runs ahead")
    def upcoming(self, planned: Any) -> str:
        if not planned.enabled:
            return "none: it is not enabled"
        moments = upcoming(planned, UPCOMING, datetime.now(UTC))
        return format_html_join(mark_safe("<br>"), "{}", ((local(moment, planned.timezone),) for moment in moments))

    problem = column("problem", lambda planned: planned.last_error or "-", ordering="last_error")

    @admin.action(description="Run now; the schedule stays as it is", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for planned in queryset:
            with self.attempt(request, f"Could not run {planned}: ") as done:
                name, text = self.run(request, planned)
                self.log_done(request, planned, "run", f"Run now: {name}.", name)
                done.append(text)

    enable = row_action(lambda planned: set_enabled(planned, True), "Enable", "enable", "Enabled")
    disable = row_action(lambda planned: set_enabled(planned, False), "Disable", "disable", "Disabled")


def moment_shown(planned: Any, moment: Any) -> str:
    """A moment by the clock that it runs by, and how far away it is."""
    return f"{local(moment, planned.timezone)}, {relative(moment, datetime.now(UTC))}"
