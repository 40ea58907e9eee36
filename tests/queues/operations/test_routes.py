"""Routes and their loops."""

from __future__ import annotations

import threading

import pytest
from django.db import connections, transaction

from queues.models import Route, Topology
from queues.operations import routes
from queues.permissions.addresses import InvalidAddress
from tests.queues.store import another_connection, make_queue
from tests.tables import LOCK_WAITS

pytestmark = pytest.mark.django_db


def test_a_route_is_kept_with_the_kinds_of_its_ends() -> None:
    route = routes.add_route("orders", "topic:prices")
    assert (route.source, route.target) == ("queue:orders", "topic:prices")
    assert routes.list_routes() == [route]


def test_a_name_may_have_colons_and_255_characters() -> None:
    name = "é" * 252 + ":::"
    route = routes.add_route(f"queue:{name}", f"topic:{name}")
    route.refresh_from_db()
    assert route.target == f"topic:{name}"


@pytest.mark.parametrize("bad", ["", "queue:", "topic:", "peer:", "topic:" + "x" * 256, "a\0"])
def test_an_invalid_address_is_refused_at_either_end(bad: str) -> None:
    for ends in ((bad, "queue:a"), ("queue:a", bad)):
        with pytest.raises(InvalidAddress):
            routes.add_route(*ends)
    assert not Route.objects.exists()


def test_a_route_leads_to_a_peer_but_begins_at_none() -> None:
    route = routes.add_route("queue:a", "peer:bob")
    assert (route.source, route.target) == ("queue:a", "peer:bob")
    assert routes.missing_queues(route) == ["a"]
    with pytest.raises(InvalidAddress, match="a route can lead to a peer"):
        routes.add_route("peer:bob", "queue:b")
    with pytest.raises(InvalidAddress, match="240 characters"):
        routes.add_route("queue:a", "peer:" + "x" * 241)
    routes.remove_route("a", "peer:bob")
    assert not Route.objects.exists()


def test_a_route_exists_once() -> None:
    routes.add_route("a", "b")
    with pytest.raises(routes.RouteExists, match="queue:a is routed to queue:b already"):
        routes.add_route("queue:a", "b")


def test_a_route_to_itself_is_a_loop() -> None:
    with pytest.raises(routes.RouteLoop):
        routes.add_route("a", "queue:a")


def test_a_loop_over_several_routes_is_refused_and_shown() -> None:
    for ends in [("a", "topic:b"), ("topic:b", "c"), ("topic:b", "x"), ("c", "y")]:
        routes.add_route(*ends)
    with pytest.raises(routes.RouteLoop, match="queue:c → queue:a → topic:b → queue:c"):
        routes.add_route("c", "a")
    assert Route.objects.count() == 4


def test_two_ways_to_the_same_end_are_no_loop() -> None:
    for ends in [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("topic:d", "a")]:
        routes.add_route(*ends)
    assert Route.objects.count() == 5


@pytest.mark.django_db(transaction=True)
def test_two_routes_added_at_the_same_time_cannot_make_a_loop() -> None:
    outcomes: list[object] = []

    def add_the_other() -> None:
        try:
            outcomes.append(routes.add_route("b", "a"))
        except routes.RouteLoop as error:
            outcomes.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=add_the_other)
    with transaction.atomic(), another_connection() as watcher:
        routes.add_route("a", "b")
        watcher.autocommit = True
        thread.start()
        while thread.is_alive() and watcher.execute(LOCK_WAITS).fetchone() is None:
            thread.join(0.01)
    thread.join(20)
    assert [type(outcome) for outcome in outcomes] == [routes.RouteLoop]
    assert Route.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_every_change_moves_the_topology_on() -> None:
    routes.add_route("earlier", "b")  # an emptied database has no version yet
    versions = [Topology.objects.get().version]
    routes.add_route("a", "b")
    versions.append(Topology.objects.get().version)
    routes.remove_route("a", "b")
    versions.append(Topology.objects.get().version)
    assert versions == sorted(set(versions))


def test_a_route_that_does_not_exist_cannot_be_removed() -> None:
    routes.add_route("a", "b")
    with pytest.raises(routes.RouteNotFound, match="from queue:b to queue:a"):
        routes.remove_route("b", "a")
    routes.remove_route("a", "queue:b")
    assert routes.list_routes() == []


def test_queues_that_are_missing_at_the_ends_are_named() -> None:
    make_queue("a")
    assert routes.missing_queues(routes.add_route("a", "b")) == ["b"]
    assert routes.missing_queues(routes.add_route("topic:b", "a")) == []
