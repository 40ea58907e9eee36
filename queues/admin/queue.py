"""Queues: policy, counts, pause, resume, purge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from queues.addresses import queue_problem
from queues.admin.confirm import REFUSALS, ConfirmedDeletion, confirm_page, confirmed
from queues.admin.recorded import operator
from queues.admin.worker import workers_of
from queues.counts import QueueCounts, many_counts, queue_counts
from queues.models import Queue, QueueKind
from queues.operations import audit_log
from queues.operations import queues as queue_operations
from queues.reach import Operation, Protocol

if TYPE_CHECKING:
    QueueModelForm = forms.ModelForm[Queue]
else:
    QueueModelForm = forms.ModelForm


class QueueForm(QueueModelForm):
    """A queue's policy, checked as `queue_operations.create_queue` does."""

    class Meta:
        model = Queue
        fields = "__all__"

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        if problem := queue_problem(name, Protocol.OPERATOR, Operation.CREATE):
            raise ValidationError(f"{problem[0].upper()}{problem[1:]}.")
        return name

    def _post_clean(self) -> None:
        super()._post_clean()  # type: ignore[misc]
        for field, texts in queue_operations.policy_problems(self.instance).items():
            if field in self.fields and field not in self.errors:
                self.add_error(field, texts)


class CountedChangeList(ChangeList):
    """Adds the counts of the queues on the page, in one query."""

    queue_of: Callable[[Any], int] = staticmethod(lambda row: row.pk)

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        counts = many_counts(self.queue_of(row) for row in rows)
        for row in rows:
            row.counts = counts.get(self.queue_of(row), QueueCounts())
        self.result_list = rows


def messages_link(queue: int, text: object, state: int | None = None) -> str:
    """A link to a queue's messages."""
    address = f"{reverse('admin:queues_message_changelist')}?queue={queue}"
    return format_html('<a href="{}">{}</a>', address if state is None else f"{address}&state={state}", text)


@admin.register(Queue)
class QueueAdmin(ConfirmedDeletion):
    form = QueueForm
    list_display = ("name", "is_delivering", "ready", "leased", "delayed", "dead", "published")
    list_filter = ("kind", "paused", "audited")
    search_fields = ("name",)
    show_full_result_count = False
    actions = ("pause", "resume", "purge", "delete_selected")
    autocomplete_fields = ("dead_letter_queue",)
    fieldsets = (
        (None, {"fields": ("name",)}),
        ("Delivery", {"fields": ("paused", "refuse_when_paused", "concurrency_limit", "ack_timeout")}),
        ("Retries", {"fields": ("max_attempts", "retry_backoff", "retry_backoff_cap", "dead_letter_queue")}),
        ("Jobs", {"fields": ("allow_job_overrides",)}),
        ("Limits", {"fields": ("message_ttl", "max_length", "overflow")}),
        ("History", {"fields": ("retention", "audited")}),
    )
    counts_fieldset = (
        "Messages",
        {"fields": (("ready", "leased", "delayed", "dead"), ("published", "settled", "completed"))},
    )
    workers_fieldset = ("Workers", {"fields": ("workers",)})

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return CountedChangeList

    def get_fieldsets(self, request: HttpRequest, obj: Queue | None = None) -> Any:
        return self.fieldsets if obj is None else (*self.fieldsets, self.counts_fieldset, self.workers_fieldset)

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        fixed = ("name", "ready", "leased", "delayed", "dead", "published", "settled", "completed", "workers")
        return (*fixed, "audited") if obj.kind == QueueKind.MAILBOX else fixed

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        audit_log.declare(operator(request))  # it may begin or end to be audited
        super().save_model(request, obj, form, change)

    @admin.display(description="delivering", boolean=True)
    def is_delivering(self, queue: Queue) -> bool:
        return not queue.paused

    @admin.display
    def ready(self, queue: Queue) -> str:
        return messages_link(queue.pk, _counts(queue).ready, 0)

    @admin.display
    def leased(self, queue: Queue) -> int:
        return _counts(queue).leased

    @admin.display
    def delayed(self, queue: Queue) -> str:
        return messages_link(queue.pk, _counts(queue).delayed, 2)

    @admin.display
    def dead(self, queue: Queue) -> str:
        return messages_link(queue.pk, _counts(queue).dead, 3)

    @admin.display
    def published(self, queue: Queue) -> int:
        return _counts(queue).published

    @admin.display
    def completed(self, queue: Queue) -> int:
        return _counts(queue).completed

    @admin.display
    def settled(self, queue: Queue) -> int:
        return _counts(queue).settled

    @admin.display(description="subscribed now")
    def workers(self, queue: Queue) -> str:
        return workers_of(queue.name)

    @admin.action(description="Pause", permissions=["change"])
    def pause(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        for queue in queryset:
            with transaction.atomic():
                queue_operations.pause_queue(queue.name)
                self.log_done(request, queue, "pause", "Paused.")
        self.message_user(request, f"Paused {_names(queryset)}.", messages.SUCCESS)

    @admin.action(description="Resume", permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[Queue]) -> None:
        for queue in queryset:
            with transaction.atomic():
                queue_operations.resume_queue(queue.name)
                self.log_done(request, queue, "resume", "Resumed.")
        self.message_user(request, f"Resumed {_names(queryset)}.", messages.SUCCESS)

    @admin.action(description="Purge: remove what is ready or delayed", permissions=["delete"])
    def purge(self, request: HttpRequest, queryset: QuerySet[Queue]) -> HttpResponse | None:
        queues = list(queryset)
        counts = many_counts(queue.pk for queue in queues)
        waiting = {queue: _shown(counts.get(queue.pk, QueueCounts()), "ready", "delayed") for queue in queues}
        if not confirmed(request):
            lines = [f"{queue.name}: {shown}" for queue, shown in waiting.items()]
            return confirm_page(
                self, request, "Are you sure?", "This removes the messages that wait for delivery. Dead letters stay.",
                lines, "Yes, purge", "purge", [queue.pk for queue in queues],
            )  # fmt: skip
        for queue in queues:
            self.record_action(request, "purge", queue, waiting[queue])
            try:
                gone = queue_operations.purge(queue.name, by=operator(request))
            except REFUSALS as error:
                self.record_action(request, "failed", queue, f"purge: {error}")
                self.message_user(request, str(error), messages.ERROR)
                continue
            self.log_only(request, queue, f"Purged {gone} messages.")
            self.message_user(request, f"Removed {gone:,} messages from {queue.name}.", messages.SUCCESS)
        return None

    def delete_by(self, obj: Queue, by: str) -> int:
        return queue_operations.delete_queue(obj.name, force=True, by=by)

    def deletion_lines(self, objects: Sequence[Queue]) -> list[str]:
        counts = many_counts(queue.pk for queue in objects)
        return [
            f"{q.name}: {_shown(counts.get(q.pk, QueueCounts()), 'ready', 'leased', 'delayed', 'dead')}"
            for q in objects
        ]


def _counts(queue: Queue) -> QueueCounts:
    """The counts that the page has fetched, or those of a queue shown alone."""
    if not hasattr(queue, "counts"):
        queue.counts = queue_counts(queue.pk)  # type: ignore[attr-defined]
    counts: QueueCounts = queue.counts  # type: ignore[attr-defined]
    return counts


def _names(queryset: QuerySet[Queue]) -> str:
    return ", ".join(queue.name for queue in queryset)


def _shown(counts: QueueCounts, *states: str) -> str:
    return ", ".join(f"{getattr(counts, state):,} {state}" for state in states)
