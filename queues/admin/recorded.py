"""Operators' actions in the admin are recorded in the audit chain "operators", with their names."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms.widgets import MediaDefiningClass
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, re_path, reverse

from queues.admin.generic import ModelAdmin
from queues.errors import BrokerError
from queues.operations import audit_log


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


def demand(allowed: bool) -> None:
    """Refuse the page (403) to a user who lacks the right."""
    if not allowed:
        raise PermissionDenied


def object_page(permission: str, *, post: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method of an admin class the page of one object. It is for users with the permission, and with `post` it
    only takes a POST. When the object is gone the user is told so on the list."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def view(self: Any, request: HttpRequest, id: object, **given: Any) -> Any:
            demand(getattr(self, f"has_{permission}_permission")(request))
            if post and request.method != "POST":
                return HttpResponseNotAllowed(["POST"])
            obj = self.get_object(request, str(id))
            if obj is None:
                return self._get_obj_does_not_exist_redirect(request, self.opts, str(id))
            return method(self, request, obj, **given)

        return view

    return decorate


def object_action(action: str, permission: str, *, post: bool = False, to_list: bool = False) -> Callable[..., Any]:
    """The page of one object that does to it what an action of the list does to many, and then leads to the object's
    own page, or `to_list`."""

    def view(self: Any, request: HttpRequest, obj: Model) -> Any:
        own = f"admin:{self.opts.app_label}_{self.opts.model_name}_change"
        address = self.list_address if to_list else reverse(own, args=[obj.pk])
        return getattr(self, action)(request, [obj]) or HttpResponseRedirect(address)

    return object_page(permission, post=post)(view)


class PreparedChangeList(ChangeList):
    """Has the admin class fetch what all rows of a page need."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        self.model_admin.prepare_rows(self.result_list)  # type: ignore[attr-defined]

    @property
    def refresh(self) -> int | None:
        """Seconds after which the page is to be loaded again; None: it need not be."""
        seconds: int | None = self.model_admin.refresh_after(self.result_list)  # type: ignore[attr-defined]
        return seconds


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


def render_page(
    model_admin: ModelAdmin, request: HttpRequest, template: str, title: str, **context: Any
) -> TemplateResponse:
    """A page of the admin: `admin/queues/TEMPLATE.html` with what all of them need, and more."""
    shared = {**model_admin.admin_site.each_context(request), "opts": model_admin.opts, "title": title}
    return TemplateResponse(request, f"admin/queues/{template}.html", {**shared, **context})


class RecordedAdmin(ModelAdmin):
    """Records additions, changes and deletions in their transactions; actions call `record_action` or `log_done`. A
    deletion wants the name typed."""

    #: Pages of its own: `name_view` at each path, whose address is named `app_model_name`.
    pages: Mapping[str, str] = {}
    #: Relations that are read with the rows.
    related: Sequence[str] = ()
    #: The text about an object that is gone; empty: Django's.
    gone = ""
    change_list: ClassVar[type[ChangeList]] = PreparedChangeList
    #: Errors that refuse an action.
    refusals: ClassVar[tuple[type[Exception], ...]] = (BrokerError,)
    show_full_result_count = False
    delete_confirmation_template = "admin/queues/delete_confirmation.html"
    delete_selected_confirmation_template = "admin/queues/delete_selected_confirmation.html"

    def get_urls(self) -> list[URLPattern]:
        wrap, prefix = self.admin_site.admin_view, f"{self.opts.app_label}_{self.opts.model_name}"
        own = []
        for name, route in self.pages.items():
            make = re_path if route.startswith("^") else path
            own.append(make(route, wrap(getattr(self, f"{name}_view")), name=f"{prefix}_{name}"))
        return [*own, *super().get_urls()]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return self.change_list

    def prepare_rows(self, rows: list[Any]) -> None:
        """Fetch at once what all rows of a page need."""

    def refresh_after(self, rows: Sequence[Any]) -> int | None:
        """Seconds after which a list of these rows is out of date; None: it is not."""
        return None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        found: QuerySet[Any] = super().get_queryset(request)
        return found.select_related(*self.related) if self.related else found

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """The context of the list beside that of every list."""
        return {}

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        """The context of an object's page beside that of every page."""
        return {}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        demand(self.has_view_or_change_permission(request))
        return super().changelist_view(request, {**self.list_context(request), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**self.object_context(request, object_id), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, context)

    def _get_obj_does_not_exist_redirect(self, request: HttpRequest, opts: Any, object_id: str) -> HttpResponse:
        """Its page may load itself again, and find that it is gone."""
        if not self.gone:
            return super()._get_obj_does_not_exist_redirect(request, opts, object_id)  # type: ignore[misc, no-any-return]
        self.message_user(request, self.gone.format(object_id), messages.WARNING)
        return HttpResponseRedirect(self.list_address)

    @property
    def list_address(self) -> str:
        """The address of the list."""
        return reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id))
        mistyped = request.method == "POST" and obj is not None and not _is_typed(request, [obj])
        if mistyped:
            request.POST = QueryDict()  # so Django asks again
        typed = "" if obj is None else to_type([obj])
        return super().delete_view(request, object_id, {"typed": typed, "mistyped": mistyped, **(extra_context or {})})

    @contextmanager
    def attempt(self, request: HttpRequest, failure: str = "") -> Iterator[list[str]]:
        """Act in a transaction, and tell the user why that is refused, after `failure`; or what is done, the text that
        was appended to the list."""
        done: list[str] = []
        try:
            with transaction.atomic():
                yield done
        except self.refusals as error:
            self.message_user(request, f"{failure}{error}", messages.ERROR)
        else:
            for text in done:
                self.message_user(request, text, messages.SUCCESS)

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
    """Rows that the broker makes: the admin adds and changes none, so Django only shows the `fields`. Operators may act
    on them, on pages of their own.
    """

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may act on rows: disconnect, free, move, cancel."""
        return request.user.has_perm(f"{self.opts.app_label}.{get_permission_codename('change', self.opts)}")

    def object_context(self, request: HttpRequest, object_id: str) -> dict[str, Any]:
        return {**super().object_context(request, object_id), "may_operate": self.has_operate_permission(request)}


class ReadOnlyAdmin(FixedAdmin):
    """Rows that the broker makes and deletes."""

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _changed(message: list[dict[str, dict[str, Any]]]) -> str:
    """The fields in a message that the admin has made of a form."""
    fields = [field for part in message for what in part.values() for field in what.get("fields", ())]
    return ", ".join(map(str, fields))
