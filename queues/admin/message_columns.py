"""Fields that the pages of stored and of finished messages share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from django.contrib import admin
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html

from queues.admin import payload
from queues.admin.audited import AbstractAdmin, demand
from queues.admin.columns import column
from queues.admin.keyset import KeysetAdmin
from queues.admin.life import life_shown
from queues.admin.operate import operation_links


class MessageColumns(KeysetAdmin, metaclass=AbstractAdmin):
    list_per_page = 50
    change_form_template = "admin/queues/message_change_form.html"
    pages = {"payload": r"^(?P<id>-?[0-9]{1,19})/payload/$"}
    #: Whether the messages are those of the archive.
    finished: ClassVar[bool]

    @abstractmethod
    def payload_start(self, message: Any) -> tuple[bytes, int] | None:
        """The first bytes of the payload, and the number of all; None: it is not there."""

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        links = operation_links(request, object_id, self.finished)
        return {**super().object_context(request, object_id), "operations": links}

    def payload_view(self, request: HttpRequest, id: str) -> HttpResponse:
        """The payload as a file."""
        demand(self.has_view_permission(request))
        message = self.get_object(request, id)
        if message is None or message.payload is None:
            raise Http404("The payload is not there.")
        return payload.as_file(f"message-{_first_id(message)}", bytes(message.payload))

    sender = column("sender", lambda message: payload.sender_shown(message.content, message.headers))
    task = column("Celery task", lambda message: payload.task_shown(message.content, message.headers))
    life = column("its life", lambda message: life_shown(message))
    log = column("log of its workers", lambda message: payload.log_shown(_first_id(message)))

    @admin.display(description="payload")
    def payload_shown(self, message: Any) -> str:
        start = self.payload_start(message)
        if start is None:
            return "not kept"
        kind, text = payload.shown(*start, message.content)
        address = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_payload", args=[message.pk])
        return format_html('<pre>{}</pre><p>{}. <a href="{}">Download</a></p>', text, kind, address)


def _first_id(message: Any) -> int:
    return int(getattr(message, "origin_id", None) or message.pk)
