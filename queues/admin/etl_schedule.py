"""ETL schedules: the times of the job, their time zone, and the result of the last run."""

from __future__ import annotations

from datetime import UTC, datetime

from django import forms
from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from queues.admin.audited import operator
from queues.admin.columns import column
from queues.admin.etl_columns import page
from queues.admin.generic import ModelForm
from queues.admin.planned import PlannedAdmin, moment_shown
from queues.etl import schedules
from queues.models import EtlRun, EtlSchedule


class EtlScheduleForm(ModelForm):
    """When the job runs; the model says what is wrong with a field."""

    class Meta:
        model = EtlSchedule
        fields = ("name", "enabled", "cron", "timezone", "bodies", "body_schema", "verify")
        widgets = {"body_schema": forms.Textarea(attrs={"rows": 2, "cols": 60, "spellcheck": "false"})}


@admin.register(EtlSchedule)
class EtlScheduleAdmin(PlannedAdmin):
    form = EtlScheduleForm
    list_display = ("name", "schedule", "enabled", "next_run", "last_begun", "last_state", "problem")
    list_filter = ("enabled",)
    related = ("last_run",)
    readonly_fields = ("in_words", "next_run", "upcoming", "last_begun", "last_state", "problem", "created_at")
    fieldsets = (
        (None, {"fields": ("name", "enabled")}),
        ("When", {"fields": ("cron", "timezone")}),
        ("What", {"fields": ("bodies", "body_schema", "verify")}),
    )

    def run(self, request: HttpRequest, planned: EtlSchedule) -> tuple[str, str]:
        run = schedules.run_now(planned, operator(request))
        text = format_html('Begun {} as <a href="{}">run {}</a>.', planned, page(run.pk), run.pk)
        return f"run {run.pk}", text

    # Columns.

    @admin.display(ordering="next_run_at")
    def next_run(self, planned: EtlSchedule) -> str:
        moment = planned.next_run_at
        late = planned.enabled and moment is not None and moment < datetime.now(UTC)
        return super().next_run(planned) + (": it is due. Does a Celery worker run, with a beat?" if late else "")

    last_begun = column(
        "last run", lambda one: moment_shown(one, one.last_run_at) if one.last_run_at else "-", ordering="last_run_at"
    )
    last_state = column("its state", lambda one: _state_of(one.last_run) if one.last_run else "-")


def _state_of(run: EtlRun) -> SafeString:
    return format_html('<a href="{}">run {}</a>: {}', page(run.pk), run.pk, run.get_state_display())
