"""Asking before what cannot be undone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from queues.admin.generic import ModelAdmin
from queues.admin.recorded import AbstractAdmin, RecordedAdmin, demand, operator, render_page, to_type
from queues.errors import BrokerError

#: The answer to an action on rows that have been deleted meanwhile.
GONE = "None of what was chosen is there any more."


def confirmed(request: HttpRequest, typed: str = "") -> bool:
    """Whether the page of `confirm_page` was answered with yes, and with what was to be typed."""
    if request.method != "POST" or "confirmed" not in request.POST:
        return False
    return not typed or request.POST.get("typed", "").strip() == typed.strip()


def confirm_page(
    model_admin: ModelAdmin, request: HttpRequest, title: str, question: str, lines: Sequence[str], button: str,
    action: str = "", selected: Sequence[Any] = (), typed: str = "",
) -> HttpResponse:  # fmt: skip
    """A page that shows what would happen to what; its answer comes to the same address. What destroys wants something
    `typed`."""
    return render_page(
        model_admin, request, "confirm", title, question=question, lines=lines, button=button, action=action,
        selected=selected, action_checkbox_name=ACTION_CHECKBOX_NAME, typed=typed,
        mistyped="confirmed" in request.POST,
    )  # fmt: skip


class ConfirmedDeletion(RecordedAdmin, metaclass=AbstractAdmin):
    """Deletes through `delete_by`, outside a transaction, after a page that lists all that goes with it and wants the
    name typed."""

    actions: Any = ("delete_selected",)

    @abstractmethod
    def delete_by(self, obj: Any, by: str) -> int:
        """Delete for this operator; returns the number of messages that went too."""

    @abstractmethod
    def deletion_lines(self, objects: Sequence[Any]) -> list[str]:
        """The objects that would be deleted, a line each."""

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, object_id)
        if obj is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)
        demand(self.has_delete_permission(request, obj))
        if not confirmed(request, to_type([obj])):
            return self._ask(request, [obj])
        self._delete(request, [obj])
        return HttpResponseRedirect(self.list_address)

    @admin.action(description="Delete", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        objects = list(queryset)
        if not objects:
            self.message_user(request, GONE, messages.WARNING)
            return None
        if not confirmed(request, to_type(objects)):
            return self._ask(request, objects, "delete_selected")
        self._delete(request, objects)
        return None

    def _ask(self, request: HttpRequest, objects: list[Any], action: str = "") -> HttpResponse:
        names = self.opts.verbose_name if len(objects) == 1 else self.opts.verbose_name_plural
        return confirm_page(
            self, request, "Are you sure?", f"This deletes the {names}, and every message held:",
            self.deletion_lines(objects), "Yes, delete", action, [obj.pk for obj in objects],
            to_type(objects),
        )  # fmt: skip

    def _delete(self, request: HttpRequest, objects: list[Any]) -> None:
        for obj in objects:
            name = str(obj)
            self.record_action(request, "delete", obj, self.deletion_lines([obj])[0].removeprefix(f"{name}: "))
            try:
                gone = self.delete_by(obj, operator(request))
            except BrokerError as error:
                self.record_action(request, "failed", obj, f"delete: {error}")
                self.message_user(request, f"{name}: {error}", messages.ERROR)
                continue
            self.log_deletions(request, [obj])  # type: ignore[arg-type]
            self.message_user(request, f"Deleted {name} with {gone:,} messages.", messages.SUCCESS)
