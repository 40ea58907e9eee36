"""Pages of where messages go: topics with their subscribers, and routes as a picture."""

from __future__ import annotations

from urllib.parse import urlencode

from django.contrib import messages
from django.db import OperationalError
from django.http import HttpRequest, HttpResponse
from django.urls import reverse

from queues.admin.audited import demand, render_page
from queues.admin.flow_picture import draw
from queues.admin.generic import ModelAdmin
from queues.operations.flows import Flows, Topic, busiest_flows, flows_around, list_topics
from queues.permissions.addresses import InvalidAddress, parse_address

VIEW = ("queues.view_route", "queues.view_subscription", "queues.view_queue")
TOO_LONG = "This takes too long now; try it again later."


def flows_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """The picture, of the busiest queues or around an address."""
    demand(request.user.has_perms(VIEW))
    around, flows = request.GET.get("around", "").strip(), Flows()
    try:
        if around:
            kind, name = parse_address(around)
            around = f"{kind}:{name}"
            flows = flows_around(around)
        else:
            flows = busiest_flows()
    except InvalidAddress as error:
        messages.error(request, str(error))
    except OperationalError:
        messages.error(request, TOO_LONG)
    pages = {address: reverse("admin:queues_queue_change", args=[state.id]) for address, state in flows.queues.items()}
    picture = draw(flows)
    steps = [(step, pages.get(step.source, ""), pages.get(step.target, "")) for step in picture.steps]
    return render_page(
        model_admin, request, "flows", "Routes as a picture", around=around, flows=flows, picture=picture, steps=steps
    )


def topics_view(model_admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """A page of topics."""
    demand(request.user.has_perms(VIEW))
    try:
        after = bytes.fromhex(request.GET.get("after", ""))
    except ValueError:
        after = b""
    topics: list[Topic] = []
    more = False
    try:
        topics, more = list_topics(after)
    except OperationalError:
        messages.error(request, TOO_LONG)
    subscriptions, picture = reverse("admin:queues_subscription_changelist"), reverse("admin:queues_route_picture")
    listed = [
        (
            topic, f"{subscriptions}?{urlencode({'q': topic.text})}",
            f"{picture}?{urlencode({'around': f'topic:{topic.text}'})}",
        )
        for topic in topics
    ]  # fmt: skip
    return render_page(
        model_admin, request, "topics", "Topics", topics=listed, first_page="?" if after else "",
        next_page=f"?after={topics[-1].name.hex()}" if more else "",
    )  # fmt: skip
