"""Operators' actions in the admin are recorded in the audit chain "operators", with their names."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.auth import get_permission_codename
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms.widgets import MediaDefiningClass
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.response import TemplateResponse

from queues.operations import audit_log

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


class AbstractAdmin(ABCMeta, MediaDefiningClass):
    """The type of an admin class with abstract methods."""


def operator(request: HttpRequest) -> str:
    """The name of the operator."""
    return request.user.get_username()


def to_type(objects: Sequence[Any]) -> str:
    """The text to type before objects are destroyed: the name of one, the number of several."""
    if len(objects) == 1:
        return str(getattr(objects[0], "typed_name", objects[0]))
    return f"{len(objects)} {objects[0]._meta.verbose_name_plural}"


def _is_typed(request: HttpRequest, objects: Sequence[Any]) -> bool:
    return bool(objects) and request.POST.get("typed", "").strip() == to_type(objects).strip()


def _delete_selected(model_admin: ModelAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
    """Django's action, which asks again unless the name or the number was typed."""
    objects = list(queryset)
    mistyped = "post" in request.POST and not _is_typed(request, objects)
    if mistyped:
        asked = request.POST.copy()
        del asked["post"]
        request.POST = asked  # type: ignore[assignment]
    answer = delete_selected(model_admin, request, queryset)
    if isinstance(answer, TemplateResponse):
        answer.context_data = {**(answer.context_data or {}), "typed": to_type(objects), "mistyped": mistyped}
    return answer


class RecordedAdmin(ModelAdmin):
    """Records additions, changes and deletions in their transactions; actions call `record_action` or `log_done`. A
    deletion wants the name typed."""

    delete_confirmation_template = "admin/queues/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/queues/delete_selected_confirmation.html"

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id))
        mistyped = request.method == "POST" and obj is not None and not _is_typed(request, [obj])
        if mistyped:
            request.POST = QueryDict()  # so Django asks again
        typed = "" if obj is None else to_type([obj])
        return super().delete_view(
            request, object_id, {"typed": typed, "mistyped": mistyped, **(extra_context or {})}
        )

    def get_actions(self, request: HttpRequest) -> Any:
        actions: Any = super().get_actions(request)
        if "delete_selected" in actions and actions["delete_selected"][0] is delete_selected:
            actions["delete_selected"] = (_delete_selected, *actions["delete_selected"][1:])
        return actions

    def record_action(self, request: HttpRequest, event: str, obj: Model, detail: str = "") -> None:
        """Record that the user does something to an object."""
        audit_log.record(operator(request), event, audit_log.record_id(obj), detail)

    def log_done(self, request: HttpRequest, obj: Model, event: str, text: str, detail: str = "") -> None:
        """Record an action, and note it in Django's own log; to be called in the action's transaction."""
        self.record_action(request, event, obj, detail)
        self.log_only(request, obj, text)

    def log_only(self, request: HttpRequest, obj: Model, text: str) -> None:
        """Note an action in Django's own log; it is recorded already."""
        super().log_change(request, obj, text)

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> LogEntry:
        self.record_action(request, "add", obj)
        return super().log_addition(request, obj, message)

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> LogEntry:
        """Of a form the fields that changed, never their values; of an action what it says."""
        if message:
            self.record_action(request, "change", obj, message if isinstance(message, str) else _changed(message))
        return super().log_change(request, obj, message)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            self.record_action(request, "delete", obj)
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        with transaction.atomic():
            for obj in queryset:
                self.record_action(request, "delete", obj)
            super().delete_queryset(request, queryset)


class FixedAdmin(RecordedAdmin):
    """Rows that the broker makes: the admin adds and changes none. Operators may act on them, on pages of their own."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may act on rows: disconnect, free, move, cancel."""
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename('change', self.opts)}")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {"may_operate": self.has_operate_permission(request), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)


class ReadOnlyAdmin(FixedAdmin):
    """Rows that the broker makes and deletes."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _changed(message: list[dict[str, dict[str, Any]]]) -> str:
    """The fields in a message that the admin has made of a form."""
    fields = [field for part in message for what in part.values() for field in what.get("fields", ())]
    return ", ".join(map(str, fields))
