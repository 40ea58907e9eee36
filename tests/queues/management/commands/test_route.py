"""`manage.py route`."""

from __future__ import annotations

import pytest

from queues.api import publish_many
from queues.models import Route
from tests.queues.shell import Shell
from tests.queues.store import make_queue

pytestmark = pytest.mark.django_db


def test_routes_are_added_listed_and_removed(shell: Shell) -> None:
    make_queue("orders")
    added = shell("route", "add", "topic:prices", "orders")
    assert (added.status, added.err) == (0, "")
    publish_many("topic:prices", [b"1"] * 120)
    assert shell("route", "list").out.split()[-4:] == ["topic:prices", "queue:orders", "120", "2"]
    [shown] = shell("route", "list", "--json").json
    assert (shown["source"], shown["target"]) == ("topic:prices", "queue:orders")
    assert (shown["carried"], shown["rate"]) == (120, 2.0)
    assert shell("route", "remove", "topic:prices", "queue:orders").status == 0
    assert shell("route", "list", "--json").json == []
    assert not Route.objects.exists()


def test_a_route_to_a_queue_that_does_not_exist_yet_is_added_with_a_hint(shell: Shell) -> None:
    added = shell("route", "add", "topic:prices", "orders")
    assert added.status == 0
    assert "manage.py queue create orders" in added.err


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (("add", "b", "a"), 1, "loop"),
        (("add", "a", "b"), 1, "already"),
        (("add", "peer:bob", "a"), 1, "a route can lead to a peer"),
        (("remove", "x", "y"), 1, "no route"),
        (("add", "a"), 2, "TARGET"),
        ((), 2, "add|list|remove"),
    ],
)
def test_refusals_have_a_reason_and_a_status(
    shell: Shell, arguments: tuple[str, ...], status: int, reason: str
) -> None:
    shell("route", "add", "a", "b")
    outcome = shell("route", *arguments)
    assert outcome.status == status
    assert reason in outcome.err
    assert Route.objects.count() == 1
