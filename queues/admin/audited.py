"""Operators' actions in the admin are recorded in the audit chain "operators", with their names."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.contrib.auth import get_permission_codename
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms.widgets import MediaDefiningClass
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, re_path, reverse
from django.utils.text import capfirst

from queues.admin.generic import ModelAdmin
from queues.errors import BrokerError
from queues.operations import audit_log

#: The answer to an action on rows that have been deleted meanwhile.
GONE = "None of what was chosen is there any more."


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


def render_page(
    model_admin: ModelAdmin, request: HttpRequest, template: str, title: str, **context: Any
) -> TemplateResponse:
    """A page of the admin: `admin/queues/TEMPLATE.html` with what all of them need, and more."""
    shared = {**model_admin.admin_site.each_context(request), "opts": model_admin.opts, "title": title}
    return TemplateResponse(request, f"admin/queues/{template}.html", {**shared, **context})


def confirmed(request: HttpRequest, typed: str = "") -> bool:
    """Whether the page of `confirm_page` was answered with yes, and with what was to be typed."""
    if request.method != "POST" or "confirmed" not in request.POST:
        return False
    return not typed or request.POST.get("typed", "").strip() == typed.strip()


def confirm_page(
    model_admin: ModelAdmin, request: HttpRequest, question: str, lines: Sequence[Any], button: str,
    objects: Sequence[Any] = (), typed: str = "", title: str = "Are you sure?",
) -> HttpResponse:  # fmt: skip
    """A page that shows what would happen to what; its answer comes to the same address, and in a list to the action
    that asks. What destroys wants something `typed`."""
    return render_page(
        model_admin, request, "confirm", title, question=question, lines=lines, button=button,
        action=request.POST.get("action"), selected=[obj.pk for obj in objects],
        action_checkbox_name=ACTION_CHECKBOX_NAME, typed=typed, mistyped="confirmed" in request.POST,
    )  # fmt: skip


def row_action(
    do: Callable[[Any], object], description: str, event: str, log: str, permission: str = "change", question: str = "",
    button: str = "", detail: Callable[[Any], str] = lambda row: "",
) -> Callable[..., HttpResponse | None]:  # fmt: skip
    """An action of a list that does something to each row, in a transaction of its own; after the question, if there is
    one. `event` is its name in the record, with a `detail`; `log` tells that it is done."""

    @admin.action(description=description, permissions=[permission])
    def act(self: AuditedAdmin, request: HttpRequest, queryset: Iterable[Any]) -> HttpResponse | None:
        chosen = list(queryset)
        if not chosen:
            self.message_user(request, GONE, messages.WARNING)
        elif question and not confirmed(request):
            return confirm_page(self, request, question, self.lines_of(request, chosen), button, chosen)
        for obj in chosen:
            with self.attempt(request, f"{obj}: ") as done:
                self.log_done(request, obj, event, f"{log}.", detail(obj))
                done.append(f"{log} {obj}.")
                do(obj)
        return None

    return act


class AuditedAdmin(ModelAdmin):
    """Records additions, changes and deletions in their transactions; actions call `record_action` or `log_done`. A
    deletion asks first, on a page that lists all that goes and wants the name typed."""

    actions: Any = ("delete_selected",)

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

    class Media:
        css: ClassVar = {"all": ("queues/site.css",)}

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
        title = capfirst(self.opts.verbose_name_plural)
        return super().changelist_view(request, {"title": title, **self.list_context(request), **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        title = capfirst(self.opts.verbose_name)
        context = {"title": title, **self.object_context(request, object_id), **(extra_context or {})}
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
        answer: HttpResponse = self.deletion_page(request, id=unquote(object_id))
        return answer

    deletion_page = object_action("delete_selected", "delete", to_list=True)

    @admin.action(description="Delete", permissions=["delete"])
    def delete_selected(self, request: HttpRequest, queryset: Iterable[Any]) -> HttpResponse | None:
        objects = list(queryset)
        if not objects:
            self.message_user(request, GONE, messages.WARNING)
            return None
        lines = self.lines_of(request, objects)
        if not confirmed(request, to_type(objects)):
            names = self.opts.verbose_name if len(objects) == 1 else self.opts.verbose_name_plural
            question = f"This deletes the {names}, and all that is held:"
            return confirm_page(self, request, question, lines, "Yes, delete", objects, to_type(objects))
        for obj in objects:
            self.delete_by(request, obj)
        return None

    def lines_of(self, request: HttpRequest, objects: Sequence[Any]) -> Sequence[Any]:
        """Objects that an action asks about, a line each with what goes with it; all that Django finds if that is not
        known. Refuses the page to a user who may not delete something that would go too."""
        lines, _, lacking, protected = self.get_deleted_objects(objects, request)
        if too := [*sorted(lacking), *map(str, protected)]:
            raise PermissionDenied(f"This would also delete what you may not delete: {', '.join(too)}.")
        return lines

    def delete_by(self, request: HttpRequest, obj: Any) -> None:
        """Delete an object, and tell the user."""
        with self.attempt(request, f"{obj}: ") as done:
            self.record_action(request, "delete", obj)
            self.log_deletions(request, [obj])  # type: ignore[arg-type]
            done.append(f"Deleted {obj}.")
            obj.delete()

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


class FixedAdmin(AuditedAdmin):
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
