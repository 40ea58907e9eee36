"""Messages that are not finished: read only, but for dead letters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from queues.admin import payload
from queues.admin.audit_links import audit_links
from queues.admin.columns import column, state_name
from queues.admin.filters import QueueFilter, StateFilter, number
from queues.admin.find import find_address, find_view
from queues.admin.generic import ModelAdmin
from queues.admin.keyset import KeysetChangeList
from queues.admin.life import ID, archived_page
from queues.admin.message_columns import MessageColumns
from queues.admin.operate import operate_address, operate_view
from queues.admin.publish import publish_view
from queues.admin.reasons import reasons_view
from queues.models import BulkAction, Message, Queue
from queues.operations import bulk
from queues.operations.search import STATES


def _previewed(what: BulkAction, description: str, permission: str = "operate") -> Callable[..., HttpResponse]:
    """An action of the list, that leads to the page that shows what it would do to the messages, and asks."""

    @admin.action(description=description, permissions=[permission])
    def preview(model_admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        rows = queryset.order_by("id").values_list("id", "origin_id")[: bulk.MAX_SELECTED]
        return HttpResponseRedirect(operate_address(what, [origin or id for id, origin in rows]))

    return preview


@admin.register(Message)
class MessageAdmin(MessageColumns):
    finished = False
    list_display = ("number", "queue", "state_shown", "attempts", "published_at", "key", "payload_size", "preview")
    list_filter = (QueueFilter, StateFilter)
    list_select_related = ("queue",)
    change_list_template = "admin/queues/message_change_list.html"
    actions = ("put_back", "move", "copy", "delay", "deliver_now", "remove")
    pages = {
        **MessageColumns.pages, "find": "find/", "operate": "operate/", "publish": "publish/", "reasons": "reasons/"
    }  # fmt: skip
    find_view, operate_view, publish_view, reasons_view = find_view, operate_view, publish_view, reasons_view
    fields = (
        "number", "queue", "state_shown", "error", "life", "payload_shown", "attempts", "max_attempts", "priority",
        "published_at", "due_at", "expires_at", "dead_at", "key", "sender", "task", "headers", "log", "audit",
        "producer_id", "node_id", "position", "content",
    )  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet[Message]:
        found: QuerySet[Message] = super().get_queryset(request)
        head = payload.head(payload.PREVIEW + 1)
        return found.defer("payload").annotate(payload_size=payload.size(), payload_head=head)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The message by its place in the queue, or by the id it had first: an address stays right when it moves."""
        if not ID.fullmatch(object_id):
            return None
        rows, id = self.get_queryset(request), int(object_id)
        return rows.filter(pk=id).first() or rows.filter(origin_id=id).order_by("id").first()

    def within_reach(self, rows: QuerySet[Any], page: KeysetChangeList, most: int) -> QuerySet[Any]:
        chosen = (page.choice(name) for name in (QueueFilter.parameter_name, StateFilter.parameter_name))
        queue, state = (number(value) if value else None for value in chosen)
        after = {"after": int(page.after)} if page.after else {}
        found: QuerySet[Any] = rows.within_reach(most, queue=queue, state=state, **after)  # type: ignore[attr-defined]
        return found

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Redirect from a finished message to its page in the archive, if that has a row of it."""
        return archived_page(object_id) or super()._get_obj_does_not_exist_redirect(request, opts, object_id)

    def has_destroy_permission(self, request: HttpRequest) -> bool:
        """Whether the user may delete messages."""
        return request.user.has_perm("queues.delete_message")

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        return {"may_publish": self.has_operate_permission(request), "find": _find(request)}

    def payload_start(self, message: Any) -> tuple[bytes, int]:
        start = Message.objects.filter(pk=message.pk).values_list(payload.head(payload.MAX_SHOWN)).first()
        return (bytes(start[0]), message.payload_size) if start else (b"", 0)

    state_shown = column("state", lambda message: state_name(message.get_state_display()))
    number = column("message", lambda message: message.origin_id or message.pk)
    position = column("place in the queue", lambda message: message.pk)
    priority = column("priority", lambda message: -(message.pk >> 56))

    def audit(self, message: Message) -> str:
        return audit_links(message.queue, message.origin_id or message.pk, message.content, message.key)

    payload_size = column("bytes", lambda message: message.payload_size)

    @admin.display(description="payload")
    def preview(self, message: Any) -> str:
        return payload.preview(bytes(message.payload_head), message.payload_size, message.content)

    put_back = _previewed(BulkAction.PUT_BACK, "Put dead letters back where they came from…")
    move = _previewed(BulkAction.MOVE, "Move to another queue…")
    copy = _previewed(BulkAction.COPY, "Copy to another queue…")
    delay = _previewed(BulkAction.DELAY, "Delay…")
    deliver_now = _previewed(BulkAction.DELIVER_NOW, "Deliver delayed ones now…")
    remove = _previewed(BulkAction.DELETE, "Delete…", "destroy")


def _find(request: HttpRequest) -> str:
    """The page of searches, with the queue and the state that the list is of."""
    id, state = request.GET.get(QueueFilter.parameter_name, ""), request.GET.get(StateFilter.parameter_name, "")
    name = Queue.objects.filter(pk=id).values_list("name", flat=True).first() if ID.fullmatch(id) else None
    return find_address(name or "", next((word for word, states in STATES.items() if state == str(states[0])), ""))
