"""ETL runs: how far one has come, what it has done, why it failed; and cancelling it or doing it again."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, JsonResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html

from queues.admin.confirm import REFUSALS, confirm_page, confirmed
from queues.admin.etl_columns import RunColumns, page, progress_html
from queues.admin.recorded import ReadOnlyAdmin, operator
from queues.etl import runs, schedules
from queues.etl.errors import EtlError
from queues.etl.options import RunOptions, default_output
from queues.models import EtlRun
from queues.settings import settings

#: Seconds after which the list loads itself again while a run lasts.
REFRESH = 3
TROUBLES = (*REFUSALS, EtlError)


class RunList(ChangeList):
    """Loads itself again as long as there is something to see."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)

    @property
    def refresh(self) -> int | None:
        """Seconds after which the page is to be loaded again; None: it need not be."""
        return REFRESH if any(not run.is_finished for run in self.result_list) else None


@admin.register(EtlRun)
class EtlRunAdmin(RunColumns, ReadOnlyAdmin):
    list_display = (
        "number_shown", "state_shown", "how_far", "problem", "trigger", "started", "took", "rows", "size", "window",
    )  # fmt: skip
    list_filter = ("state",)
    list_select_related = False
    show_full_result_count = False
    sortable_by = ()
    actions = ("cancel", "run_again")
    fieldsets = (
        (None, {"fields": ("progress",)}),
        ("What it was given", {"fields": ("trigger", "restart_shown", "output", "options", "queued_at")}),
        (
            "What it has done",
            {
                "fields": (
                    "window", "window_from", "window_to", "rows_in_shown", "rows_out_shown", "late_rows", "size",
                    "audit", "warnings_shown",
                )
            },
        ),
        ("Who looks after it", {"fields": ("looked_after", "log"), "classes": ("collapse",)}),
        ("Charts", {"fields": ("charts",)}),
    )  # fmt: skip
    readonly_fields = (
        "progress", "restart_shown", "window", "rows_in_shown", "rows_out_shown", "size", "audit", "warnings_shown",
        "looked_after", "charts",
    )  # fmt: skip

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may begin runs and cancel them."""
        return self.has_view_permission(request) and request.user.has_perm("queues.change_etlrun")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return RunList

    def get_urls(self) -> list[URLPattern]:
        views = (
            ("start/", self.start_view, "start"), ("<int:id>/progress/", self.progress_view, "progress"),
            ("<int:id>/cancel/", self.cancel_view, "cancel"), ("<int:id>/again/", self.again_view, "again"),
        )  # fmt: skip
        wrap = self.admin_site.admin_view
        own = [path(place, wrap(view), name=f"queues_etlrun_{name}") for place, view, name in views]
        return [*own, *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        context = {"may_operate": self.has_operate_permission(request), **(extra_context or {})}
        return super().changelist_view(request, context)

    # Actions.

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[EtlRun]) -> None:
        for run in queryset:
            self._cancel(request, run)

    @admin.action(description="Run again, with the same options", permissions=["operate"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[EtlRun]) -> None:
        for run in queryset:
            self._again(request, run)

    def cancel_view(self, request: HttpRequest, id: int) -> HttpResponse:
        """Ask a run to end."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        self._cancel(request, self._run(id))
        return HttpResponseRedirect(page(id))

    def again_view(self, request: HttpRequest, id: int) -> HttpResponse:
        """Begin a run with the options of this one."""
        if (refusal := self._refusal(request)) is not None:
            return refusal
        again = self._again(request, self._run(id))
        return HttpResponseRedirect(page(again.pk if again else id))

    def start_view(self, request: HttpRequest) -> HttpResponse:
        """Begin a run without a schedule, once it is confirmed."""
        if not self.has_operate_permission(request):
            raise PermissionDenied
        if not confirmed(request):
            lines = [f"Output: {default_output()}", f"Bodies: {settings.BROKER_ETL_BODIES}"]
            question = "This exports everything that has ended since the last run."
            return confirm_page(self, request, "Start a run?", question, lines, "Start")
        try:
            with transaction.atomic():
                run = schedules.launch(RunOptions(), operator(request))
                self.log_done(request, run, "run", "Started.")
        except TROUBLES as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(reverse("admin:queues_etlrun_changelist"))
        return HttpResponseRedirect(page(run.pk))

    def progress_view(self, request: HttpRequest, id: int) -> HttpResponse:
        """The progress of a run, which its page shows without being loaded again."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        run = self._run(id)
        return JsonResponse({"state": run.state, "finished": run.is_finished, "html": progress_html(run)})

    def _refusal(self, request: HttpRequest) -> HttpResponse | None:
        if not self.has_operate_permission(request):
            raise PermissionDenied
        return None if request.method == "POST" else HttpResponseNotAllowed(["POST"])

    def _run(self, id: int) -> EtlRun:
        run = EtlRun.objects.filter(pk=id).first()
        if run is None:
            raise Http404(f"There is no ETL run {id}.")
        return run

    def _cancel(self, request: HttpRequest, run: EtlRun) -> None:
        try:
            with transaction.atomic():
                cancelled = runs.cancel(run.pk)
                self.log_done(request, run, "cancel", "Cancelled.")
        except TROUBLES as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        text = f"Cancelled run {run.pk}." if cancelled.is_finished else f"Run {run.pk} ends in a moment."
        self.message_user(request, text, messages.SUCCESS)

    def _again(self, request: HttpRequest, run: EtlRun) -> EtlRun | None:
        try:
            with transaction.atomic():
                again = schedules.run_again(run, operator(request))
                self.log_done(request, again, "run", f"Run {run.pk} again.", f"again as run {run.pk}")
        except TROUBLES as error:
            self.message_user(request, f"Could not run {run.pk} again: {error}", messages.ERROR)
            return None
        self.message_user(request, format_html('Begun as <a href="{}">run {}</a>.', page(again.pk), again.pk))
        return again
