"""The front page: the state of the broker, refreshed in place."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from heapq import nsmallest
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import get_script_prefix, reverse
from django.utils.translation import get_language

from queues.admin.audited import demand, operator
from queues.admin.charts import Charts, format_number, format_rate, format_seconds, format_size
from queues.admin.columns import queue_shown, time_ago
from queues.admin.find import find_address
from queues.admin.history import DEFAULT_SPAN, history, history_charts
from queues.admin.links import listed, page_of
from queues.admin.reasons import reasons_address
from queues.errors import BrokerError
from queues.formats.times import duration
from queues.operations.backends import end_backend
from queues.operations.monitor import reader
from queues.operations.overview import HorizonHolder, QueueState
from queues.operations.state import BrokerState, Problem
from queues.store.samples import SPANS

VIEW, END_BACKEND = "queues.view_queue", "queues.end_backend"
#: Queues with a line of their own.
MAX_QUEUES = 10
#: Pages where problems are dealt with: the words of the link, the page, and what it is asked for besides.
PAGES: Mapping[str, tuple[str, str]] = {
    "chain": ("Chain", "auditchain_change"), "run": ("Run", "etlrun_change"),
    "schedule": ("Schedule", "etlschedule_change"),
    **dict.fromkeys(("deserted", "growing", "dead", "paused"), ("Queue", "queue_change")),
}  # fmt: skip


def front_context(request: HttpRequest) -> dict[str, Any]:
    """The index page's state of the broker, beside the models."""
    if not request.user.has_perm(VIEW):
        return {"may_see": False}
    found = _sections(request)
    sections = [Section(name, html) for name, html in found.items()]
    return {"may_see": True, "sections": sections, "charts": _charts(request) if "figures" in found else None}


class Section:
    """A part of the page that is replaced when its version changes."""

    def __init__(self, name: str, html: str) -> None:
        self.name = name
        self.html = html
        self.version = blake2b(html.encode(), digest_size=8).hexdigest()


def state_view(request: HttpRequest) -> HttpResponse:
    """The sections that differ from the versions that the browser has, as JSON: `{name: {"html", "version"}}`."""
    demand(request.user.has_perm(VIEW))
    sections = (Section(name, html) for name, html in _sections(request).items())
    changed = {one.name: {"html": one.html, "version": one.version} for one in sections
               if request.GET.get(one.name) != one.version}  # fmt: skip
    answer = JsonResponse(changed)
    answer.headers["Cache-Control"] = "no-store"
    return answer


class _Rendered:
    """The sections of the last state: browsers with the same rights get the same, in one language below one path."""

    state: BrokerState | None = None
    #: By whether they have the button that ends a session, and by `_dress`.
    sections: Mapping[tuple[bool, object], dict[str, str]] = {}


def _dress() -> object:
    """What makes the same state another HTML: the path before all addresses, and the language of numbers."""
    return get_script_prefix(), get_language()


def _sections(request: HttpRequest) -> dict[str, str]:
    """The sections' HTML, drawn once for each state and right."""
    may_end = request.user.has_perm(END_BACKEND)
    try:
        state = reader.read()
    except DatabaseError as error:
        problem = Problem("away", f"The state of the broker could not be read: {error}", "Look at the database.")
        return {"problems": _problems([problem], may_end)}
    if _Rendered.state is not state:
        _Rendered.state, _Rendered.sections = state, {}
    kind = may_end, _dress()
    if kind not in _Rendered.sections:
        _Rendered.sections = {**_Rendered.sections, kind: _draw(state, may_end)}
    return _Rendered.sections[kind]


def _draw(state: BrokerState, may_end: bool) -> dict[str, str]:
    return {
        "problems": _problems(state.problems, may_end),
        "figures": render_to_string("admin/queues/front_figures.html", {"figures": _figures(state)}),
        "reasons": render_to_string("admin/queues/front_reasons.html", {"reasons": _reasons(state)}),
        "busiest": render_to_string("admin/queues/front_queues.html", {"queues": _busiest(state)}),
    }


def _charts(request: HttpRequest) -> Charts | None:
    """The last hour's, which follow the broker by themselves."""
    state = _Rendered.state
    if state is None or state.series is None:
        return None
    return history(history_charts(state.series, SPANS[DEFAULT_SPAN], state.series_at)[:2], request, DEFAULT_SPAN)


def _problems(problems: list[Problem], may_end: bool) -> str:
    shown = [(problem, _links(problem, may_end)) for problem in problems]
    told = {"problems": shown, "summary": _summary(problems), "well": all(one.notice for one in problems)}
    return render_to_string("admin/queues/front_problems.html", told)


def _summary(problems: list[Problem]) -> str:
    """The state of the broker in a sentence, without figures that change while nothing happens."""
    notices = sum(one.notice for one in problems)
    wrong = len(problems) - notices
    if not wrong:
        known = "" if not notices else f" {_things(notices)} worth knowing."
        return f"Nothing is wrong.{known}"
    return "One thing needs attention." if wrong == 1 else f"{wrong} things need attention."


def _things(count: int) -> str:
    return "One thing is" if count == 1 else f"{count} things are"


