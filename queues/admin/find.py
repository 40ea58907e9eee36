"""The page on which messages are found: criteria, results, and the number of messages that were looked at."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import lazy

from queues.admin import payload
from queues.admin.audited import demand, render_page
from queues.admin.columns import queue_shown, state_name
from queues.admin.generic import ModelAdmin
from queues.admin.life import ID
from queues.errors import BrokerError
from queues.formats.times import zone
from queues.models import BulkAction, Message, Outcome, Queue
from queues.operations.keys import PROTOCOLS
from queues.operations.search import FINISHED, STATES, Criteria, Look, Search

#: Messages on one page.
PAGE = 50
CURSOR, LOOKED = "after", "looked"


def _of_time() -> str:
    return f"{zone()}; of publishing, in the archive of the end."


class MomentField(forms.DateTimeField):
    """A time by the clock that the pages show."""

    def clean(self, value: Any) -> datetime | None:
        found = super().clean(value)
        return timezone.make_aware(found) if found is not None and timezone.is_naive(found) else found


class FindForm(forms.Form):
    """The fields of `Criteria`."""

    id = forms.RegexField(ID, required=False, label="Message", help_text="Its number: leads to its page.")
    queue = forms.CharField(required=False, max_length=255, help_text="Its name.")
    state = forms.ChoiceField(
        choices=[
            ("", "not finished"), *((name, state_name(name)) for name in STATES), (FINISHED, "finished: in the archive")
        ],
        required=False,
    )
    since = MomentField(required=False, help_text=lazy(_of_time, str)())
    until = MomentField(required=False, label="Before")
    key = forms.CharField(required=False, max_length=1024, help_text="Exactly.")
    producer = forms.CharField(required=False, max_length=100, help_text="The name of an API key.")
    protocol = forms.ChoiceField(
        choices=[("", "any"), *((name, name) for name in sorted({*PROTOCOLS, "celery"} - {"http"}))], required=False,
        help_text="As the content, or a key that is good for one protocol, tells.",
    )  # fmt: skip
    header = forms.CharField(required=False, max_length=255, help_text="Its name.")
    value = forms.CharField(required=False, max_length=1000, label="Value of the header")
    text = forms.CharField(
        required=False, max_length=1000, strip=False, label="Text in the body", help_text="In its first 64 KiB."
    )

    reason = forms.CharField(
        required=False, max_length=5000, label="Reason of a dead letter",
        help_text="As it is; numbers, ids and quoted values may differ.",
    )  # fmt: skip

    def criteria(self) -> Criteria:
        """The criteria of a valid form."""
        given = {name: value for name, value in self.cleaned_data.items() if value and name != "id"}
        return Criteria(**given)


def find_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The page: a form, and once something is asked for, what was found."""
    demand(model_admin.has_view_permission(request))
    asked = any(name in request.GET for name in FindForm.base_fields)
    form = FindForm(request.GET if asked else None)
    context: dict[str, Any] = {"form": form, "media": form.media}
    if asked and form.is_valid():
        if id := form.cleaned_data["id"]:
            return HttpResponseRedirect(reverse("admin:queues_message_change", args=[id]))
        try:
            context |= _found(request, form.criteria())
        except BrokerError as error:
            context["refusal"] = str(error)
    return render_page(model_admin, request, "message_find", "Find messages", **context)


def find_address(queue: str, state: str = "", reason: str = "") -> str:
    """The page of searches, with what a search of a queue, a state and a reason finds."""
    asked = {name: value for name, value in (("queue", queue), ("state", state), ("reason", reason)) if value}
    return f"{reverse('admin:queues_message_find')}?{urlencode(asked)}".removesuffix("?")


def _found(request: HttpRequest, criteria: Criteria) -> dict[str, Any]:
    """The results of a search, for the page."""
    search = Search(criteria)
    look = search.find(request.GET.get(CURSOR, ""), PAGE)
    before = request.GET.get(LOOKED, "")
    looked = look.looked + (int(before) if before.isascii() and before.isdigit() and len(before) < 16 else 0)
    rows = archived_rows(look) if search.is_archive else live_rows(look.ids)
    kept = {name: value for name, value in request.GET.items() if name in FindForm.base_fields and value}
    further = ""
    if look.cursor:
        further = f"?{urlencode(kept | {CURSOR: look.cursor, LOOKED: str(looked)})}"
    return {
        "rows": rows, "looked": looked, "further": further, "finished": search.is_archive, "kept": kept,
        "actions": actions_of(request, search.is_archive), "selectable": True, "page_size": PAGE,
    }  # fmt: skip


def may_operate(request: HttpRequest, action: str) -> bool:
    """Whether the user may do this to messages."""
    return request.user.has_perm(f"queues.{'delete' if destroys(action) else 'change'}_message")


def destroys(action: str) -> bool:
    """Whether messages are gone after it."""
    return action == BulkAction.DELETE


def actions_of(request: HttpRequest, finished: bool = False) -> list[tuple[str, str]]:
    """The actions that the user may do, with their names; of finished messages copies can be made and nothing else."""
    return [
        (action.value, f"{action.label[0].upper()}{action.label[1:]}")
        for action in BulkAction
        if may_operate(request, action) and (not finished or action == BulkAction.COPY)
    ]


def live_rows(ids: list[int]) -> list[dict[str, Any]]:
    """Messages of the store for a table, in this order; those that have left it meanwhile are missing."""
    found = Message.objects.filter(pk__in=ids).select_related("queue").defer("payload", "headers")
    previewed = found.annotate(payload_size=payload.size(), payload_head=payload.head(payload.PREVIEW + 1))
    by_id: dict[int, Any] = {row.pk: row for row in previewed}
    return [
        {
            "id": row.origin_id or row.pk, "page": reverse("admin:queues_message_change", args=[row.pk]),
            "queue": queue_shown(row.queue.name), "state": state_name(row.get_state_display()),
            "attempts": row.attempts,
            "at": row.published_at, "key": row.key or "", "size": row.payload_size,
            "preview": payload.preview(bytes(row.payload_head), row.payload_size, row.content),
        }
        for row in (by_id[id] for id in ids if id in by_id)
    ]  # fmt: skip


def archived_rows(look: Look) -> list[dict[str, Any]]:
    """The same for finished messages."""
    kept = look.archived().defer("payload", "result", "headers")
    found = {(row.finished_at, row.pk): row for row in kept.order_by()}
    names = dict(Queue.objects.filter(pk__in={row.queue_id for row in found.values()}).values_list("pk", "name"))
    return [
        {
            "id": row.pk, "page": reverse("admin:queues_archivedmessage_change", args=[row.pk]),
            "queue": names.get(row.queue_id, f"deleted ({row.queue_id})"), "state": Outcome(row.outcome).label,
            "attempts": row.attempts, "at": row.finished_at, "key": row.key or "", "size": row.size, "preview": "",
        }
        for row in (found[pair] for pair in zip(look.times, look.ids, strict=True) if pair in found)
    ]  # fmt: skip
