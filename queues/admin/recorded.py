"""Operators' actions in the admin are recorded in the audit chain "operators", with their names."""

from __future__ import annotations

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_permission_codename
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms.widgets import MediaDefiningClass
from django.http import HttpRequest, HttpResponse

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


class RecordedAdmin(ModelAdmin):
    """Records additions, changes and deletions in their transactions; actions call `record_action` or `log_done`."""

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
