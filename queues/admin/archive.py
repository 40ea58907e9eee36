"""Finished messages: read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from queues.admin import payload
from queues.admin.audit_links import audit_links
from queues.admin.filters import FinishedFilter, QueueFilter
from queues.admin.keyset import KeysetAdmin
from queues.models import ArchivedMessage, Content, Queue


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(KeysetAdmin):
    keyset = ("-finished_at", "-id")
    list_display = ("id", "queue_name", "outcome", "attempts", "published_at", "finished_at", "size", "key")
    list_filter = (FinishedFilter, QueueFilter)
    list_per_page = 50
    fields = (
        "id", "queue_name", "outcome", "attempts", "published_at", "delivered_at", "finished_at", "producer_id",
        "consumer_id", "job", "result_shown", "log", "audit", "size", "key", "sender", "headers", "content",
        "payload_shown",
    )  # fmt: skip
    readonly_fields = ("queue_name", "result_shown", "log", "audit", "sender", "payload_shown")

    def get_queryset(self, request: HttpRequest) -> QuerySet[ArchivedMessage]:
        found: QuerySet[ArchivedMessage] = super().get_queryset(request)
        return found.defer("payload", "result")

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
        return format_html("<pre>{}</pre><p>{}</p>", text, kind)

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
