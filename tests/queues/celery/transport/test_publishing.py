"""A message's way from kombu into the store."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import InvalidSqlStatementName

from brokersite.environment import CHECKOUT
from brokersite.rigs.process import free_ports
from queues.celery.transport import publishing, store_connection, unconfirmed
from queues.celery.transport.address import conninfo
from queues.celery.transport.declaring import Declared
from queues.celery.transport.envelope import MessageRow
from queues.celery.transport.errors import InvalidBroker
from queues.celery.transport.publishing import ConnectionPublisher
from queues.celery.transport.store_connection import StoreConnection
from queues.engine.api import NotMigrated
from queues.engine.cluster.notifications.formats import FOLLOWING, Ready
from queues.models import Queue as StoredQueue
from tests.queues.celery.transport.blackhole import black_hole
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.waiting import PATIENCE, wait_until

ORDERS = Queue("orders")


def publish(connection: Connection, body: object, queue: str = "orders", **options: object) -> None:
    connection.Producer().publish(body, routing_key=queue, declare=[ORDERS], **options)


def bodies(tables: Tables, queue: str = "orders") -> list[bytes]:
    return [row["payload"] for row in tables.messages(queue)]


def test_consumers_are_told_of_messages_also_after_a_transaction_was_rolled_back(database_url: str) -> None:
    heard: list[int] = []
    publisher, consumer = (store_connection.StoreConnection(database_url, 10) for _ in range(2))
    with contextlib.closing(publisher), contextlib.closing(consumer):
        consumer.on_news = heard.append
        for queue in (7, 8):
            consumer.listen(queue)
        publisher.listen(9)  # psycopg deallocates all that is prepared only if it has prepared something itself
        publisher.post("announce", "", "{7}")
        assert publisher.query("plan", name="none") == []
        with pytest.raises(ZeroDivisionError), publisher.transaction():
            raise ZeroDivisionError
        publisher.post("announce", "", "{8}")

        def told() -> bool:
            consumer.hear()
            return heard == [7, 8]

        wait_until(told, lambda: f"both (now {heard})")
        assert publisher.query("plan", name="none") == []


def test_statements_that_the_server_has_forgotten_cost_one_transaction_at_most(database_url: str) -> None:
    with contextlib.closing(StoreConnection(database_url, 10)) as store:
        for _ in range(2):
            assert store.query("plan", name="none") == []
            store._connection.execute("deallocate all")  # as a pooler between may do
        with pytest.raises(InvalidSqlStatementName), store.transaction():
            store.query("plan", name="none")
        with store.transaction():
            assert store.query("plan", name="none") == []


def test_a_message_is_stored_when_publish_returns(connect: Connect, tables: Tables) -> None:
    publish(connect(), {"n": 1})
    [row] = tables.messages("orders")
    assert (row["payload"], row["content"], row["max_attempts"]) == (b'{"n": 1}', 4, None)
    assert tables.held("orders") == (1, 0, 0, 0)


def test_a_queue_of_celerys_gives_nothing_up_and_waits_for_as_long_as_a_task_lasts(connect: Connect) -> None:
    publish(connect(), 1)
    queue = StoredQueue.objects.get(name="orders")
    assert (queue.max_attempts, queue.ack_timeout, queue.retention) == (0, None, "metadata")
    assert not queue.retry_backoff


def test_a_queue_that_is_there_keeps_its_policy(connect: Connect) -> None:
    StoredQueue.objects.create(name="orders", max_attempts=3)
    publish(connect(), 1)
    assert StoredQueue.objects.get(name="orders").max_attempts == 3


def test_amqp_arguments_are_the_queues_policy(connect: Connect) -> None:
    channel = connect().channel()
    Queue("a", message_ttl=2.5, max_length=7)(channel).declare()
    Queue(
        "b", max_length=7, queue_arguments={"x-overflow": "reject-publish", "x-single-active-consumer": True}
    )(channel).declare()
    first, second = StoredQueue.objects.order_by("name")
    assert first.message_ttl is not None
    assert first.message_ttl.total_seconds() == 2.5
    assert (first.max_length, first.overflow) == (7, "drop-oldest")
    assert second.overflow == "reject"
    assert (first.single_active_consumer, second.single_active_consumer) == (False, True)


@pytest.mark.parametrize("name", ["_peer/bob", "a\0b", "x" * 256])
def test_a_name_that_cannot_be_is_refused(connect: Connect, name: str) -> None:
    with pytest.raises(ChannelError, match="ACCESS_REFUSED"):
        connect().channel().queue_declare(name)


def test_a_message_for_a_queue_that_is_not_there_is_dropped_and_one_that_is_mandatory_refused(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    producer = connect().Producer()
    for _ in range(2):
        producer.publish(1, routing_key="nowhere")
        producer.publish(1, routing_key="nowhere either", delivery_mode="transient")
        producer.publish(1, exchange="nothing is bound to it", routing_key="x")
    assert [record.getMessage() for record in caplog.records] == [
        "there is no queue 'nowhere': messages published to it are dropped",
        "a message to the exchange 'nothing is bound to it' is dropped, since no queue is bound to it for the routing "
        "key 'x'",
    ]
    for exchange in ("", "nothing is bound to it"):
        with pytest.raises(ChannelError, match="NO_ROUTE"):
            producer.publish(1, exchange=exchange, routing_key="nowhere", mandatory=True)


def test_a_full_queue_refuses_or_drops_its_oldest(connect: Connect, tables: Tables) -> None:
    connection = connect()
    StoredQueue.objects.create(name="orders", max_length=2)
    publish(connection, 1)
    publish(connection, 2)
    with pytest.raises(ChannelError, match="'orders' is full"):
        publish(connection, 3)
    StoredQueue.objects.update(overflow="drop-oldest")
    publish(connection, 4)
    assert bodies(tables) == [b"2", b"4"]


def test_a_policy_that_changes_holds_from_the_next_message_on(connect: Connect, tables: Tables) -> None:
    connection = connect()
    publish(connection, 1)
    StoredQueue.objects.update(max_length=1)
    with pytest.raises(ChannelError, match="full"):
        publish(connection, 2)
    StoredQueue.objects.update(max_length=None, message_ttl=timedelta(hours=1))
    publish(connection, 3)
    assert [row["expires_at"] is not None for row in tables.messages("orders")] == [False, True]


def test_a_task_of_an_audited_queue_is_recorded(connect: Connect, tables: Tables) -> None:
    StoredQueue.objects.create(name="orders", audited=True)
    publish(connect(), 1)
    rows = tables.rows("select event from queues_auditjournal where chain = 'queue:orders' order by id")
    assert [row["event"] for row in rows] == ["audit-on", "publish"]


def test_a_purge_removes_what_waits_and_what_is_delayed(connect: Connect, tables: Tables) -> None:
    connection = connect()
    publish(connection, 1)
    publish(connection, 2, headers={"eta": "2100-01-01T00:00:00+00:00"})
    assert connection.channel().queue_purge("orders") == 2
    assert tables.held("orders") == (0, 0, 0, 0)
    assert [row["outcome"] for row in tables.archived("orders")] == [2, 2]


def test_only_temporary_queues_are_deleted_from_here(connect: Connect, tables: Tables) -> None:
    connection = connect()
    publish(connection, 1)
    with pytest.raises(ChannelError, match="in the admin"):
        connection.channel().queue_delete("orders")
    connection.channel().queue_delete("nowhere")
    assert tables.queues() == ["orders"]


# Batches.


def test_a_batch_is_stored_at_its_end_or_not_at_all(connect: Connect, tables: Tables) -> None:
    producer = connect().Producer()
    with producer.batch():
        for number in range(4500):
            producer.publish(number, routing_key="orders", declare=[ORDERS])
        assert tables.held("orders") == (4000, 0, 0, 0)  # a thousand at a time
    assert bodies(tables) == [str(number).encode() for number in range(4500)]
    with contextlib.suppress(KeyError), producer.batch():
        producer.publish("never", routing_key="orders")
        raise KeyError
    assert len(bodies(tables)) == 4500


def test_messages_that_are_stored_together_keep_their_headers(connect: Connect, tables: Tables) -> None:
    producer = connect().Producer(auto_declare=False)
    texts = ["", 'a "quote", \\ and {braces}', "null", "line\nbreak", "é\u2028😀", '\\"']
    with producer.batch():
        for text in texts:
            producer.publish(1, routing_key="orders", declare=[ORDERS], headers={"text": text, text: [text]})
    assert [
        {name: value for name, value in row["headers"].items() if name in ("text", text)}
        for text, row in zip(texts, tables.messages("orders"), strict=True)
    ] == [{"text": text, text: [text]} for text in texts]


def test_a_batch_with_one_message_that_cannot_be_stored_stores_none(connect: Connect, tables: Tables) -> None:
    producer = connect().Producer()
    StoredQueue.objects.create(name="full", max_length=1)
    publish(connect(), "first", "full")

    def both() -> None:
        with producer.batch():
            producer.publish(1, routing_key="orders", declare=[ORDERS])
            producer.publish(2, routing_key="full")

    with pytest.raises(ChannelError, match="full"):
        both()
    assert bodies(tables) == []


def test_a_batch_to_a_thousand_queues_is_announced_in_parts_that_the_server_takes(
    connect: Connect, tables: Tables
) -> None:
    names = [f"many-{n}" for n in range(1000)]
    StoredQueue.objects.bulk_create([StoredQueue(name=name) for name in names])
    tables.connection.execute("listen fivewire")
    producer = connect().Producer()
    with producer.batch():
        for name in names:
            producer.publish(1, routing_key=name)
    producer.publish("last", routing_key="orders", declare=[ORDERS])
    wanted = {str(queue.pk) for queue in StoredQueue.objects.all()}
    announced: list[dict[str, int]] = []
    for heard in tables.connection.notifies(timeout=60):
        announced += [json.loads(heard.payload)["ready"]] if heard.payload.startswith('{"ready"') else []
        if wanted <= {queue for ready in announced for queue in ready}:
            break
    assert wanted <= {queue for ready in announced for queue in ready}
    assert max(map(len, announced)) > 100
    assert len(tables.rows("select from queues_message")) == 1001


# Exchanges.


@pytest.mark.parametrize(
    ("kind", "bindings", "key", "reached"),
    [
        ("direct", {"a": "x", "b": "y"}, "x", ["a"]),
        ("topic", {"a": "order.*", "b": "order.#", "c": "bill.*"}, "order.new", ["a", "b"]),
        ("topic", {"a": "*.new", "b": "order.new"}, "order.new.big", []),
        ("fanout", {"a": "", "b": "whatever"}, "x", ["a", "b"]),
    ],
)
def test_an_exchange_leads_to_the_queues_bound_to_it_by_any_process(
    connect: Connect, tables: Tables, kind: str, bindings: dict[str, str], key: str, reached: list[str]
) -> None:
    exchange = Exchange("ex", kind)
    channel = connect().channel()
    for name, routing_key in bindings.items():
        Queue(name, exchange, routing_key)(channel).declare()
    connect().Producer().publish("body", exchange=exchange, routing_key=key, declare=[exchange])
    assert [name for name in bindings if tables.messages(name)] == reached


def test_a_binding_can_be_undone_and_an_exchange_deleted(connect: Connect, tables: Tables) -> None:
    exchange = Exchange("ex", "fanout")
    channel = connect().channel()
    for name in ("a", "b"):
        Queue(name, exchange)(channel).declare()
    channel.queue_unbind("a", "ex", "")
    connect().Producer().publish(1, exchange=exchange, declare=[exchange])
    assert [tables.held(name)[0] for name in ("a", "b")] == [0, 1]
    channel.exchange_delete("ex")
    connect().Producer().publish(1, exchange=exchange, declare=[exchange])
    assert [tables.held(name)[0] for name in ("a", "b")] == [0, 1]


def test_an_exchange_cannot_be_of_two_types(connect: Connect) -> None:
    Queue("a", Exchange("ex", "fanout"))(connect().channel()).declare()
    other = connect().channel()
    with pytest.raises(ChannelError, match="is of type fanout"):
        other.exchange_declare("ex", "direct")
    with pytest.raises(ChannelError, match="no exchange type 'headers'"):
        other.exchange_declare("new", "headers")
    other.exchange_declare("ex", "fanout", passive=True)
    with pytest.raises(ChannelError, match="no exchange 'new'"):
        other.exchange_declare("new", "fanout", passive=True)


def test_bindings_go_with_their_queue(connect: Connect, tables: Tables) -> None:
    Queue("a", Exchange("ex", "fanout"))(connect().channel()).declare()
    tables.rows("delete from queues_queue where name = 'a'  returning id")
    assert tables.rows("select * from queues_kombubinding") == []


# Addresses.


def test_a_url_without_a_database_is_that_of_djangos_alias(tables: Tables) -> None:
    with Connection("fivewire://", transport_options={"django_connection": "default"}) as connection:
        publish(connection, 1)
    assert bodies(tables) == [b"1"]


def test_a_url_is_libpqs() -> None:
    client = Connection("fivewire://me:s%40fe@db.example:6432/store?sslmode=require")
    assert conninfo_to_dict(conninfo(client)) == {
        "user": "me", "password": "s@fe", "host": "db.example", "port": "6432", "dbname": "store", "sslmode": "require",
    }  # fmt: skip
    assert "s%40fe" not in client.as_uri()
    same = Connection("postgresql://me@db.example/store", transport="queues.celery.transport:Transport")
    assert conninfo_to_dict(conninfo(same))["dbname"] == "store"
    with pytest.raises(ValueError, match="mysql:// is no address"):
        conninfo(Connection("mysql://me@db/store", transport="queues.celery.transport:Transport"))


def test_arguments_say_what_the_url_does_not() -> None:
    named = Connection("fivewire://db.example", userid="me", password="s@fe", virtual_host="store", port=6432)
    plain = Connection(
        "db.example", userid="me", password="s@fe", virtual_host="/store", port=6432,
        transport="queues.celery.transport:Transport",
    )
    for client in (named, plain):
        assert conninfo_to_dict(conninfo(client)) == {
            "user": "me", "password": "s@fe", "host": "db.example", "port": "6432", "dbname": "store",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("client", "problem"),
    [
        ({"hostname": "db.example", "transport": "queues.celery.transport:Transport"}, "no database"),
        ({"hostname": "fivewire://db/store", "ssl": True}, "sslmode=verify-full"),
        ({"hostname": "fivewire://a/x?sslmode=require;fivewire://b/y"}, "none can have parameters"),
        ({"hostname": "fivewire://a/x;fivewire://b"}, "name a host and a database"),
        ({"hostname": "fivewire://a:6432/x;fivewire://b/y"}, "name a port, or none"),
        ({"hostname": "fivewire://a/x?no_such_parameter=1"}, "cannot be read"),
    ],
)
def test_an_address_that_cannot_be_obeyed_is_refused(client: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidBroker, match=problem):
        conninfo(Connection(**client))


def test_of_a_list_of_brokers_the_first_that_is_there_is_used(broker_url: str, tables: Tables) -> None:
    (port,) = free_ports(1)
    dead = f"fivewire://me@127.0.0.1:{port}/store"
    with Connection(f"{dead};{broker_url.partition('?')[0]}") as connection:
        publish(connection, 1)
    assert bodies(tables) == [b"1"]


def test_a_connection_that_cannot_be_made_is_an_os_error() -> None:
    connection = Connection(f"fivewire://me@127.0.0.1:{free_ports(1)[0]}/store")
    with pytest.raises(ConnectionError) as refused:
        connection._establish_connection()
    assert isinstance(refused.value, psycopg.OperationalError)
    assert isinstance(refused.value, connection.recoverable_connection_errors)


def test_a_publish_into_a_black_hole_ends_in_time(tables: Tables) -> None:
    with black_hole() as proxy:
        connection = Connection(proxy.url, transport_options={"request_timeout": 5})
        publish(connection, 1)
        proxy.freeze()
        with pytest.raises(OSError, match="did not answer in time"):
            connection.Producer().publish(2, routing_key="orders", retry=False)
        assert not connection.connected
        proxy.thaw()
        publish(connection, 3)
        proxy.freeze()
        with pytest.raises(OSError, match="did not answer in time"):
            connection.Producer().publish(4, routing_key="orders", retry=False, timeout=0.1)
        proxy.thaw()
        connection.release()
    assert {b"1", b"3"} <= set(bodies(tables))


def test_a_database_without_the_tables_is_refused_with_a_reason(broker_url: str) -> None:
    head, _, rest = broker_url.rpartition("/")
    parameters = rest.partition("?")[2]
    with Connection(f"{head}/postgres?{parameters}") as connection, pytest.raises(NotMigrated):
        connection.connect()


# Without a confirm.


def test_without_confirms_messages_are_stored_in_order_a_moment_later(connect: Connect, tables: Tables) -> None:
    connection = connect(confirm_publish=False)
    for number in range(500):
        publish(connection, number)
    connection.release()
    assert bodies(tables) == [str(number).encode() for number in range(500)]


def test_without_confirms_a_consumer_is_told_too(connect: Connect) -> None:
    got = Got(connect(), [ORDERS])
    publish(connect(confirm_publish=False), "now")
    assert got.bodies(1) == ["now"]


def test_messages_that_follow_an_announced_one_at_once_are_not_announced(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[Ready] = []
    now = 100.0
    monkeypatch.setattr(publishing, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(StoreConnection, "announce", lambda self, news, temporary: announced.append(news))
    for name in ("first", "second"):
        StoredQueue.objects.create(name=name)
    with contextlib.closing(StoreConnection(conninfo(connect()), 5)) as database:
        publisher = ConnectionPublisher(database, Declared())

        def announces(queue: str, priority: int = 0) -> bool:
            publisher.publish([MessageRow(queue, b"{}", "{}", priority=priority)])
            told, announced[:] = announced[:], []
            assert all(news.followed for news in told)
            return bool(told)

        assert announces("first")
        now += 0.9 * FOLLOWING
        assert not announces("first")
        assert announces("second")
        assert announces("first", priority=3)  # it comes before those that engines look for
        assert not announces("first", priority=2)
        now += 1.1 * FOLLOWING
        assert announces("first")
        assert not announces("first")
        StoredQueue.objects.filter(name="second").update(max_length=5)
        assert announces("first")  # what was known of any queue is forgotten


def test_what_replies_are_awaited_through_is_announced_each_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced: list[set[int]] = []
    connection = connect()
    channel = connection.channel()
    channel.queue_declare("replies", auto_delete=True)
    monkeypatch.setattr(StoreConnection, "announce", lambda self, news, temporary: announced.append(set(temporary)))
    for _ in range(3):
        channel.connection.publisher.publish([MessageRow("replies", b"{}", "{}")])
    assert len(announced) == 3
    assert all(announced)


@pytest.mark.parametrize("apart", [False, True])
def test_without_confirms_engines_are_told_of_every_queue_once(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch, apart: bool
) -> None:
    """By the transaction that stores, as long as one notification has room for its queues."""
    posted: list[str] = []
    post: Callable[..., None] = StoreConnection.post

    def note(self: StoreConnection, name: str, *parameters: str) -> None:
        posted.append(name)
        post(self, name, *parameters)

    monkeypatch.setattr(StoreConnection, "post", note)
    if apart:
        monkeypatch.setattr(publishing, "MAX_ANNOUNCED", 1)
    database = StoreConnection(conninfo(connect()), 5, durable=False)
    for name in ("first", "second"):
        StoredQueue.objects.create(name=name)
    tables.connection.execute("listen fivewire")
    rows = [
        MessageRow(queue, b"{}", "{}", priority=priority, delay=delay)
        for queue, priority, delay in (("first", 0, 0.0), ("first", 3, 0.0), ("second", 0, 60.0), ("second", 0, 0.0))
    ]
    ConnectionPublisher(database, Declared()).publish(rows)
    database.query("newest")  # what was posted is sent
    database.close()
    [told] = [json.loads(heard.payload)["ready"] for heard in tables.connection.notifies(timeout=60, stop_after=1)]
    stored = tables.rows("select queue_id, min(id) as first from queues_message where state = 0 group by queue_id")
    first = {str(row["queue_id"]): row["first"] for row in stored}
    assert told.keys() == first.keys()
    assert all(told[queue] <= first[queue] for queue in told)
    assert posted == (["announce"] if apart else [])
    assert apart or told == first
    assert list(tables.connection.notifies(timeout=0)) == []


def test_without_confirms_a_message_alone_is_announced_when_it_is_stored(connect: Connect, tables: Tables) -> None:
    database = StoreConnection(conninfo(connect()), 5, durable=False)
    queue = StoredQueue.objects.create(name="orders").pk
    tables.connection.execute("listen fivewire")
    ConnectionPublisher(database, Declared()).publish([MessageRow("orders", b"{}", "{}")])
    [told] = [json.loads(heard.payload) for heard in tables.connection.notifies(timeout=60, stop_after=1)]
    [stored] = tables.rows("select id from queues_message")
    assert told == {"ready": {str(queue): stored["id"]}, "followed": True}
    database.close()


def test_without_confirms_messages_that_come_fast_are_stored_many_at_a_time(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    publisher = unconfirmed.UnconfirmedPublisher(conninfo(connect()), 5, Declared(), 60)
    monkeypatch.setattr("queues.celery.transport.unconfirmed.time.sleep", waited.append)
    row = MessageRow("orders", b"{}", "{}")
    for count in (1, unconfirmed.FAST, 2, 1):
        publisher._rows.extend([row] * count)
        assert publisher._take() == [row] * count
    assert waited == [unconfirmed.GATHER, unconfirmed.GATHER, unconfirmed.GATHER_FAST, unconfirmed.GATHER]


def test_without_confirms_what_comes_while_the_thread_connects_is_stored_with_the_first_message(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored, connecting, come = list[int](), threading.Event(), threading.Event()
    publish_all = ConnectionPublisher.publish

    def note(self: ConnectionPublisher, rows: Sequence[MessageRow]) -> None:
        stored.append(len(rows))
        publish_all(self, rows)

    def connect_slowly(*given: Any, **options: Any) -> StoreConnection:
        connecting.set()
        assert come.wait(PATIENCE)
        return StoreConnection(*given, **options)

    monkeypatch.setattr(ConnectionPublisher, "publish", note)
    monkeypatch.setattr(unconfirmed, "StoreConnection", connect_slowly)
    connection = connect(confirm_publish=False)
    publish(connection, 0)
    assert connecting.wait(PATIENCE)
    for number in range(1, 20):
        publish(connection, number)
    come.set()
    connection.release()
    assert stored == [20]
    assert len(bodies(tables)) == 20


def test_without_confirms_a_caller_leaves_the_thread_its_turn_often_until_the_first_messages_are_stored(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[float] = []
    monkeypatch.setattr("queues.celery.transport.unconfirmed.time.sleep", left.append)
    publisher = unconfirmed.UnconfirmedPublisher(conninfo(connect()), 5, Declared(), 60)
    publisher._thread = threading.current_thread()  # none is started
    rows = [MessageRow("orders", b"{}", "{}")]
    publisher.publish(rows)
    assert left == []  # it may be the only one
    assert publisher._wait_for_rows()  # none is stored: they are the first ones still
    for _ in range(2):
        publisher.publish(rows)
    assert left == 2 * [unconfirmed.YIELD]
    publisher._away = True
    publisher.publish(rows)
    publisher._away = False
    assert len(publisher._take()) == 4
    publisher.publish(rows)
    assert publisher._wait_for_rows()  # they are not the first ones any more
    del left[:]
    publisher._yielded = math.inf  # a moment ago
    publisher.publish(rows)
    assert left == []
    publisher._yielded = -math.inf  # long ago
    publisher.publish(rows)
    assert left == [unconfirmed.YIELD]
    assert publisher._yielded > 0
    publisher._thread = None


def test_without_confirms_what_cannot_be_stored_is_told_by_the_log(
    connect: Connect, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    StoredQueue.objects.create(name="full", max_length=1)
    connection = connect(confirm_publish=False)
    producer = connection.Producer()
    for queue in ("full", "nowhere", "full"):
        producer.publish(1, routing_key=queue)
    producer.publish(2, routing_key="nowhere", delivery_mode="transient")
    publish(connection, 3)
    connection.release()
    assert (bodies(tables, "full"), bodies(tables)) == ([b"1"], [b"3"])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "'full'" in "".join(told)
    assert "'nowhere'" in "".join(told)


def test_without_confirms_messages_wait_for_the_database(
    connect: Connect, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(confirm_publish=False)
    publish(connection, 1)
    wait_until(lambda: bodies(tables) == [b"1"], "the first is stored")
    # The second of the process's sessions is the thread's. It must have answered for the first message, which would be
    # stored again otherwise, and be gone before the second is published.
    wait_until(
        lambda: tables.rows(
            "select pg_terminate_backend(pid, 60000) from"
            " (select pid, state from pg_stat_activity where application_name = 'fivewire celery'"
            " and datname = current_database() order by backend_start desc limit 1) as threads where state = 'idle'"
        ),
        "the thread's session has ended",
    )
    publish(connection, 2)
    wait_until(lambda: bodies(tables) == [b"1", b"2"], "the second is stored")
    assert "messages wait for the database" in caplog.text


def test_without_confirms_a_caller_that_goes_on_and_on_does_not_keep_its_messages_from_the_workers(
    connect: Connect, tables: Tables
) -> None:
    connection = connect(confirm_publish=False)
    for number in range(4000):
        publish(connection, number)
    assert len(bodies(tables)) >= 4000 - 3 * unconfirmed.MAX_AHEAD


def test_without_confirms_no_caller_is_held_up_while_the_database_is_away(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise psycopg.OperationalError("away")

    connection = connect(confirm_publish=False)
    producer = connection.Producer()
    producer.declare()
    ORDERS(connection.default_channel).declare()
    with monkeypatch.context() as away:
        away.setattr(unconfirmed, "StoreConnection", refused)
        for number in range(2000):
            producer.publish(number, routing_key="orders")
        assert bodies(tables) == []
    connection.release()
    assert len(bodies(tables)) == 2000


def test_without_confirms_an_unforeseen_error_is_logged_and_hangs_no_caller(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect(confirm_publish=False)
    publish(connection, 1)
    wait_until(lambda: bodies(tables) == [b"1"], "the first is stored")
    with monkeypatch.context() as broken:
        broken.setattr(ConnectionPublisher, "publish", lambda self, rows: 1 / 0)
        publish(connection, 2)
        wait_until(lambda: "were not stored" in caplog.text, "the loss is told")
    publish(connection, 3)
    connection.release()
    assert bodies(tables) == [b"1", b"3"]
    assert "ZeroDivisionError" in caplog.text


def test_without_confirms_a_process_that_ends_stores_what_it_has(broker_url: str, tables: Tables) -> None:
    code = (
        "import queues.celery.transport; from kombu import Connection, Queue\n"
        f"producer = Connection({broker_url!r}, transport_options={{'confirm_publish': False}}).Producer()\n"
        "for number in range(3000): producer.publish(number, routing_key='orders', declare=[Queue('orders')])"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=CHECKOUT)
    assert len(bodies(tables)) == 3000


# Changes meanwhile.


def test_a_change_of_the_topology_in_the_middle_is_noticed(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    publish(connection, 1)
    StoredQueue.objects.create(name="another")
    queries: list[str] = []
    ask: Callable[..., list[tuple[object, ...]]] = store_connection.StoreConnection.query

    def noted(self: store_connection.StoreConnection, name: str, /, **given: Any) -> list[tuple[object, ...]]:
        queries.append(name)
        return ask(self, name, **given)

    monkeypatch.setattr(store_connection.StoreConnection, "query", noted)
    publish(connection, 2)
    assert queries == ["store_one", "plan", "store_one"]
    assert isinstance(connection.transport.publisher, ConnectionPublisher)
    assert bodies(tables) == [b"1", b"2"]
