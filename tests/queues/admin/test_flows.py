"""The ways of messages, in the operators' pages: topics with their subscribers, and routes as a picture."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from html import unescape
from xml.etree import ElementTree

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import DjangoAssertNumQueries

from queues.admin.flow_picture import BOX
from queues.models import (
    DeadLetterCount,
    DeadLetterTally,
    Interest,
    Queue,
    Route,
    RouteCount,
    RouteTally,
    State,
    Subscription,
)
from queues.operations import flows
from queues.operations.flows import Edge, EdgeKind, flows_around
from queues.operations.monitor import reader
from queues.store.counts import queue_counts
from tests.queues.admin.test_admin import LOGIN, address
from tests.queues.admin.test_admin import unprivileged as unprivileged  # a fixture
from tests.queues.admin.test_worker import make_worker, subscription, text_of
from tests.queues.store import make_node, make_queue, store

pytestmark = pytest.mark.django_db

PICTURE, TOPICS = reverse("admin:queues_route_picture"), reverse("admin:queues_subscription_topics")
SVG = re.compile(r'<svg viewBox.*?</svg>(?=\s*<p class="legend">)', re.DOTALL)


@pytest.fixture(autouse=True)
def _a_look_at_once() -> Iterator[None]:
    reader.forget()
    yield
    reader.forget()


def subscribe(topic: str, name: str = "") -> Subscription:
    queue = make_queue(name or f"_subscription/{topic}", kind="subscription")
    return Subscription.objects.create(topic=topic.encode(), qos=1, queue=queue)


def drawing(client: Client, **query: str) -> ElementTree.Element:
    """The picture on the page."""
    found = SVG.search(client.get(PICTURE, query).content.decode())
    assert found is not None
    return ElementTree.fromstring(unescape(found[0]).replace("&", "&amp;"))


def boxes(svg: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """The places of the boxes by their addresses."""
    return {
        (group.findtext("title") or "").rpartition(": ")[0]: (float(box.get("x", 0)), float(box.get("y", 0)))
        for group in svg.findall("g") if (box := group.find("rect")) is not None
    }  # fmt: skip


def arrows(svg: ElementTree.Element) -> set[str]:
    return {path.findtext("title") or "" for path in svg.findall("path")}


def carry(route: Route, before: int, lately: int) -> None:
    """The messages that the route has carried, in all time before and in the last minute."""
    RouteCount.objects.create(route=route, carried=before)
    RouteTally.objects.create(route=route, carried=30, at=timezone.now() - timedelta(seconds=90))
    RouteTally.objects.create(route=route, carried=lately)


def network() -> dict[str, Queue]:
    """A topic with a subscriber, routed into a queue whose dead letters go elsewhere, and on to another topic."""
    dead = make_queue("graves")
    orders = make_queue("orders", dead_letter_queue=dead)
    prices = subscribe("prices").queue
    store(prices, count=5), store(orders, count=3), store(dead, State.DEAD, count=2)
    for source, target in (("topic:prices", "queue:orders"), ("queue:orders", "topic:copies")):
        route = Route.objects.create(source=source, target=target)
    carry(route, 1200, 600)
    DeadLetterCount.objects.create(queue=orders, target=dead, carried=2000)
    for carried, seconds in ((30, 90), (120, 0)):
        at = timezone.now() - timedelta(seconds=seconds)
        DeadLetterTally.objects.create(queue=orders, target=dead, carried=carried, at=at)
    DeadLetterCount.objects.create(queue=orders, target=prices, carried=7)  # its dead letters went there once
    Interest.objects.create(queue=orders, node=make_node())
    return {"orders": orders, "graves": dead, "prices": prices}


# The picture.


@pytest.mark.parametrize("around", ["", "queue:orders", "orders", "topic:prices", "topic:copies"])
def test_the_picture_goes_from_topics_over_queues_to_consumers_and_dead_letters(
    admin_client: Client, around: str
) -> None:
    network()
    svg = drawing(admin_client, **({"around": around} if around else {}))
    placed = boxes(svg)
    columns = {name: x for name, (x, _) in placed.items()}
    assert columns["topic:prices"] == columns["topic:copies"] < columns["queue:orders"]
    assert columns["queue:orders"] == columns["queue:_subscription/prices"]
    assert columns["queue:orders"] < columns["consumers of queue:orders"] < columns["queue:graves"]
    assert len(set(placed.values())) == len(placed), "no box is on another"
    assert arrows(svg) == {
        "topic:prices to queue:_subscription/prices, subscription: 5 messages",
        "topic:prices to queue:orders, route: 0 messages", "queue:orders to topic:copies, route: 1,830 messages",
        "queue:orders to queue:graves, dead letters: 2,150 messages", "orders to its consumers: 0 messages",
    }  # fmt: skip
    labels = {text.text: float(text.get("x", 0)) for text in svg.findall("text")}
    assert {"0", "1,830", "2,150"} <= set(labels), "beside routes and dead letters"
    for number in ("0", "1,830", "2,150"):
        assert not any(x <= labels[number] <= x + BOX for x in columns.values()), "boxes hide no number"


def test_the_table_beside_the_picture_says_the_same_with_links(admin_client: Client) -> None:
    made = network()
    response = admin_client.get(PICTURE)
    shown, html = " ".join(text_of(response).split()), response.content.decode()
    for line in (
        "topic:prices subscription queue:_subscription/prices 5 0/s",
        "topic:prices route queue:orders 0 0/s", "queue:orders route topic:copies 1,830 10/s",
        "queue:orders dead letters queue:graves 2,150 2/s", "queue:orders consumed by nodes: 1 0",
    ):  # fmt: skip
        assert line in shown
    for queue in made.values():
        assert f'href="{reverse("admin:queues_queue_change", args=[queue.pk])}"' in html
    assert "3 queues. subscription: 1, route: 2, dead letters: 1." in shown


def test_workers_count_as_consumers(admin_client: Client) -> None:
    make_queue("orders")
    for _ in range(2):
        make_worker(subscriptions=[subscription("orders")])
    assert "queue:orders consumed by workers: 2 0" in " ".join(text_of(admin_client.get(PICTURE)).split())


def test_around_an_address_only_what_is_near_is_drawn(admin_client: Client) -> None:
    network()
    make_queue("elsewhere")
    subscribe("other")
    placed = boxes(drawing(admin_client, around="queue:orders"))
    assert "queue:elsewhere" not in placed
    assert "topic:other" not in placed


def test_a_queue_that_nothing_leads_to_is_drawn_alone(admin_client: Client) -> None:
    make_queue("alone")
    assert list(boxes(drawing(admin_client, around="alone"))) == ["queue:alone"]


@pytest.mark.parametrize("around", ["", "queue:", "peer:bob", "x" * 300, "queue:none", "topic:\ud83d", "%00"])
def test_addresses_that_lead_nowhere_are_no_error_of_the_site(admin_client: Client, around: str) -> None:
    assert admin_client.get(PICTURE, {"around": around.encode("utf-8", "replace")}).status_code == 200


def test_the_drawing_is_bounded_and_has_the_busiest_first(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(flows, "MAX_QUEUES", 4)
    for n in range(12):
        store(make_queue(f"q{n:02}"), count=n)
    for n in range(30):
        Route.objects.create(source="queue:q11", target=f"queue:missing{n}")
    with django_assert_max_num_queries(12):
        svg = drawing(admin_client)
    placed = boxes(svg)
    assert {f"queue:q{n:02}" for n in (8, 9, 10, 11)} <= placed.keys()
    assert "queue:q07" not in placed
    assert len(placed) <= 2 * 4
    assert "Not everything is drawn" in text_of(admin_client.get(PICTURE))


def test_around_a_hub_no_more_than_the_bound_is_read(
    monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(flows, "MAX_EDGES", 10)
    for n in range(40):
        Route.objects.create(source="topic:hub", target=f"queue:q{n:02}")
        Route.objects.create(source=f"queue:q{n:02}", target=f"topic:t{n:02}")
    with django_assert_max_num_queries(8):
        found = flows_around("topic:hub")
    assert found.cut
    assert 10 < len(found.edges) <= 10 + 10
    assert Edge("topic:hub", "queue:q00", EdgeKind.ROUTE) in found.edges


def test_a_chain_of_dead_letters_is_drawn_to_its_end(admin_client: Client) -> None:
    last = make_queue("c")
    second = make_queue("b", dead_letter_queue=last)
    make_queue("a", dead_letter_queue=second)
    placed = boxes(drawing(admin_client, around="a"))
    assert placed.keys() == {"queue:a", "queue:b", "queue:c"}
    assert placed["queue:a"][0] == placed["queue:b"][0] < placed["queue:c"][0]


def test_names_are_drawn_as_text(admin_client: Client) -> None:
    Route.objects.create(source="topic:<script>&\"'", target="queue:</svg>")
    html = admin_client.get(PICTURE, {"around": "queue:</svg>"}).content.decode()
    assert "topic:&lt;script&gt;&amp;&quot;&#x27;" in html
    assert html.count("</svg>") == html.count("<svg ")


# The list of routes, and the page of one.


def test_the_list_and_the_page_of_a_route_show_what_it_has_carried(
    admin_client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    network()
    with django_assert_max_num_queries(LOGIN + 4):
        listed = " ".join(text_of(admin_client.get(address("route"))).split())
    assert "queue:orders topic:copies 1,830 10/s" in listed
    assert "topic:prices queue:orders 0 0/s" in listed
    route = Route.objects.get(target="topic:copies")
    page = " ".join(text_of(admin_client.get(address("route", "change", route.pk))).split())
    assert "Messages carried: 1,830" in page
    assert "In the last minute: 10/s" in page


# Topics.


def test_topics_show_their_subscriptions_what_they_hold_and_carried_and_lead_to_them(admin_client: Client) -> None:
    network()
    second = subscribe("prices", "_subscription/2").queue
    store(second, State.DEAD, count=2)
    response = admin_client.get(TOPICS)
    shown, html = " ".join(text_of(response).split()), response.content.decode()
    assert queue_counts(second.pk).published == 2
    # Counts of topics are those that are folded, at most a second behind.
    assert "copies 0 0 0 0 0 0 1 in a picture" in shown
    assert re.search(r"prices 2 \d+ 0 \d+ \d+ 0 1 in a picture", shown)
    assert f"{address('subscription')}?q=prices" in html
    assert f"{PICTURE}?around=topic%3Aprices" in html
    listed = text_of(admin_client.get(address("subscription"), {"q": "prices"}))
    assert "_subscription/2" in listed


def test_topics_go_page_by_page_in_few_queries(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    monkeypatch.setattr(flows, "TOPICS_PER_PAGE", 4)
    for n in range(9):
        subscribe(f"topic {n}")
    page, seen = "", []
    for _ in range(3):
        with django_assert_num_queries(LOGIN + 1):
            response = admin_client.get(TOPICS + page)
        seen += [topic.text for topic, *_ in response.context["topics"]]
        page = response.context["next_page"]
    assert (seen, page) == ([f"topic {n}" for n in range(9)], "")
    for wrong in ("zz", "\0", "f"):
        assert admin_client.get(TOPICS, {"after": wrong}).status_code == 200


def test_both_pages_need_permission_to_view_queues_routes_and_subscriptions(unprivileged: Client) -> None:
    user = User.objects.get(username="staff")
    for name in ("view_queue", "view_route", "view_subscription"):
        for page in (PICTURE, TOPICS):
            assert unprivileged.get(page).status_code == 403
        user.user_permissions.add(Permission.objects.get(codename=name))
    for page in (PICTURE, TOPICS):
        assert unprivileged.get(page).status_code == 200
