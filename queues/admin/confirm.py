"""Asking before what cannot be undone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpRequest, HttpResponse

from queues.admin.generic import ModelAdmin
from queues.admin.recorded import AbstractAdmin, RecordedAdmin, object_action, operator, render_page, to_type
from queues.errors import BrokerError

#: The answer to an action on rows that have been deleted meanwhile.
GONE = "None of what was chosen is there any more."


def confirmed(request: HttpRequest, typed: str = "") -> bool:
    """Whether the page of `confirm_page` was answered with yes, and with what was to be typed."""
    if request.method != "POST" or "confirmed" not in request.POST:
        return False
    return not typed or request.POST.get("typed", "").strip() == typed.strip()


def confirm_page(
    model_admin: ModelAdmin, request: HttpRequest, question: str, lines: Sequence[str], button: str,
    objects: Sequence[Any] = (), typed: str = "", title: str = "Are you sure?",
) -> HttpResponse:  # fmt: skip
    """A page that shows what would happen to what; its answer comes to the same address, and in a list to the action
    that asks. What destroys wants something `typed`."""
    return render_page(
        model_admin, request, "confirm", title, question=question, lines=lines, button=button,
        action=request.POST.get("action"), selected=[obj.pk for obj in objects],
        action_checkbox_name=ACTION_CHECKBOX_NAME, typed=typed, mistyped="confirmed" in request.POST,
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
        answer: HttpResponse = self._delete_view(request, id=object_id)
        return answer

    _delete_view = object_action("delete_selected", "delete", to_list=True)

    @admin.action(description="Delete", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: Iterable[Any]) -> HttpResponse | None:
        objects = list(queryset)
        if not objects:
            self.message_user(request, GONE, messages.WARNING)
            return None
        if not confirmed(request, to_type(objects)):
            names = self.opts.verbose_name if len(objects) == 1 else self.opts.verbose_name_plural
            question, lines = f"This deletes the {names}, and every message held:", self.deletion_lines(objects)
            return confirm_page(self, request, question, lines, "Yes, delete", objects, to_type(objects))
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
        return None
