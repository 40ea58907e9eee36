"""ETL runs: how far one has come, what it has done, why it failed; and cancelling it or doing it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html

from queues.admin.audited import ReadOnlyAdmin, confirm_page, confirmed, demand, object_action, object_page, operator
from queues.admin.etl_columns import RunColumns, page
from queues.admin.reasons import failures
from queues.config.settings import settings
from queues.etl import runs, schedules
from queues.etl.options import RunOptions, default_output
from queues.models import EtlRun, EtlState

#: Seconds after which the list loads itself again while a run lasts.
REFRESH = 3


@admin.register(EtlRun)
class EtlRunAdmin(RunColumns, ReadOnlyAdmin):
    list_display = (
        "number_shown", "state_shown", "how_far", "problem", "trigger", "started", "took", "rows", "size", "window",
    )  # fmt: skip
    list_filter = ("state",)
    sortable_by = ()
    actions = ("cancel", "run_again")
    fieldsets = (
        (None, {"fields": ("progress",)}),
        ("Request", {"fields": ("trigger", "restart_shown", "output", "options", "queued_at")}),
        (
            "Result",
            {
                "fields": (
                    "window", "window_from", "window_to", "rows_in_shown", "rows_out_shown", "late_rows", "size",
                    "audit", "warnings_shown",
                )
            },
        ),
        ("Process", {"fields": ("looked_after", "log"), "classes": ("collapse",)}),
        ("Charts", {"fields": ("charts",)}),
    )  # fmt: skip

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may begin runs and cancel them."""
        return self.has_view_permission(request) and request.user.has_perm("queues.change_etlrun")

    pages = {"start": "start/", "cancel": "<int:id>/cancel/", "again": "<int:id>/again/"}

    def refresh_after(self, rows: Sequence[EtlRun]) -> int | None:
        return REFRESH if any(not run.is_finished for run in rows) else None

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        failed = EtlRun.objects.filter(state=EtlState.FAILED)
        return {"may_operate": self.has_operate_permission(request), "failures": failures(failed)}

    # Actions.

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: Iterable[EtlRun]) -> None:
        for run in queryset:
            with self.attempt(request) as done:
                cancelled = runs.cancel(run.pk)
                self.log_done(request, run, "cancel", "Cancelled.")
                done.append(f"Cancelled run {run.pk}." if cancelled.is_finished else f"Run {run.pk} ends in a moment.")

    cancel_view = object_action("cancel", "operate", post=True)

    @admin.action(description="Run again, with the same options", permissions=["operate"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[EtlRun]) -> None:
        for run in queryset:
            self._again(request, run)

    @object_page("operate", post=True)
    def again_view(self, request: HttpRequest, run: EtlRun) -> HttpResponse:
        """Begin a run with the options of this one."""
        again = self._again(request, run)
        return HttpResponseRedirect(page(again.pk if again else run.pk))

    def start_view(self, request: HttpRequest) -> HttpResponse:
        """Begin a run without a schedule, once it is confirmed."""
        demand(self.has_operate_permission(request))
        if not confirmed(request):
            lines = [f"Output: {default_output()}", f"Bodies: {settings.BROKER_ETL_BODIES}"]
            question = "This exports everything that has ended since the last run."
            return confirm_page(self, request, question, lines, "Start", title="Start a run?")
        address = self.list_address
        with self.attempt(request):
            run = schedules.launch(RunOptions(), operator(request))
            self.log_done(request, run, "run", "Started.")
            address = page(run.pk)
        return HttpResponseRedirect(address)

    def _again(self, request: HttpRequest, run: EtlRun) -> EtlRun | None:
        again = None
        with self.attempt(request, f"Could not run {run.pk} again: ") as done:
            again = schedules.run_again(run, operator(request))
            self.log_done(request, again, "run", f"Run {run.pk} again.", f"again as run {run.pk}")
            done.append(format_html('Begun as <a href="{}">run {}</a>.', page(again.pk), again.pk))
        return again
