"""Finished messages: read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, re_path, reverse
from django.utils.html import format_html

from queues.admin import payload
from queues.admin.audit_links import audit_links
from queues.admin.filters import FinishedFilter, QueueFilter, number, since
from queues.admin.keyset import KeysetAdmin, KeysetChangeList
from queues.admin.life import ID, life_shown
from queues.admin.operate import operation_links
from queues.models import ArchivedMessage, Content, Queue
from queues.store import query


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(KeysetAdmin):
    keyset = ("-finished_at", "-id")
    list_display = ("id", "queue_name", "outcome", "attempts", "published_at", "finished_at", "size", "key")
    list_filter = (FinishedFilter, QueueFilter)
    list_per_page = 50
    change_form_template = "admin/queues/message_change_form.html"
    fields = (
        "id", "queue_name", "outcome", "life", "payload_shown", "attempts", "published_at", "delivered_at",
        "finished_at", "producer_id", "consumer_id", "job", "result_shown", "log", "audit", "size", "key", "sender",
        "task", "headers", "content",
    )  # fmt: skip
    readonly_fields = ("queue_name", "result_shown", "log", "audit", "life", "sender", "task", "payload_shown")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ArchivedMessage]:
        found: QuerySet[ArchivedMessage] = super().get_queryset(request)
        return found.defer("payload", "result")

    def within_reach(self, rows: QuerySet[Any], page: KeysetChangeList, most: int) -> QuerySet[Any]:
        """Messages of segments are not sorted one by one: the newest segments that fill the page say how far back it
        may reach."""
        if set(page.filter_params) - {FinishedFilter.parameter_name, QueueFilter.parameter_name}:
            return rows  # they have other conditions that segments know nothing of
        queue = page.choice(QueueFilter.parameter_name)
        low, high = since(page.choice(FinishedFilter.parameter_name) or "all"), page.after.split(",")[0] or None
        [(reach,)] = query(
            "archive_reach", rows.db, queue=number(queue) if queue else None, low=low, high=high, most=most
        )
        return rows if reach is None else rows.filter(finished_at__gte=reach)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The whole message; of several rows with its id, which has no unique index, the newest."""
        if not ID.fullmatch(object_id):
            return None
        return ArchivedMessage.objects.with_id(int(object_id)).order_by("-finished_at").first()

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.payload_view)
        own = re_path(r"^(?P<id>-?[0-9]{1,19})/payload/$", view, name="queues_archivedmessage_payload")
        return [own, *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        links = operation_links(request, object_id, finished=True)
        return super().change_view(request, object_id, form_url, {"operations": links, **(extra_context or {})})

    def payload_view(self, request: HttpRequest, id: str) -> HttpResponse:
        """The whole payload as a file."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        message = self.get_object(request, id)
        if message is None or message.payload is None:
            raise Http404("The payload was not kept.")
        return payload.as_file(f"message-{message.pk}", bytes(message.payload))

    def prepare_rows(self, rows: list[Any]) -> None:
        """The names of their queues; a message outlives its queue here."""
        names = dict(Queue.objects.filter(pk__in={row.queue_id for row in rows}).values_list("pk", "name"))
        for row in rows:
            row.queue_name = names.get(row.queue_id, f"deleted ({row.queue_id})")

    @admin.display(description="queue")
    def queue_name(self, message: Any) -> str:
        if not hasattr(message, "queue_name"):
            self.prepare_rows([message])
        return str(message.queue_name)

    @admin.display
    def sender(self, message: ArchivedMessage) -> str:
        return payload.sender_shown(message.content, message.headers)

    @admin.display(description="Celery task")
    def task(self, message: ArchivedMessage) -> str:
        return payload.task_shown(message.content, message.headers)

    @admin.display(description="its life")
    def life(self, message: ArchivedMessage) -> str:
        return life_shown(message)

    @admin.display
    def audit(self, message: ArchivedMessage) -> str:
        queue = Queue.objects.filter(pk=message.queue_id).first()
        return audit_links(queue, message.pk, message.content, message.key)

    @admin.display(description="payload")
    def payload_shown(self, message: ArchivedMessage) -> str:
        if message.payload is None:
            return "not kept"
        data = bytes(message.payload)
        kind, text = payload.shown(data[: payload.MOST_SHOWN], len(data), message.content)
        address = reverse("admin:queues_archivedmessage_payload", args=[message.pk])
        return format_html('<pre>{}</pre><p>{}. <a href="{}">Download</a></p>', text, kind, address)

    @admin.display(description="result")
    def result_shown(self, message: ArchivedMessage) -> str:
        if message.result is None:
            return "none"
        data = bytes(message.result)
        kind, text = payload.shown(data[: payload.MOST_SHOWN], len(data), Content.MSGPACK)
        return format_html("<pre>{}</pre><p>{}</p>", text, kind)

    @admin.display(description="log of its workers")
    def log(self, message: ArchivedMessage) -> str:
        return payload.log_shown(message.pk)
