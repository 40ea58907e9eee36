"""Periodic jobs: what runs when, and how the last run went."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput
from django.http import HttpRequest

from queues.admin.columns import anchor, column
from queues.admin.generic import ModelForm
from queues.admin.links import link, message_pages, page_of
from queues.admin.planned import PlannedAdmin, moment_shown
from queues.errors import BrokerError
from queues.models import PeriodicJob
from queues.operations import periodic as operations


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


class PeriodicJobForm(ModelForm):
    """A periodic job; the model validates its fields."""

    class Meta:
        model = PeriodicJob
        fields = operations.FIELDS
        field_classes = {"payload": PayloadField}
        widgets = {"payload": forms.Textarea(attrs={"rows": 5, "cols": 60, "spellcheck": "false"})}


@admin.register(PeriodicJob)
class PeriodicJobAdmin(PlannedAdmin):
    form = PeriodicJobForm
    list_display = ("name", "queue_shown", "schedule", "enabled", "next_run", "last_run", "problem")
    list_filter = ("enabled", ("last_error", admin.EmptyFieldListFilter))
    related = ("queue",)
    refusals = (BrokerError, ValueError)
    search_fields = ("name", "cron")
    autocomplete_fields = ("queue",)
    readonly_fields = ("in_words", "next_run", "upcoming", "last_run", "problem", "created_at")
    fieldsets = (
        (None, {"fields": ("name", "enabled")}),
        ("When", {"fields": ("cron", "timezone", "unique")}),
        ("What", {"fields": ("queue", "payload", "priority", "max_attempts")}),
    )

    def prepare_rows(self, rows: list[Any]) -> None:
        """The addresses of the last jobs of those on the page."""
        pages = message_pages(row.last_message_id for row in rows if row.last_message_id is not None)
        for row in rows:
            row.message_pages = pages

    def run(self, request: HttpRequest, planned: PeriodicJob) -> tuple[str, str]:
        id = operations.run_now(planned)
        pages = message_pages([] if id is None else [id])
        return f"message {id}", link(pages, id, f"Published {planned} as message {id}.")

    queue_shown = column(
        "queue", lambda job: anchor(page_of("queue", job.queue.pk), job.queue) if job.queue else "deleted",
        ordering="queue__name",
    )  # fmt: skip

    @admin.display(ordering="last_run_at")
    def last_run(self, job: Any) -> str:
        if job.last_run_at is None:
            return "-"
        if not hasattr(job, "message_pages"):
            self.prepare_rows([job])
        return link(job.message_pages, job.last_message_id, moment_shown(job, job.last_run_at))
