"""Operators' actions on messages: a preview with a count and a sample, a question, and a bulk operation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse

from queues.admin.audited import confirmed, demand, operator, render_page
from queues.admin.find import FindForm, actions_of, archived_rows, destroys, live_rows, may_operate
from queues.admin.generic import ModelAdmin
from queues.admin.life import ID
from queues.errors import BrokerError, OperationError
from queues.formats.limits import MAX_DELAY
from queues.models import BulkAction, BulkOperation, BulkState, Message
from queues.operations import bulk
from queues.operations.bulk import NEED_TARGET, BulkPlan, Preview
from queues.operations.search import FINISHED, Criteria

#: Parameters of the address: the action, whether all that was found or only what is selected, and the latter.
ACTION, SCOPE, SELECTED, ALL, IDS = "action", "scope", "selected", "all", "ids"
#: The state of those in a queue that an action is for, if it is for one only.
STATE: Mapping[str, str] = {BulkAction.PUT_BACK: "dead", BulkAction.DELIVER_NOW: "delayed"}

#: The names of actions on a single message, where those for many do not fit.
OF_ONE: Mapping[str, str] = {
    BulkAction.PUT_BACK: "Put it back where it came from", BulkAction.DELIVER_NOW: "Deliver it now",
}  # fmt: skip


class OperateForm(forms.Form):
    """The arguments of an action, beside its messages."""

    target = forms.CharField(max_length=255, label="To the queue", help_text="Its name.")
    most = forms.IntegerField(
        required=False, min_value=1, max_value=10**9, label="At most", help_text="So many, the first ones; empty: all."
    )
    delay = forms.FloatField(min_value=0.001, max_value=MAX_DELAY, label="For seconds")
    typed = forms.CharField(
        label="Name of the queue", help_text="Deleted messages are gone. Type the name of their queue to confirm.",
        widget=forms.TextInput(attrs={"autocomplete": "off"}), strip=False,
    )  # fmt: skip

    def __init__(self, action: BulkAction, criteria: Criteria, *args: Any) -> None:
        super().__init__(*args)
        self.queue = criteria.queue
        needed = {
            "target": action in NEED_TARGET, "delay": action == BulkAction.DELAY, "typed": destroys(action),
            "most": not criteria.ids,
        }  # fmt: skip
        for name, is_needed in needed.items():
            if not is_needed:
                del self.fields[name]

    def clean_typed(self) -> str:
        if self.cleaned_data["typed"] != self.queue:
            raise forms.ValidationError(f"This is not the name of the queue, {self.queue}.")
        return self.queue


def operate_address(action: str, ids: list[int], **more: str) -> str:
    """The page that previews an action for some messages, by their places or first ids."""
    query = {ACTION: action, SCOPE: SELECTED, IDS: list(map(str, ids)), **more}
    return f"{reverse('admin:queues_message_operate')}?{urlencode(query, doseq=True)}"


def operation_links(request: HttpRequest, id: str, finished: bool = False) -> list[tuple[str, str]]:
    """The addresses and names of what the user may do to the message of a page."""
    if not ID.fullmatch(id) or not request.user.has_perm("queues.view_message"):
        return []
    more = {"state": FINISHED} if finished else {}
    links = [
        (operate_address(action, [int(id)], **more), OF_ONE.get(action, name))
        for action, name in actions_of(request, finished)
    ]
    if request.user.has_perm("queues.change_message"):
        source = {"from": id, **({"finished": "1"} if finished else {})}
        links.append((f"{reverse('admin:queues_message_publish')}?{urlencode(source)}", "Edit and publish again"))
    return links


def queue_links(request: HttpRequest, queue: str) -> list[tuple[str, str]]:
    """The addresses and names of what the user may do to all messages of a queue; each begins with a preview."""
    if not request.user.has_perm("queues.view_message"):
        return []
    address = reverse("admin:queues_message_operate")
    return [
        (f"{address}?{urlencode({ACTION: action, SCOPE: ALL, 'queue': queue, 'state': STATE.get(action, '')})}", name)
        for action, name in actions_of(request)
    ]


def operate_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The page: a preview of what an address asks for; posted with a yes, the operation begins."""
    demand(model_admin.has_view_permission(request))
    try:
        action, criteria = _asked(request)
        demand(may_operate(request, action))
        plan = BulkPlan(action=action, criteria=criteria)
        found = bulk.preview(plan)
        form = OperateForm(action, criteria, request.POST if confirmed(request) else None)
        if confirmed(request) and form.is_valid():
            data = form.cleaned_data
            if most := data.get("most"):
                criteria = replace(criteria, most=most)
                complete = found.complete or most <= found.count
                found = replace(found, count=min(most, found.count), complete=complete)
            plan = BulkPlan(action=action, criteria=criteria, target=data.get("target", ""), delay=data.get("delay"))
            return _begin(model_admin, request, plan, found)
    except BrokerError as error:
        model_admin.message_user(request, str(error), messages.ERROR)
        return HttpResponseRedirect(reverse("admin:queues_message_find"))
    finished, label = criteria.state == FINISHED, action.label.capitalize()
    return render_page(
        model_admin, request, "message_operate", label, form=form, plan=plan, found=found, count=f"{found.count:,}",
        finished=finished, rows=archived_rows(found.sample) if finished else live_rows(found.sample.ids),
        destroys=destroys(action), action_label=label,
    )  # fmt: skip


def _begin(model_admin: ModelAdmin, request: HttpRequest, plan: BulkPlan, found: Preview) -> HttpResponse:
    """Begin, do the first step at once, and show how it goes on."""
    operation = bulk.start(plan, operator(request), found.count if found.complete else None)
    if bulk.step(operation.pk):
        bulk.local_runner.wake()
    operation.refresh_from_db()
    tell_result(model_admin, request, operation)
    return HttpResponseRedirect(reverse("admin:queues_bulkoperation_change", args=[operation.pk]))


def tell_result(model_admin: ModelAdmin, request: HttpRequest, operation: BulkOperation) -> None:
    """Say in a message of the site what has become of an operation, if it has ended."""
    text = f"{operation.done:,} done, {operation.skipped:,} left alone."
    if operation.state == BulkState.FAILED:
        model_admin.message_user(request, f"{operation.error} {text}", messages.ERROR)
    elif operation.state == BulkState.DONE:
        model_admin.message_user(request, text, messages.SUCCESS)


def _asked(request: HttpRequest) -> tuple[BulkAction, Criteria]:
    """The action and the messages of an address. Raises OperationError."""
    try:
        action = BulkAction(request.GET.get(ACTION, ""))
    except ValueError as error:
        raise OperationError("Choose what is to be done.") from error
    form = FindForm(request.GET)
    if not form.is_valid():
        raise OperationError("There is no such search.")
    criteria = form.criteria()
    if request.GET.get(SCOPE) != SELECTED:
        return action, criteria
    ids = request.GET.getlist(IDS)
    if not ids or not all(map(ID.fullmatch, ids)):
        raise OperationError("Select at least one message.")
    selected = tuple(map(int, ids))[: bulk.MAX_SELECTED + 1]
    queue = criteria.queue or (_queue_of(selected) if destroys(action) else "")
    state = criteria.state if criteria.state == FINISHED else ""
    return action, Criteria(ids=selected, queue=queue, state=state)


def _queue_of(ids: tuple[int, ...]) -> str:
    """The queue of which these messages are; empty when they are of several, or gone."""
    rows = Message.objects.filter(Q(pk__in=ids) | Q(origin_id__in=ids))
    names = list(rows.order_by().values_list("queue__name", flat=True).distinct()[:2])
    return names[0] if len(names) == 1 else ""
