"""Periodic jobs: what runs when, and how the last run went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import mark_safe

from queues.admin.confirm import REFUSALS
from queues.admin.links import link, message_pages
from queues.admin.recorded import RecordedAdmin
from queues.cron import cron_problem, explain
from queues.models import PeriodicJob
from queues.operations import periodic as operations
from queues.times import local, relative

if TYPE_CHECKING:
    PeriodicJobModelForm = forms.ModelForm[PeriodicJob]
else:
    PeriodicJobModelForm = forms.ModelForm

#: Runs ahead that the page of a job shows.
UPCOMING = 5


class PayloadField(forms.JSONField):
    """JSON that may be nested too deep to be read, or have a number that is too long."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError as error:
            raise ValidationError("It is nested too deep.") from error
        except ValueError as error:
            raise ValidationError("A number in it has too many digits.") from error

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (RecursionError, ValueError):
            return InvalidJSONInput(data)


class PeriodicJobForm(PeriodicJobModelForm):
    """A periodic job; the model validates its fields."""

    class Meta:
        model = PeriodicJob
        fields = operations.FIELDS
        field_classes = {"payload": PayloadField}
        widgets = {"payload": forms.Textarea(attrs={"rows": 5, "cols": 60, "spellcheck": "false"})}


class PeriodicChangeList(ChangeList):
    """Adds where the last jobs of those on the page are found, in one query."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        pages = message_pages(row.last_message_id for row in rows if row.last_message_id is not None)
        for row in rows:
            row.message_pages = pages
        self.result_list = rows


@admin.register(PeriodicJob)
class PeriodicJobAdmin(RecordedAdmin):
    form = PeriodicJobForm
    list_display = ("name", "queue_shown", "schedule", "enabled", "next_run", "last_run", "problem")
    list_filter = ("enabled", ("last_error", admin.EmptyFieldListFilter))
    list_select_related = ("queue",)
    search_fields = ("name", "cron")
    show_full_result_count = False
    autocomplete_fields = ("queue",)
    actions = ("run_now", "enable", "disable")
    readonly_fields = ("in_words", "next_run", "upcoming", "last_run", "problem", "created_at")
    fieldsets = (
        (None, {"fields": ("name", "enabled")}),
        ("When", {"fields": ("cron", "timezone", "unique")}),
        ("What", {"fields": ("queue", "payload", "priority", "max_attempts")}),
    )
    runs_fieldset = ("Runs", {"fields": readonly_fields})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return PeriodicChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[PeriodicJob]:
        found: QuerySet[PeriodicJob] = super().get_queryset(request)
        return found.select_related("queue")

    def get_fieldsets(self, request: HttpRequest, obj: PeriodicJob | None = None) -> Any:
        return self.fieldsets if obj is None else (*self.fieldsets, self.runs_fieldset)

    def save_model(self, request: HttpRequest, obj: PeriodicJob, form: Any, change: bool) -> None:
        if form.changed_data or not change:
            operations.save_periodic(obj, form.changed_data if change else None)

    @admin.display(description="queue", ordering="queue__name")
    def queue_shown(self, job: PeriodicJob) -> str:
        if job.queue is None:
            return "deleted"
        return format_html('<a href="{}">{}</a>', reverse("admin:queues_queue_change", args=[job.queue.pk]), job.queue)

    @admin.display(ordering="cron")
    def schedule(self, job: PeriodicJob) -> str:
        return format_html('<span title="{}, {}">{}</span>', self.in_words(job), job.timezone, job.cron)

    @admin.display(description="schedule in words")
    def in_words(self, job: PeriodicJob) -> str:
        return cron_problem(job.cron) or explain(job.cron)

    @admin.display(ordering="next_run_at")
    def next_run(self, job: PeriodicJob) -> str:
        if not job.enabled:
            return "-"
        if job.next_run_at is None:
            return "not planned"
        return f"{local(job.next_run_at, job.timezone)}, {relative(job.next_run_at, timezone.now())}"

    @admin.display(description="runs ahead")
    def upcoming(self, job: PeriodicJob) -> str:
        if not job.enabled:
            return "none: it is not enabled"
        moments = operations.upcoming(job, UPCOMING, timezone.now())
        return format_html_join(mark_safe("<br>"), "{}", ((local(moment, job.timezone),) for moment in moments))

    @admin.display(ordering="last_run_at")
    def last_run(self, job: Any) -> str:
        if job.last_run_at is None:
            return "-"
        last = job.last_message_id
        pages = job.message_pages if hasattr(job, "message_pages") else message_pages([] if last is None else [last])
        return link(pages, last, f"{local(job.last_run_at, job.timezone)}, {relative(job.last_run_at, timezone.now())}")

    @admin.display(ordering="last_error")
    def problem(self, job: PeriodicJob) -> str:
        return job.last_error or "-"

    @admin.action(description="Run now; the schedule stays as it is", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        for job in queryset:
            try:
                with transaction.atomic():
                    id = operations.run_now(job)
                    self.log_done(request, job, "run", f"Run now: message {id}.", f"message {id}")
            except (*REFUSALS, ValueError) as error:
                self.message_user(request, f"Could not run {job}: {error}", messages.ERROR)
                continue
            text = f"Published {job} as message {id}."
            pages = message_pages([] if id is None else [id])
            self.message_user(request, link(pages, id, text), messages.SUCCESS)

    @admin.action(description="Enable", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        self._set_enabled(request, queryset, True)

    @admin.action(description="Disable", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        self._set_enabled(request, queryset, False)

    def _set_enabled(self, request: HttpRequest, queryset: QuerySet[PeriodicJob], enabled: bool) -> None:
        word = "Enabled" if enabled else "Disabled"
        for job in queryset:
            try:
                with transaction.atomic():
                    operations.set_enabled(job, enabled)
                    self.log_done(request, job, "enable" if enabled else "disable", f"{word}.")
            except (*REFUSALS, ValueError) as error:
                self.message_user(request, f"Could not change {job}: {error}", messages.ERROR)
                continue
            self.message_user(request, f"{word} {job}.", messages.SUCCESS)
