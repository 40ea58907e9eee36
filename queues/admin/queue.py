"""Queues: their list with rates and ages, their pages with charts and consumers; pause, resume, purge, clone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from queues.admin import definitions
from queues.admin.audit_links import operators_address
from queues.admin.audited import GONE, confirm_page, confirmed, object_action, operator, row_action, to_type
from queues.admin.charts import format_rate, sparkline
from queues.admin.columns import column, queue_shown, state_name
from queues.admin.counted import CountedRows, messages_link
from queues.admin.effects import effects
from queues.admin.find import find_address
from queues.admin.generic import ModelForm
from queues.admin.operate import queue_links
from queues.admin.publish import may_publish
from queues.admin.queue_panel import NO_FIGURES, list_figures, queue_panel
from queues.admin.reasons import few_reasons
from queues.models import Queue, QueueKind
from queues.operations import audit_log
from queues.operations import messages as message_operations
from queues.operations import queues as queue_operations
from queues.permissions.addresses import queue_problem
from queues.permissions.rules import Operation, Protocol


class QueueForm(ModelForm):
    """A queue's policy, checked as `queue_operations.create_queue` does."""

    class Meta:
        model = Queue
        fields = "__all__"

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        for field, effect in effects(self.instance).items() if self.instance.pk else ():
            if field in self.fields:
                self.fields[field].help_text = f"{self.fields[field].help_text} {effect}".strip()

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


@admin.register(Queue)
class QueueAdmin(CountedRows):
    pages = {
        "pause": "<int:id>/pause/", "resume": "<int:id>/resume/", "purge": "<int:id>/purge/",
        "export_definitions": "definitions/export/", "import_definitions": "definitions/import/",
    }  # fmt: skip
    export_definitions_view, import_definitions_view = definitions.export_view, definitions.import_view
    form = QueueForm
    change_form_template = "admin/queues/queue_change_form.html"
    change_list_template = "admin/queues/queue_change_list.html"
    list_display = (
        "shown_name", "last_hour", "is_delivering", "ready", "leased", "delayed", "dead", "incoming", "outgoing",
        "oldest", "consumers",
    )  # fmt: skip
    list_filter = ("kind", "paused", "single_active_consumer", "audited")
    list_per_page = 50
    search_fields = ("name",)
    actions = ("pause", "resume", "purge", "delete_selected")
    autocomplete_fields = ("dead_letter_queue",)
    fieldsets = (
        (None, {"fields": ("name",)}),
        ("Delivery", {
            "fields": ("paused", "refuse_when_paused", "single_active_consumer", "concurrency_limit", "ack_timeout"),
        }),
        ("Retries", {"fields": ("max_attempts", "retry_backoff", "retry_backoff_cap", "dead_letter_queue")}),
        ("Jobs", {"fields": ("allow_job_overrides",)}),
        ("Limits", {"fields": ("message_ttl", "max_length", "overflow")}),
        ("History", {"fields": ("retention", "audited")}),
    )

    def get_readonly_fields(self, request: HttpRequest, obj: Queue | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        return ("name", "audited", "single_active_consumer") if obj.kind == QueueKind.MAILBOX else ("name",)

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """With `?clone=ID` the policy of another queue."""
        initial = super().get_changeform_initial_data(request)
        given = str(initial.pop("clone", ""))
        model = Queue.objects.filter(pk=given).first() if given.isdecimal() else None
        if model is None:
            return initial
        return {name: model.serializable_value(name) for name in queue_operations.POLICY if name != "paused"}

    def queue_of(self, row: Queue) -> int:
        return row.pk

    def prepare_rows(self, rows: list[Any]) -> None:
        """Also what goes through the queues, who consumes them, and their last hour: three queries."""
        figures = list_figures([row.pk for row in rows])
        for row in rows:
            row.figures = figures.get(row.pk, NO_FIGURES)
            row.counts = row.figures.counts

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        return {"may_export": definitions.may_export(request), "may_import": definitions.may_import(request)}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        response: HttpResponse = super().change_view(request, object_id, form_url, extra_context)
        if isinstance(response, TemplateResponse) and response.context_data is not None:
            queue = response.context_data["original"]
            panel = queue_panel(queue, request)
            response.context_data |= panel | few_reasons(request, queue, panel["counts"]) | {
                "find": find_address(queue.name),
                "audit": operators_address(queue), "may_publish": may_publish(request),
                "may_operate": self.has_change_permission(request, queue),
                "may_destroy": self.has_delete_permission(request, queue),
                "operations": [] if queue is None else queue_links(request, queue.name),
            }
        return response

    def save_model(self, request: HttpRequest, obj: Queue, form: Any, change: bool) -> None:
        audit_log.declare(operator(request))  # it may begin or end to be audited
        super().save_model(request, obj, form, change)

    @admin.display(description="name", ordering="name")
    def shown_name(self, queue: Queue) -> SafeString:
        return queue_shown(queue.name)

    is_delivering = column("delivering", lambda queue: not queue.paused, boolean=True)

    def delayed(self, queue: Queue) -> str:
        return messages_link(queue.pk, f"{self.counts(queue).delayed:,}", 2)

    incoming = column("in", lambda queue: format_rate(queue.figures.in_rate))
    outgoing = column("out", lambda queue: format_rate(queue.figures.out_rate))
    oldest = column("oldest", lambda queue: queue.figures.age)
    consumers = column("consumers", lambda queue: queue.figures.consumers)
    last_hour = column(
        "waiting, last hour (most)", lambda queue: sparkline(f"Messages that wait in {queue.name}", queue.figures.depth)
    )

    pause = row_action(lambda queue: queue_operations.set_paused(queue.name, True), "Pause", "pause", "Paused")
    resume = row_action(lambda queue: queue_operations.set_paused(queue.name, False), "Resume", "resume", "Resumed")

    @admin.action(description="Purge: remove what is ready or delayed", permissions=["delete"])
    def purge(self, request: HttpRequest, queryset: Iterable[Queue]) -> HttpResponse | None:
        queues = list(queryset)
        if not queues:
            self.message_user(request, GONE, messages.WARNING)
            return None
        CountedRows.prepare_rows(self, queues)
        waiting = {queue: self._shown(queue, "ready", "delayed") for queue in queues}
        if not confirmed(request, to_type(queues)):
            lines = [f"{queue.name}: {shown}" for queue, shown in waiting.items()]
            question = "This removes the messages that wait for delivery. Dead letters stay."
            return confirm_page(self, request, question, lines, "Yes, purge", queues, to_type(queues))
        for queue, shown in waiting.items():
            purge = partial(message_operations.purge, queue.name, by=operator(request))
            if (gone := self.at_length(request, "purge", queue, shown, purge)) is not None:
                self.log_only(request, queue, f"Purged {gone} messages.")
                self.message_user(request, f"Removed {gone:,} messages from {queue.name}.", messages.SUCCESS)
        return None

    pause_view, resume_view = (object_action(name, "change", post=True) for name in ("pause", "resume"))
    purge_view = object_action("purge", "delete")

    def delete_all_of(self, row: Queue, by: str) -> int:
        return queue_operations.delete_queue(row.name, force=True, by=by)

    def held_by(self, row: Queue) -> str:
        return self._shown(row, "ready", "leased", "delayed", "dead")

    def _shown(self, queue: Queue, *states: str) -> str:
        counts = self.counts(queue)
        return ", ".join(f"{getattr(counts, state):,} {state_name(state)}" for state in states)
