"""Dead letters by reason, and what can be done to all of one group."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.db import OperationalError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from queues.admin.audited import demand, render_page
from queues.admin.columns import queue_shown, time_ago
from queues.admin.find import may_operate
from queues.admin.generic import ModelAdmin
from queues.admin.links import page_of
from queues.errors import BrokerError
from queues.models import BulkAction, Queue
from queues.operations.messages import get_queue
from queues.operations.monitor import reader
from queues.operations.reasons import FEW_LETTERS, MAX_LETTERS, ReasonGroup, dead_reasons, grouped
from queues.store.counts import QueueCounts, queue_counts

#: Limits: queues on the page of all reasons, groups on a queue's page, groups on the page of reasons.
MAX_QUEUES, MAX_FEW, MAX_GROUPS = 50, 10, 200
#: Rows of other kinds that failed, the newest.
MAX_FAILED = 200
#: What can be done to a group, in the words of its links.
ACTIONS = {BulkAction.PUT_BACK: "Put back", BulkAction.MOVE: "Move", BulkAction.DELETE: "Delete"}
TOO_LONG = "This takes too long now; try it again later."


def reasons_address(queue: str = "") -> str:
    """The page of the reasons of a queue's dead letters, or of all queues'."""
    address = reverse("admin:queues_message_reasons")
    return f"{address}?{urlencode({'queue': queue})}" if queue else address


def few_reasons(request: HttpRequest, queue: Queue, counts: QueueCounts) -> dict[str, Any]:
    """The groups for the page of a queue: of its newest dead letters, or of those that other queues sent here."""
    try:
        moved = not counts.dead and bool(counts.ready) and Queue.objects.filter(dead_letter_queue=queue).exists()
        groups = dead_reasons([queue.pk], FEW_LETTERS, moved=moved) if counts.dead or moved else []
    except OperationalError:
        return {"reasons_note": TOO_LONG}
    shown = _rows(request, groups[:MAX_FEW], {queue.pk: queue.name}, moved)
    cut = (counts.ready if moved else counts.dead) > FEW_LETTERS
    return {
        "reasons": shown, "reasons_page": reasons_address(queue.name), "newest": FEW_LETTERS if cut else 0,
    }  # fmt: skip


def reasons_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The page: `?queue=NAME`, or of the queues with the most dead letters."""
    demand(model_admin.has_view_permission(request))
    name, rows, looked, cut = request.GET.get("queue", "").strip(), [], 0, False
    try:
        if name:
            queue = get_queue(name)
            counts = queue_counts(queue.pk)
            dead, homes = ({queue.pk: queue.name} if counts.dead else {}), {queue.pk: queue.name}
            homes = homes if Queue.objects.filter(dead_letter_queue=queue).exists() else {}
        else:
            most = sorted(reader.read().overview.queues, key=lambda one: -one.counts.dead)[:MAX_QUEUES]
            dead = {one.id: one.name for one in most if one.counts.dead}
            targets = Queue.objects.exclude(dead_letter_queue=None).values("dead_letter_queue")
            homes = dict(Queue.objects.filter(pk__in=targets).values_list("pk", "name")[:MAX_QUEUES])
        for names, moved in ((dead, False), (homes, True)):
            groups = dead_reasons(list(names), MAX_LETTERS, moved=moved) if names else []
            looked += (seen := sum(group.count for group in groups))
            cut = cut or seen >= MAX_LETTERS // max(1, len(names))
            rows += _rows(request, groups, names, moved)
    except BrokerError as error:
        model_admin.message_user(request, str(error), messages.ERROR)
    except OperationalError:
        model_admin.message_user(request, TOO_LONG, messages.ERROR)
    rows.sort(key=lambda row: -row["count"])
    title = f"Dead letters of {name} by reason" if name else "Dead letters by reason"
    return render_page(
        model_admin, request, "message_reasons", title, rows=rows[:MAX_GROUPS], looked=looked, cut=cut, queue=name,
        left_out=max(0, len(rows) - MAX_GROUPS),
    )  # fmt: skip


def failures(failed: QuerySet[Any]) -> list[dict[str, Any]]:
    """The newest rows of those that failed, with an `error` and an end, by reason: groups for a table, each with the
    address of its last one. One query."""
    newest = failed.order_by("-id").values_list("id", "error", "ended_at")[:MAX_FAILED]
    groups = grouped(ReasonGroup(0, error, 1, at, at, error, id) for id, error, at in newest)
    model = str(failed.model._meta.model_name)
    return [_shown(group) | {"links": [("The last one", page_of(model, group.id))]} for group in groups[:MAX_FEW]]


def _shown(group: ReasonGroup) -> dict[str, Any]:
    return {
        "reason": group.reason, "count": group.count, "first": time_ago(group.first), "last": time_ago(group.last),
        "example": group.example,
    }  # fmt: skip


def _rows(
    request: HttpRequest, groups: Iterable[ReasonGroup], names: dict[int, str], moved: bool
) -> list[dict[str, Any]]:
    """Groups for a table, each with the addresses of what can be done to all of it, which ask first."""
    find, operate = reverse("admin:queues_message_find"), reverse("admin:queues_message_operate")
    rows = []
    for group in groups:
        search = {"queue": names[group.queue], "state": "ready" if moved else "dead", "reason": group.reason}
        links = [("See", f"{find}?{urlencode(search)}")]
        links += [
            (words, f"{operate}?{urlencode({'action': action, 'scope': 'all', **search})}")
            for action, words in ACTIONS.items()
            if may_operate(request, action)
        ]
        page = page_of("queue", group.queue)
        rows.append(_shown(group) | {"queue": queue_shown(names[group.queue]), "queue_page": page, "links": links})
    return rows
