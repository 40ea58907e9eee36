"""Messages that are not finished: read only, but for dead letters."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, re_path, reverse
from django.utils.html import format_html

from queues.admin import payload
from queues.admin.audit_links import audit_links
from queues.admin.filters import QueueFilter, StateFilter, number
from queues.admin.find import find_address, find_view
from queues.admin.keyset import KeysetAdmin, KeysetChangeList
from queues.admin.life import ID, archived_page, life_shown
from queues.admin.operate import operate_address, operate_view, operation_links
from queues.admin.publish import publish_view
from queues.models import BulkAction, Message, Queue
from queues.operations import bulk
from queues.operations.search import STATES


@admin.register(Message)
class MessageAdmin(KeysetAdmin):
    list_display = ("number", "queue", "state", "attempts", "published_at", "key", "payload_size", "preview")
    list_filter = (QueueFilter, StateFilter)
    list_select_related = ("queue",)
    list_per_page = 50
    change_list_template = "admin/queues/message_change_list.html"
    actions = ("put_back", "move", "copy", "delay", "deliver_now", "remove")
    change_form_template = "admin/queues/message_change_form.html"
    fields = (
        "number", "queue", "state", "error", "life", "payload_shown", "attempts", "max_attempts", "priority",
        "published_at", "due_at", "expires_at", "dead_at", "key", "sender", "task", "headers", "log", "audit",
        "producer_id", "node_id", "position", "content",
    )  # fmt: skip
    readonly_fields = (
        "number", "priority", "sender", "task", "log", "audit", "life", "producer_id", "node_id", "position",
        "payload_shown",
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
        return archived_page(object_id) or super()._get_obj_does_not_exist_redirect(request, opts, object_id)  # type: ignore[misc]

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            re_path(r"^(?P<id>-?[0-9]{1,19})/payload/$", view(self.payload_view), name="queues_message_payload"),
            path("find/", view(partial(find_view, self)), name="queues_message_find"),
            path("operate/", view(partial(operate_view, self)), name="queues_message_operate"),
            path("publish/", view(partial(publish_view, self)), name="queues_message_publish"),
            *super().get_urls(),
        ]

    def has_destroy_permission(self, request: HttpRequest) -> bool:
        """Whether the user may delete messages."""
        return request.user.has_perm("queues.delete_message")

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        more = {"may_publish": self.has_operate_permission(request), "find": _find(request), **(extra_context or {})}
        return super().changelist_view(request, more)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        links = operation_links(request, object_id)
        return super().change_view(request, object_id, form_url, {"operations": links, **(extra_context or {})})

    @admin.display(description="message")
    def number(self, message: Message) -> int:
        return message.origin_id or message.pk

    @admin.display(description="place in the queue")
    def position(self, message: Message) -> int:
        return message.pk

    @admin.display
    def priority(self, message: Message) -> int:
        return -(message.pk >> 56)

    @admin.display(description="log of its workers")
    def log(self, message: Message) -> str:
        return payload.log_shown(message.origin_id or message.pk)

    @admin.display
    def sender(self, message: Message) -> str:
        return payload.sender_shown(message.content, message.headers)

    @admin.display(description="Celery task")
    def task(self, message: Message) -> str:
        return payload.task_shown(message.content, message.headers)

    @admin.display(description="its life")
    def life(self, message: Message) -> str:
        return life_shown(message)

    @admin.display
    def audit(self, message: Message) -> str:
        return audit_links(message.queue, message.origin_id or message.pk, message.content, message.key)

    @admin.display(description="bytes")
    def payload_size(self, message: Any) -> int:
        return int(message.payload_size)

    @admin.display(description="payload")
    def preview(self, message: Any) -> str:
        return payload.preview(bytes(message.payload_head), message.payload_size, message.content)

    @admin.display(description="payload")
    def payload_shown(self, message: Any) -> str:
        start = Message.objects.filter(pk=message.pk).values_list(payload.head(payload.MOST_SHOWN)).first()
        head_bytes, total = (bytes(start[0]), message.payload_size) if start else (b"", 0)
        kind, text = payload.shown(head_bytes, total, message.content)
        address = reverse("admin:queues_message_payload", args=[message.pk])
        return format_html('<pre>{}</pre><p>{}. <a href="{}">Download</a></p>', text, kind, address)

    def payload_view(self, request: HttpRequest, id: str) -> HttpResponse:
        """The whole payload as a file, which no browser takes for a page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        message = Message.objects.filter(pk=int(id)).first() if abs(int(id)) < 1 << 63 else None
        if message is None:
            raise Http404("The message has left the store.")
        return payload.as_file(f"message-{message.origin_id or message.pk}", bytes(message.payload))

    @admin.action(description="Put dead letters back where they came from…", permissions=["operate"])
    def put_back(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.PUT_BACK, queryset)

    @admin.action(description="Move to another queue…", permissions=["operate"])
    def move(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.MOVE, queryset)

    @admin.action(description="Copy to another queue…", permissions=["operate"])
    def copy(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.COPY, queryset)

    @admin.action(description="Delay…", permissions=["operate"])
    def delay(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.DELAY, queryset)

    @admin.action(description="Deliver delayed ones now…", permissions=["operate"])
    def deliver_now(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.DELIVER_NOW, queryset)

    @admin.action(description="Delete…", permissions=["destroy"])
    def remove(self, request: HttpRequest, queryset: QuerySet[Message]) -> HttpResponse:
        return _preview(BulkAction.DELETE, queryset)


def _find(request: HttpRequest) -> str:
    """The page of searches, with the queue and the state that the list is of."""
    id, state = request.GET.get(QueueFilter.parameter_name, ""), request.GET.get(StateFilter.parameter_name, "")
    name = Queue.objects.filter(pk=id).values_list("name", flat=True).first() if ID.fullmatch(id) else None
    return find_address(name or "", next((word for word, states in STATES.items() if state == str(states[0])), ""))


def _preview(action: BulkAction, queryset: QuerySet[Message]) -> HttpResponse:
    """The page that shows what an action would do to messages, and asks."""
    rows = queryset.order_by("id").values_list("id", "origin_id")[: bulk.MOST_SELECTED]
    return HttpResponseRedirect(operate_address(action, [origin or id for id, origin in rows]))
