"""Finished messages: read only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from queues.admin import payload
from queues.admin.audit_links import audit_links
from queues.admin.filters import FinishedFilter, QueueFilter, number, since
from queues.admin.keyset import KeysetChangeList
from queues.admin.life import ID
from queues.admin.message_columns import MessageColumns
from queues.models import ArchivedMessage, Content, Queue
from queues.store.queries import query


@admin.register(ArchivedMessage)
class ArchivedMessageAdmin(MessageColumns):
    finished = True
    keyset = ("-finished_at", "-id")
    list_display = ("id", "queue_name", "outcome", "attempts", "published_at", "finished_at", "size", "key")
    list_filter = (FinishedFilter, QueueFilter)
    fields = (
        "id", "queue_name", "outcome", "life", "payload_shown", "attempts", "published_at", "delivered_at",
        "finished_at", "producer_id", "consumer_id", "job", "result_shown", "log", "audit", "size", "key", "sender",
        "task", "headers", "content",
    )  # fmt: skip

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

    def audit(self, message: ArchivedMessage) -> str:
        queue = Queue.objects.filter(pk=message.queue_id).first()
        return audit_links(queue, message.pk, message.content, message.key)

    def payload_start(self, message: ArchivedMessage) -> tuple[bytes, int] | None:
        if message.payload is None:
            return None
        data = bytes(message.payload)
        return data[: payload.MAX_SHOWN], len(data)

    @admin.display(description="result")
    def result_shown(self, message: ArchivedMessage) -> str:
        if message.result is None:
            return "none"
        data = bytes(message.result)
        kind, text = payload.shown(data[: payload.MAX_SHOWN], len(data), Content.MSGPACK)
        return format_html("<pre>{}</pre><p>{}</p>", text, kind)
