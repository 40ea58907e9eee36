"""Policies of queues and routes, as clients of a running broker see them."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker, Database, Sspq, message, put
from wire.blipmq import codec as blipmq
from wire.sspq.codec import CONFIRM_PACKET, RECEIVE_PACKET


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Blip]:
    with Blip(broker.blipmq) as connection:
        yield connection


@pytest.fixture
def workers(broker: Broker) -> Iterator[list[Sspq]]:
    """Three SSPQ connections."""
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(Sspq(broker.sspq)) for _ in range(3)]
        yield connections
        for connection in connections:
            connection.hang_up()


def add_route(store: Database, source: str, target: str) -> None:
    store.execute("insert into queues_route (source, target) values (%s, %s)", source, target)


# Pause.


def test_a_paused_subscription_delivers_nothing_until_it_is_resumed(
    broker: Broker, client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"pause")
    queue = store.queue_of(subscription)
    client.publish(b"pause", b"before")
    assert client.consume(subscription, 1) == [b"before"]
    store.change_queue(queue, paused=True)
    store.wait_until_obeyed(broker)
    client.publish(b"pause", b"x")
    client.publish(b"pause", b"y")
    assert [client.poll(subscription) for _ in range(5)] == [None] * 5
    store.change_queue(queue, paused=False)
    assert client.consume(subscription, 2) == [b"x", b"y"]


def test_a_message_that_was_prefetched_is_not_delivered_while_paused(
    broker: Broker, client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"prefetched")
    queue = store.queue_of(subscription)
    client.publish(b"prefetched", *(b"%d" % n for n in range(100)))
    assert client.consume(subscription, 1) == [b"0"]
    store.change_queue(queue, paused=True)
    store.wait_until_obeyed(broker)
    assert [client.poll(subscription) for _ in range(5)] == [None] * 5
    store.change_queue(queue, paused=False)
    assert client.consume(subscription, 99) == [b"%d" % n for n in range(1, 100)]


# Concurrency.


def test_no_more_messages_than_the_concurrency_limit_are_being_worked_on(
    broker: Broker, workers: list[Sspq], store: Database
) -> None:
    queue = store.queue("sspq")
    store.change_queue(queue, concurrency_limit=2)
    store.wait_until_obeyed(broker)
    put(broker.sspq, *(b"%d" % n for n in range(4)))
    assert [worker.receive() for worker in workers[:2]] == [message(b"0", 3), message(b"1", 3)]
    workers[2].send(RECEIVE_PACKET)
    assert workers[2].is_silent(0.3)
    workers[0].confirm()
    assert workers[2].read() == message(b"2", 3)
    workers[0].send(RECEIVE_PACKET)
    assert workers[0].is_silent(0.3)
    workers[1].confirm()
    assert workers[0].read() == message(b"3", 3)
    workers[0].confirm()
    workers[2].confirm()
    store.wait_for_states(queue)
    store.change_queue(queue, concurrency_limit=None)


# Time.


def test_a_message_that_outlives_its_time_is_not_delivered_and_is_archived_as_expired(
    client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"ttl")
    queue = store.queue_of(subscription)
    store.change_queue(queue, message_ttl=datetime.timedelta(seconds=0.3))
    wait_until_ttl_is_known(client, store, queue)
    store.wait_for_states(queue)
    assert client.poll(subscription) is None
    outcomes = store.rows("select distinct outcome from queues_archive where queue_id = %s", queue)
    assert outcomes == [(1,)]
    store.change_queue(queue, message_ttl=datetime.timedelta(seconds=30))


def wait_until_ttl_is_known(client: Blip, store: Database, queue: int) -> None:
    """Publish until every message of the queue expires."""

    def known() -> bool:
        client.publish(b"ttl", b"x")
        expires = store.value("select bool_and(expires_at is not null) from queues_message where queue_id = %s", queue)
        if not expires:
            store.execute("delete from queues_message where queue_id = %s", queue)
        return bool(expires)

    wait_until(known)


def test_a_message_within_its_time_is_delivered(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"ttl in time")
    store.change_queue(store.queue_of(subscription), message_ttl=datetime.timedelta(seconds=60))
    client.publish(b"ttl in time", b"x")
    assert client.consume(subscription, 1) == [b"x"]


def test_a_delayed_message_is_delivered_when_its_time_has_come(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"delay")
    queue = store.queue_of(subscription)
    assert client.poll(subscription) is None
    store.execute(
        "insert into queues_message (id, queue_id, state, due_at, payload)"
        " values (nextval('queues_message_id'), %s, 2, now() + interval '1 hour', 'later')",
        queue,
    )
    client.publish(b"delay", b"sooner")
    assert client.consume(subscription, 1) == [b"sooner"]
    assert client.poll(subscription) is None
    due = store.value(
        "update queues_message set due_at = now() + interval '0.4 s' where queue_id = %s and state = 2"
        " returning due_at", queue,
    )  # fmt: skip
    assert client.consume(subscription, 1) == [b"later"]
    assert store.value("select now() >= %s", due)


# Dead letters elsewhere.


def test_dead_letters_go_to_the_queue_that_is_named_for_them(broker: Broker, client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"to the graveyard")
    sspq = store.queue("sspq")
    backoff = datetime.timedelta(seconds=0.1)
    store.change_queue(
        store.queue_of(subscription), dead_letter_queue_id=sspq, max_attempts=1, retry_backoff=backoff
    )
    store.wait_until_obeyed(broker)
    client.publish(b"to the graveyard", b"x")
    assert client.next(subscription).body == b"x"
    with Sspq(broker.sspq) as consumer:
        consumer.send(RECEIVE_PACKET)
        received = consumer.read()
        assert received.payload == b"x"
        consumer.confirm()
        consumer.hang_up()
    store.wait_for_states(sspq)


# Routes.


def test_a_route_feeds_a_queue_from_a_topic(broker: Broker, client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"source")
    client.publish(b"source", b"before the route")
    add_route(store, "topic:source", "queue:sspq")
    client.publish(b"source", b"x\0\xff")
    with Sspq(broker.sspq) as worker:
        assert worker.receive().payload == b"x\0\xff"
        worker.confirm()
        worker.hang_up()
    assert client.consume(subscription, 2) == [b"before the route", b"x\0\xff"]


def test_a_route_to_a_queue_works_without_any_subscriber(broker: Broker, client: Blip, store: Database) -> None:
    client.publish(b"unheard", b"no subscriber")
    add_route(store, "topic:unheard", "queue:sspq")
    client.publish(b"unheard", b"x")
    with Sspq(broker.sspq) as worker:
        assert worker.receive().payload == b"x"
        worker.confirm()
        worker.hang_up()


def test_a_route_copies_one_topic_to_another(client: Blip, store: Database) -> None:
    near, far = client.subscribe(b"near"), client.subscribe(b"far")
    add_route(store, "topic:near", "topic:far")
    client.publish(b"near", b"both")
    client.publish(b"far", b"far only")
    delivery = client.next(far)
    assert (delivery.topic, delivery.body) == (b"far", b"both")
    client.ack(delivery.cid, far)
    assert client.consume(far, 1) == [b"far only"]
    assert client.consume(near, 1) == [b"both"]
    assert client.poll(near) is None


def test_a_route_feeds_subscribers_from_a_queue_and_ends_with_its_removal(
    broker: Broker, client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"copies")
    add_route(store, "queue:sspq", "topic:copies")
    with Sspq(broker.sspq) as worker:
        worker.send(*(b"\x55\x99\x5e\x03\x00\x00\x00\x01x", RECEIVE_PACKET))
        assert worker.read() == message(b"x", 3)
        assert client.consume(subscription, 1) == [b"x"]
        store.execute("delete from queues_route where source = 'queue:sspq'")
        worker.send(CONFIRM_PACKET, b"\x55\x99\x5e\x03\x00\x00\x00\x01y", RECEIVE_PACKET)
        assert worker.read() == message(b"y", 3)
        worker.confirm()
        worker.hang_up()
    assert client.poll(subscription) is None


def test_a_qos_0_publish_is_kept_by_a_queue_that_a_route_feeds(broker: Broker, client: Blip, store: Database) -> None:
    add_route(store, "topic:fleeting", "queue:sspq")
    assert client.ask(blipmq.encode_publish(5, 0, b"fleeting", b"kept")) == []
    with Sspq(broker.sspq) as worker:
        assert worker.receive().payload == b"kept"
        worker.confirm()
        worker.hang_up()


# Removals by operators.


def test_a_removed_subscription_is_unknown_at_once(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"removed")
    client.publish(b"removed", b"x")
    queue = store.queue_of(subscription)
    assert client.next(subscription).body == b"x"
    store.execute("delete from queues_subscription where id = %s", subscription)
    store.execute("delete from queues_queue where id = %s", queue)
    unknown = b"unknown subscription or delivery tag"
    wait_until(lambda: unknown in b"".join(f.payload for f in client.ask(blipmq.encode_ack(1, subscription))))
    assert client.poll(subscription) is None
    client.publish(b"removed", b"y")
    assert store.states(queue).total() <= 1
