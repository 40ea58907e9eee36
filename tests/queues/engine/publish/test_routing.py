"""Changes of the topology: a node forgets the routes concerned, and obeys each change."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from queues.engine.api import Destination, Engine
from queues.engine.publish.routing import Routing
from tests.queues.engine.conftest import Producer, Store
from tests.queues.engine.faults import Faults

ROUTE = "insert into queues_route (source, target) values (%s, %s) returning 1"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Faults:
    return Faults(monkeypatch)


def known(routing: Routing) -> set[str]:
    """The destinations whose targets are known."""
    return {str(destination) for destination in routing._targets}


CHANGES: dict[str, tuple[Callable[[Store], object], set[str]]] = {
    "a new queue": (lambda store: store.queue("new"), {"queue:new"}),
    "a policy": (lambda store: store.rows("update queues_queue set max_length = 9 where name = 'a' returning 1"),
                 {"queue:a", "topic:to-a"}),
    "another name": (lambda store: store.rows("update queues_queue set name = 'new' where name = 'b' returning 1"),
                     {"queue:b", "queue:new"}),
    "a queue that goes": (
        lambda store: store.rows("delete from queues_queue where name = 'b' returning 1"), {"queue:b"}),
    "the policy of a subscription": (
        lambda store: store.rows("update queues_queue set message_ttl = '1 h' where kind = 'subscription' returning 1"),
        {"topic:t", "topic:to-t"},
    ),
    "a subscription that goes": (
        lambda store: store.rows("delete from queues_subscription returning 1"), {"topic:t", "topic:to-t"}),
    "a route": (lambda store: store.rows(ROUTE, "topic:x", "queue:b"),
                {"queue:a", "queue:b", "topic:t", "topic:to-a", "topic:to-t", "queue:new"}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_makes_a_node_forget_the_addresses_that_it_concerns(
    engine: Engine, store: Store, change: str
) -> None:
    for name in "ab":
        store.queue(name)
    await engine.subscriptions.create(b"t", 1, None)
    store.rows(ROUTE, "topic:to-a", "queue:a")
    store.rows(ROUTE, "topic:to-t", "topic:t")
    producer, routing = Producer(engine), engine.routing
    addresses = ["a", "b", "new", "topic:t", "topic:to-a", "topic:to-t"]
    await producer.wait([producer.send(address, b"x") for address in addresses][-1])
    before, (make, concerned) = known(routing), CHANGES[change]
    assert before == {str(Destination.parse(address)) for address in addresses}
    make(store)
    await routing.follow(engine.connections["writer"])
    assert before - known(routing) == concerned


async def test_a_new_queue_costs_the_others_no_reading_of_their_routes(
    engine: Engine, store: Store, runs: Faults
) -> None:
    for n in range(20):
        store.queue(f"q{n}")
    producer = Producer(engine)
    await producer.wait([producer.send(f"q{n}", b"x") for n in range(20)][-1])
    store.queue("new")
    runs.runs.clear()
    await producer.wait([producer.send(f"q{n}", b"y") for n in range(20)][-1])
    assert (runs.runs["topology_changes"], runs.runs["resolve"], runs.runs["policies"]) == (1, 0, 0)
    await producer.publish("new", b"x")
    assert producer.failed == []


async def test_a_node_that_knows_an_older_version_than_the_changes_reach_back_to_forgets_all(
    engine: Engine, store: Store
) -> None:
    for name in "ab":
        store.queue(name)
    producer = Producer(engine)
    await producer.wait([producer.send(name, b"x") for name in "ab"][-1])
    store.queue("c")
    store.queue("d")
    store.rows("delete from queues_topologychange where version < (select version from queues_topology) returning 1")
    await engine.routing.follow(engine.connections["writer"])
    assert known(engine.routing) == set()
    await producer.wait([producer.send(name, b"y") for name in "abcd"][-1])
    assert producer.failed == []


async def test_new_queues_and_subscriptions_send_no_notification(engine: Engine, store: Store) -> None:
    store.connection.execute(b"listen fivewire")
    id = store.queue("q")
    await engine.subscriptions.create(b"t", 1, None)
    store.rows("update queues_queue set paused = true where id = %s returning 1", id)
    heard = [note.payload for note in store.connection.notifies(timeout=5, stop_after=1)]
    assert heard == [f'{{"queue" : {id}}}']
