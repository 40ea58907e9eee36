"""ETL schedules: when the job runs, by whose clock, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from queues.admin.etl import TROUBLES
from queues.admin.etl_columns import page
from queues.admin.recorded import RecordedAdmin, operator
from queues.cron import cron_problem, explain
from queues.etl import schedules
from queues.models import EtlSchedule
from queues.operations.periodic import upcoming
from queues.times import local, relative

if TYPE_CHECKING:
    EtlScheduleModelForm = forms.ModelForm[EtlSchedule]
else:
    EtlScheduleModelForm = forms.ModelForm

#: Runs ahead that the page of a schedule shows.
UPCOMING = 5


class EtlScheduleForm(EtlScheduleModelForm):
    """When the job runs; the model says what is wrong with a field."""

    class Meta:
        model = EtlSchedule
        fields = ("name", "enabled", "cron", "timezone", "bodies", "body_schema", "verify")
        widgets = {"body_schema": forms.Textarea(attrs={"rows": 2, "cols": 60, "spellcheck": "false"})}


@admin.register(EtlSchedule)
class EtlScheduleAdmin(RecordedAdmin):
    form = EtlScheduleForm
    list_display = ("name", "schedule", "enabled", "next_run", "last_begun", "last_state", "problem")
    list_filter = ("enabled",)
    list_select_related = ("last_run",)
    show_full_result_count = False
    actions = ("run_now", "enable", "disable")
    readonly_fields = ("in_words", "next_run", "upcoming", "last_begun", "last_state", "problem", "created_at")
    fieldsets = (
        (None, {"fields": ("name", "enabled")}),
        ("When", {"fields": ("cron", "timezone")}),
        ("What", {"fields": ("bodies", "body_schema", "verify")}),
    )
    runs_fieldset = ("Runs", {"fields": readonly_fields})

    def get_queryset(self, request: HttpRequest) -> QuerySet[EtlSchedule]:
        found: QuerySet[EtlSchedule] = super().get_queryset(request)
        return found.select_related("last_run")

    def get_fieldsets(self, request: HttpRequest, obj: EtlSchedule | None = None) -> Any:
        return self.fieldsets if obj is None else (*self.fieldsets, self.runs_fieldset)

    def save_model(self, request: HttpRequest, obj: EtlSchedule, form: Any, change: bool) -> None:
        if form.changed_data or not change:
            schedules.save_schedule(obj, form.changed_data if change else None)

    # Columns.

    @admin.display(ordering="cron")
    def schedule(self, schedule: EtlSchedule) -> str:
        return format_html('<span title="{}, {}">{}</span>', self.in_words(schedule), schedule.timezone, schedule.cron)

    @admin.display(description="schedule in words")
    def in_words(self, schedule: EtlSchedule) -> str:
        return cron_problem(schedule.cron) or explain(schedule.cron)

    @admin.display(ordering="next_run_at")
    def next_run(self, schedule: EtlSchedule) -> str:
        if not schedule.enabled:
            return "-"
        if schedule.next_run_at is None:
            return "not planned"
        moment = schedule.next_run_at
        late = ": it is due. Does a Celery worker run, with a beat?" if moment < timezone.now() else ""
        return f"{local(moment, schedule.timezone)}, {relative(moment, timezone.now())}{late}"

    @admin.display(description="runs ahead")
    def upcoming(self, schedule: EtlSchedule) -> SafeString:
        if not schedule.enabled:
            return format_html("{}", "none: it is not enabled")
        moments = upcoming(schedule, UPCOMING, timezone.now())
        return format_html_join(mark_safe("<br>"), "{}", ((local(moment, schedule.timezone),) for moment in moments))

    @admin.display(description="last run", ordering="last_run_at")
    def last_begun(self, schedule: EtlSchedule) -> str:
        if schedule.last_run_at is None:
            return "-"
        return f"{local(schedule.last_run_at, schedule.timezone)}, {relative(schedule.last_run_at, timezone.now())}"

    @admin.display(description="its state")
    def last_state(self, schedule: EtlSchedule) -> SafeString:
        run = schedule.last_run
        if run is None:
            return format_html("{}", "-")
        return format_html('<a href="{}">run {}</a>: {}', page(run.pk), run.pk, run.get_state_display())

    @admin.display(ordering="last_error")
    def problem(self, schedule: EtlSchedule) -> str:
        return schedule.last_error or "-"

    # Actions.

    @admin.action(description="Run now; the schedule stays as it is", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[EtlSchedule]) -> None:
        for schedule in queryset:
            try:
                with transaction.atomic():
                    run = schedules.run_now(schedule, operator(request))
                    self.log_done(request, schedule, "run", f"Run now: run {run.pk}.", f"run {run.pk}")
            except TROUBLES as error:
                self.message_user(request, f"Could not run {schedule}: {error}", messages.ERROR)
                continue
            text = format_html('Begun {} as <a href="{}">run {}</a>.', schedule, page(run.pk), run.pk)
            self.message_user(request, text, messages.SUCCESS)

    @admin.action(description="Enable", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[EtlSchedule]) -> None:
        self._set_enabled(request, queryset, True)

    @admin.action(description="Disable", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[EtlSchedule]) -> None:
        self._set_enabled(request, queryset, False)

    def _set_enabled(self, request: HttpRequest, queryset: QuerySet[EtlSchedule], enabled: bool) -> None:
        word = "Enabled" if enabled else "Disabled"
        for schedule in queryset:
            try:
                with transaction.atomic():
                    schedules.set_enabled(schedule, enabled)
                    self.log_done(request, schedule, "enable" if enabled else "disable", f"{word}.")
            except TROUBLES as error:
                self.message_user(request, f"Could not change {schedule}: {error}", messages.ERROR)
                continue
            self.message_user(request, f"{word} {schedule}.", messages.SUCCESS)