def _reasons(state: BrokerState) -> list[dict[str, Any]]:
    """The largest groups of dead letters, of queues that still have some."""
    dead = {queue.id: queue.name for queue in state.overview.queues if queue.counts.dead}
    return [
        {
            "reason": group.reason, "queue": queue_shown(dead[group.queue]), "count": format_number(group.count),
            "last": time_ago(group.last), "page": find_address(dead[group.queue], "dead", group.reason),
            "queue_page": page_of("queue", group.queue),
        }
        for group in state.reasons
        if group.queue in dead
    ]  # fmt: skip


def _links(problem: Problem, may_end: bool) -> list[tuple[str, str]]:
    """The words and the addresses of the pages where a problem is dealt with."""
    if problem.holder is not None:
        address = reverse("admin:end_backend", args=[problem.holder.name])
        return [("End the session", f"{address}?{urlencode({'started': problem.holder.started})}")] * may_end
    links = [("Dead letters", reasons_address(problem.queue))] if problem.queue and problem.dead else []
    if problem.kind == "idle":
        links.append(("Subscriptions", f"{reverse('admin:queues_subscription_changelist')}?ends_at__isempty=0"))
    if problem.kind in PAGES and problem.id is not None:
        words, page = PAGES[problem.kind]
        links.append((words, reverse(f"admin:queues_{page}", args=[problem.id])))
    return links


def _figures(state: BrokerState) -> list[tuple[str, str, str, str]]:
    """Name, figure, what to add to it, and the page that has more of it."""
    queues, history = listed("queue"), listed("queuesample")
    oldest = max(state.oldest, key=lambda id: state.oldest[id], default=None)
    now, total = state.overview, state.overview.totals
    lag = "" if not now.standbys else f"standbys: {now.standbys}, " + (
        "lag unknown" if now.lag is None else f"{format_seconds(now.lag)} behind"
    )  # fmt: skip
    with_dead = sum(1 for one in now.queues if one.counts.dead)
    commits = "" if now.commit_rate is None else f"{format_number(round(now.commit_rate))} commits/s"
    return [
        ("In", format_rate(now.in_rate), "messages stored", history),
        ("Out", format_rate(now.out_rate), "messages that left", history),
        ("Ready", format_number(total.ready), f"{format_number(total.delayed)} delayed", queues),
        (
            "Oldest", "-" if state.oldest_age is None else duration(state.oldest_age), "first ready message",
            queues if oldest is None else page_of("queue", oldest),
        ),
        ("Unacknowledged", format_number(total.leased), "with consumers", find_address("", "leased")),
        ("Dead letters", format_number(total.dead), f"queues with some: {with_dead}", reasons_address()),
        (
            "Consumers", format_number(now.workers + now.peers), f"workers: {now.workers}, peers: {now.peers}",
            listed("worker" if now.workers or not now.peers else "mailbox"),
        ),
        ("Connections", format_number(now.clients), "of clients, over every protocol", listed("connection")),
        ("Nodes", format_number(now.nodes), f"database connections: {now.connections}", listed("node")),
        (
            "Database", "-" if state.database_bytes is None else format_size(state.database_bytes),
            ", ".join(filter(None, (commits, lag))) or "no standby", history,
        ),
        ("Queues", format_number(len(now.queues)), f"{sum(one.paused for one in now.queues)} paused", queues),
    ]  # fmt: skip


def _busiest(state: BrokerState) -> list[dict[str, Any]]:
    def busy(queue: QueueState) -> tuple[float, int, str]:
        return -queue.in_rate - queue.out_rate, -sum(queue.counts[:4]), queue.name

    return [
        {
            "queue": queue, "name": queue_shown(queue.name), "in": format_rate(queue.in_rate),
            "out": format_rate(queue.out_rate),
            "oldest": duration(state.oldest[queue.id]) if queue.id in state.oldest else "-",
        }
        for queue in nsmallest(MAX_QUEUES, state.overview.queues, busy)
    ]  # fmt: skip


def end_backend_view(request: HttpRequest, pid: int) -> HttpResponse:
    """Ask whether a session that holds back vacuum is to be ended, and end it."""
    demand(request.user.has_perm(END_BACKEND))
    reader.forget()
    holder = _holder(pid, request.GET.get("started", ""))
    if holder is None:
        messages.warning(request, "The session does not hold back vacuum any more.")
        return HttpResponseRedirect(reverse("admin:index"))
    if request.method == "POST":
        try:
            end_backend(holder, operator(request))
        except BrokerError as error:
            messages.error(request, str(error))
        else:
            messages.success(request, f"Ended the session {pid}.")
        reader.forget()
        return HttpResponseRedirect(reverse("admin:index"))
    context = {**admin.site.each_context(request), "title": "End a session of the database", "holder": holder}
    return TemplateResponse(request, "admin/queues/end_backend.html", context)


def _holder(pid: int, started: str) -> HorizonHolder | None:
    if not started:
        raise Http404
    held = (one for one in reader.read().overview.holders if one.kind == "backend")
    return next((one for one in held if (one.name, one.started) == (str(pid), started)), None)
