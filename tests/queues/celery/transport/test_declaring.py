"""Queues that an operator deletes while clients publish to them."""

from __future__ import annotations

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError

from queues.models import Queue as StoredQueue
from queues.models import Route
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.waiting import wait_until

ORDERS = Queue("orders", message_ttl=60)
TOPIC = Exchange("news", "topic")
NEWS = Queue("sport", TOPIC, "sport.*")


def publish(connection: Connection, body: object) -> None:
    connection.Producer().publish(body, routing_key="orders", declare=[ORDERS])


def announce(connection: Connection, body: object) -> None:
    connection.Producer().publish(body, exchange=TOPIC, routing_key="sport.chess", declare=[NEWS])


def bodies(tables: Tables, queue: str) -> list[bytes]:
    return [row["payload"] for row in tables.messages(queue)]


def delete(queue: str) -> None:
    StoredQueue.objects.get(name=queue).delete()


@pytest.fixture(params=["plain", "routed", "unconfirmed"])
def producing(connect: Connect, tables: Tables, request: pytest.FixtureRequest) -> Connection:
    """A connection that has published one message to `orders`, which is deleted then."""
    connection = connect(confirm_publish=request.param != "unconfirmed")
    if request.param == "routed":
        StoredQueue.objects.create(name="copies")
        Route.objects.create(source="queue:orders", target="queue:copies")
    publish(connection, 1)
    wait_until(lambda: bodies(tables, "orders") == [b"1"], "it is stored")
    delete("orders")
    return connection


def test_a_producer_whose_queue_was_deleted_goes_on(
    producing: Connection, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    publish(producing, 2)
    publish(producing, 3)
    wait_until(lambda: bodies(tables, "orders") == [b"2", b"3"], "both are stored")
    assert StoredQueue.objects.get(name="orders").message_ttl is not None  # it is as it was declared
    assert caplog.text.count("the queue 'orders' was deleted; it is made again") == 1


def test_a_batch_to_a_queue_that_was_deleted_is_stored_whole_and_once(connect: Connect, tables: Tables) -> None:
    connection = connect()
    publish(connection, 1)
    announce(connection, 1)
    delete("orders")
    delete("sport")
    producer = connection.Producer()
    with producer.batch():
        for number in (1, 2):
            producer.publish(number, routing_key="orders")
            producer.publish(number, routing_key="sport")
    assert [bodies(tables, queue) for queue in ("orders", "sport")] == [[b"1", b"2"]] * 2


def test_a_worker_that_consumes_goes_on_with_the_new_queue(connect: Connect) -> None:
    connection = connect()
    got = Got(connect(), [ORDERS])
    publish(connection, 1)
    got.wait(1)[0].ack()
    delete("orders")
    publish(connection, 2)
    assert got.bodies(2) == [1, 2]


def test_its_bindings_come_back_with_a_queue(connect: Connect, tables: Tables) -> None:
    connection = connect()
    announce(connection, 1)
    delete("sport")
    announce(connection, 2)
    assert bodies(tables, "sport") == [b"2"]
    connect().Producer().publish(3, exchange=TOPIC, routing_key="sport.go", declare=[TOPIC])
    announce(connect(), 4)
    assert bodies(tables, "sport") == [b"2", b"3", b"4"]


def test_a_binding_that_another_client_undid_stays_undone(connect: Connect, tables: Tables) -> None:
    connection = connect()
    announce(connection, 1)
    connect().channel().queue_unbind("sport", "news", "sport.*")
    announce(connection, 2)
    delete("sport")
    connection.Producer().publish(3, routing_key="sport")
    announce(connection, 4)
    assert bodies(tables, "sport") == [b"3"]


def test_a_binding_of_ones_own_is_undone_for_ever(connect: Connect, tables: Tables) -> None:
    connection = connect()
    Queue("sport", TOPIC, "chess.*")(connection.channel()).declare()
    announce(connection, 1)
    connection.channel().queue_unbind("sport", "news", "sport.*")
    delete("sport")
    connection.Producer().publish(2, routing_key="sport")
    announce(connection, 3)
    connection.Producer().publish(4, exchange=TOPIC, routing_key="chess.go")
    assert bodies(tables, "sport") == [b"2", b"4"]
    connection.channel().exchange_delete("news")
    delete("sport")
    connection.Producer().publish(5, exchange=TOPIC, routing_key="chess.go")
    assert tables.queues() == []


def test_a_queue_that_was_not_declared_is_refused(connect: Connect) -> None:
    StoredQueue.objects.create(name="orders")
    producer = connect().Producer()
    producer.publish(1, routing_key="orders")
    delete("orders")
    with pytest.raises(ChannelError, match="NO_ROUTE"):
        producer.publish(2, routing_key="orders", mandatory=True)


def test_a_temporary_queue_that_is_gone_is_not_made_again(connect: Connect, tables: Tables) -> None:
    connection = connect()
    Queue("replies", auto_delete=True)(connection.channel()).declare()
    delete("replies")
    producer = connection.Producer()
    producer.publish("late", routing_key="replies", delivery_mode="transient")
    with pytest.raises(ChannelError, match="NO_ROUTE"):
        producer.publish("late", routing_key="replies", mandatory=True)
    assert tables.queues() == []
