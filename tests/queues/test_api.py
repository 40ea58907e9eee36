"""Publishing from Django code."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from brokersite.environment import CHECKOUT
from queues.api import (
    InvalidAddress,
    InvalidMessage,
    Outgoing,
    QueueFull,
    QueueNotFound,
    publish,
    publish_many,
)
from queues.engine.api import Engine, options_from_settings
from queues.errors import BrokerError
from queues.models import ArchivedMessage, Interest, Message, Route, RouteTally, State, Subscription
from queues.operations.route_traffic import read_traffic
from queues.operations.routes import add_route
from tests.queues.store import (
    OneDelivery,
    another_connection,
    assert_counts_are_exact,
    listening,
    make_node,
    make_queue,
    store,
)

pytestmark = pytest.mark.django_db


def subscribe(topic: str, qos: int = 1) -> Subscription:
    queue = make_queue(f"_subscription/{Subscription.objects.count()}", kind="subscription")
    return Subscription.objects.create(topic=topic.encode(), qos=qos, queue=queue)


# Stored messages.


def test_a_message_is_stored_as_it_was_given_under_the_id_that_is_returned() -> None:
    queue, body = make_queue(), os.urandom(5000)
    id = publish("orders", body, headers={"a": [1, "ü %s"]}, key="k %(x)s", max_attempts=3)
    message = Message.objects.get()
    assert (message.pk, message.queue, message.state) == (id, queue, State.READY)
    assert bytes(message.payload) == body
    assert message.headers == {"a": [1, "ü %s"]}
    assert (message.key, message.max_attempts) == ("k %(x)s", 3)
    assert message.producer_id is None
    assert message.expires_at is None
    assert_counts_are_exact(queue)


@pytest.mark.parametrize("address", ["orders", "queue:orders"])
@pytest.mark.parametrize("body", [b"x", bytearray(b"x"), memoryview(b"-x-")[1:2]])
def test_addresses_and_bodies_may_be_written_in_several_ways(address: str, body: Any) -> None:
    make_queue()
    publish(address, body)
    assert bytes(Message.objects.get().payload) == b"x"


def test_messages_keep_the_order_in_which_they_were_published() -> None:
    make_queue()
    ids = [publish("orders", b"%d" % n) for n in range(5)]
    ids += publish_many("orders", [b"%d" % n for n in range(5, 10)])
    assert list(Message.objects.values_list("id", flat=True)) == ids
    assert [bytes(message.payload) for message in Message.objects.all()] == [b"%d" % n for n in range(10)]


def test_the_pages_example_of_publish_many_runs() -> None:
    page = (CHECKOUT / "docs" / "django.md").read_text()
    [example] = re.findall(r"^```python\n(from queues.api import Outgoing.*?)^```", page, re.MULTILINE | re.DOTALL)
    make_queue()
    exec(compile(example, "docs/django.md", "exec"), {})
    plain, detailed = Message.objects.order_by("id")
    assert (bytes(plain.payload), plain.state) == (b"order 8", State.READY)
    assert (bytes(detailed.payload), detailed.state) == (b"order 9", State.DELAYED)
    assert detailed.headers == {"by": "the shop"}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (b"one", "publish_many takes a list of bodies or Outgoing, not bytes; for one message there is publish"),
        ("one", "publish_many takes a list of bodies or Outgoing, not str"),
        (Outgoing(b"one"), "publish_many takes a list of bodies or Outgoing, not Outgoing"),
        ({"body": b"one"}, "publish_many takes a list of bodies or Outgoing, not dict"),
        (7, "publish_many takes a list of bodies or Outgoing, not int"),
        (None, "publish_many takes a list of bodies or Outgoing, not NoneType"),
        ([b"one", "two"], "a message's body is bytes, not str; encode it"),
        ([{"body": b"one"}], "a message's body is bytes, not dict"),
        ([(b"one", {"a": 1})], "a message's body is bytes, not tuple"),
        ([Outgoing(b"one", headers=[("a", 1)])], "a message's headers are a dict"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_list_of_messages_is_refused_in_words_and_nothing_is_stored(messages: Any, reason: str) -> None:
    make_queue()
    with pytest.raises(TypeError, match=f"^{re.escape(reason)}"):
        publish_many("orders", messages)
    assert not Message.objects.exists()


def test_a_generator_of_messages_is_stored_in_order() -> None:
    make_queue()
    publish_many("orders", (b"%d" % n for n in range(3)))
    assert [bytes(message.payload) for message in Message.objects.order_by("id")] == [b"0", b"1", b"2"]


def test_more_messages_than_a_statement_takes_keep_their_order_and_unique_ids() -> None:
    queue = make_queue()
    ids = publish_many("orders", (b"%d" % n for n in range(9000)))
    assert ids == sorted(ids, key=lambda id: id or 0)
    assert len(set(ids)) == 9000
    assert [int(bytes(message.payload)) for message in Message.objects.all()] == list(range(9000))
    assert assert_counts_are_exact(queue).ready == 9000


def test_a_delayed_message_waits_and_its_time_to_live_begins_when_it_is_due() -> None:
    queue = make_queue()
    before = timezone.now()
    publish("orders", b"", delay=60, ttl=timedelta(minutes=1))
    message = Message.objects.get()
    assert message.state == State.DELAYED
    assert message.due_at is not None
    assert message.expires_at is not None
    assert timedelta(0) <= message.due_at - before - timedelta(seconds=60) < timedelta(seconds=30)
    assert message.expires_at - message.due_at == timedelta(minutes=1)
    assert assert_counts_are_exact(queue).delayed == 1


def test_the_queues_time_to_live_holds_unless_the_message_has_its_own() -> None:
    make_queue(message_ttl=timedelta(hours=1))
    publish("orders", b"default")
    publish("orders", b"own", ttl=0.5)
    rows = Message.objects.values_list("expires_at", "published_at")
    assert [expires - published for expires, published in rows if expires] == [
        timedelta(hours=1), timedelta(seconds=0.5),
    ]  # fmt: skip


def test_a_delay_counts_from_the_publish_and_not_from_the_beginning_of_the_transaction() -> None:
    make_queue()
    with connection.cursor() as cursor:
        cursor.execute("select now() - statement_timestamp()")  # the test itself is a long transaction
        publish("orders", b"", delay=10)
        cursor.execute("select due_at - now() > interval '10 seconds' from queues_message")
        assert cursor.fetchone() == (True,)


# Transactions.


@pytest.mark.django_db(transaction=True)
def test_a_publish_inside_a_transaction_is_seen_and_announced_at_its_commit_only() -> None:
    queue = make_queue()
    with listening() as heard, another_connection() as other:
        other.autocommit = True
        with transaction.atomic():
            id = publish("orders", b"x")
            assert other.execute("select count(*) from queues_message").fetchone() == (0,)
            assert heard.take("ready") == []
        assert other.execute("select id from queues_message").fetchone() == (id,)
        assert heard.take("ready") == [{str(queue.pk): id}]


@pytest.mark.django_db(transaction=True)
def test_a_publish_is_undone_with_its_transaction() -> None:
    queue = make_queue()
    with listening() as heard:
        with transaction.atomic():
            publish("orders", b"x")
            transaction.set_rollback(True)
        assert heard.take("ready") == []
    assert not Message.objects.exists()
    assert assert_counts_are_exact(queue).published == 0


@pytest.mark.django_db(transaction=True)
def test_a_publish_outside_a_transaction_is_durable_when_it_returns() -> None:
    make_queue()
    publish("orders", b"x")
    with another_connection() as other:
        assert other.execute("select count(*) from queues_message").fetchone() == (1,)


@pytest.mark.django_db(transaction=True)
def test_many_messages_are_announced_once_and_delayed_ones_not_at_all() -> None:
    queue = make_queue()
    with listening() as heard:
        ids = publish_many("orders", [b"a", b"b"])
        publish("orders", b"c", delay=5)
        assert heard.take("ready") == [{str(queue.pk): ids[0]}]


@pytest.mark.django_db(transaction=True)
def test_an_open_transaction_that_has_published_does_not_hold_up_the_engine() -> None:
    make_queue(max_length=10)
    with another_connection() as other, transaction.atomic():
        publish("orders", b"x")
        other.execute("set lock_timeout = '2s'")
        other.execute("select queues_topology_version()")
        other.execute("select 1 from queues_queuecount for update")
        other.execute("update queues_queue set paused = true")
        other.execute("select pg_advisory_xact_lock(hashtext('queues_topology'))")


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda: publish("nope", b""), QueueNotFound),
        (lambda: publish("full", b""), QueueFull),
        (lambda: publish("full", "text"), TypeError),  # type: ignore[arg-type]
        (lambda: publish("", b""), InvalidAddress),
        (lambda: publish("orders", b"", key="\0"), InvalidMessage),
    ],
)
def test_a_refused_publish_does_not_spoil_the_callers_transaction(wrong: Any, error: type[Exception]) -> None:
    make_queue()
    store(make_queue("full", max_length=1))
    with transaction.atomic():
        with pytest.raises(error) as refused:
            wrong()
        assert isinstance(refused.value, BrokerError | TypeError)
        publish("orders", b"still works")
    assert Message.objects.filter(queue__name="orders").count() == 1


@pytest.mark.parametrize("value", [{"at": "yesterday"}, {}, None])
def test_the_brokers_own_header_is_refused_whatever_it_says(value: object) -> None:
    queue = make_queue()
    for publishing in (publish, lambda *a, **k: publish_many("orders", [Outgoing(body=b"x", **k)])):
        with pytest.raises(InvalidMessage, match="The header dead-letter is the broker's own"):
            publishing("orders", b"x", headers={"a": 1, "dead-letter": value})
    assert not Message.objects.filter(queue=queue).exists()


# Topics and routes.


def test_a_topic_without_subscriptions_drops_the_message() -> None:
    assert publish("topic:prices", b"") is None
    assert publish_many("topic:prices", [b"", b""]) == [None, None]


def test_every_subscriber_of_a_topic_gets_a_message_of_its_own() -> None:
    first, second = subscribe("prices"), subscribe("prices")
    subscribe("other")
    id = publish("topic:prices", b"x")
    rows = list(Message.objects.values_list("queue_id", "id"))
    assert [queue for queue, _ in rows] == [first.queue_id, second.queue_id]
    assert id == rows[0][1]
    assert rows[1][1] == rows[0][1] + 1
    for subscription in (first, second):
        assert_counts_are_exact(subscription.queue)


def test_a_wide_topic_takes_more_ids_than_a_block_has() -> None:
    subscriptions = [subscribe("prices") for _ in range(3)]
    ids = publish_many("topic:prices", [b"%d" % n for n in range(2000)])
    assert Message.objects.count() == 6000
    for place, subscription in enumerate(subscriptions):
        own = Message.objects.filter(queue=subscription.queue)
        assert [int(bytes(message.payload)) for message in own] == list(range(2000))
        assert (place == 0) is (list(own.values_list("id", flat=True)) == ids)


def test_routes_are_followed_through_queues_and_topics_and_each_queue_gets_it_once() -> None:
    make_queue(), make_queue("copy"), make_queue("tail")
    subscription = subscribe("all")
    for source, target in [("orders", "topic:all"), ("topic:all", "tail"), ("orders", "copy"), ("copy", "tail")]:
        add_route(source, target)
    publish("orders", b"x")
    names = list(Message.objects.values_list("queue__name", flat=True))
    assert sorted(names) == sorted(["orders", "copy", "tail", subscription.queue.name])


def test_a_topic_of_any_text_matches_exactly() -> None:
    subscription = subscribe("цена:€/?%s")
    assert publish("topic:цена:€/?%s", b"x") is not None
    assert Message.objects.get().queue_id == subscription.queue_id


def test_each_route_on_the_way_counts_what_is_published_and_one_that_was_rolled_back_counts_nothing() -> None:
    for name in ("orders", "copy", "both"):
        make_queue(name, max_length=3, overflow="reject")
    for ends in (("orders", "copy"), ("orders", "both"), ("copy", "both"), ("topic:other", "copy")):
        add_route(*ends)
    publish_many("orders", [b"1", b"2"])
    with suppress(ZeroDivisionError), transaction.atomic():
        publish("copy", b"3")
        raise ZeroDivisionError
    publish("copy", b"4")
    with pytest.raises(QueueFull):
        publish("orders", b"5")
    assert list(read_traffic().values()) == [
        ("queue:copy", "queue:both", 3, 3 / 60), ("queue:orders", "queue:both", 2, 2 / 60),
        ("queue:orders", "queue:copy", 2, 2 / 60), ("topic:other", "queue:copy", 0, 0.0),
    ]  # fmt: skip


def test_a_publish_that_goes_by_no_route_writes_no_tally() -> None:
    make_queue()
    add_route("topic:t", "orders")
    publish("orders", b"1")
    assert not RouteTally.objects.exists()


def test_a_queue_that_does_not_exist_is_refused_even_where_a_route_leads_on() -> None:
    make_queue()
    Route.objects.create(source="queue:gone", target="queue:orders")
    with pytest.raises(QueueNotFound, match=r"'gone'; create it with: manage\.py queue create gone"):
        publish("gone", b"x")
    assert not Message.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_subscribers_without_a_promise_get_it_from_the_node_that_serves_them() -> None:
    subscription = subscribe("prices", qos=0)
    node = make_node()
    Interest.objects.create(queue=subscription.queue, node=node)
    with listening() as heard:
        assert publish_many("topic:prices", [b"x" * 5600, b"same", b"same", b"y" * 5601]) == [None] * 4
        assert len(heard.take("transient")) == 3
    assert not Message.objects.exists()


# Keys.


def test_a_key_that_is_taken_stores_nothing_and_returns_the_id_of_the_message_that_has_it() -> None:
    queue = make_queue()
    first = publish("orders", b"1", key="a")
    assert publish("orders", b"2", key="a") == first
    assert publish_many("orders", [Outgoing(body=b"3", key="a"), Outgoing(body=b"4", key="b")])[0] == first
    assert Message.objects.count() == 2
    assert_counts_are_exact(queue)


def test_a_key_given_twice_in_one_call_stores_one_message() -> None:
    make_queue()
    first, second = publish_many("orders", [Outgoing(body=b"1", key="a"), Outgoing(body=b"2", key="a")])
    assert first == second
    assert bytes(Message.objects.get().payload) == b"1"


def test_a_key_is_found_by_the_id_a_message_had_at_first() -> None:
    make_queue()
    first = publish("orders", b"1", key="a")
    Message.objects.update(id=1, origin_id=first)
    assert publish("orders", b"2", key="a") == first


def test_a_key_is_free_again_when_its_message_has_left() -> None:
    make_queue()
    publish("orders", b"1", key="a")
    Message.objects.all().delete()
    assert publish("orders", b"2", key="a") == Message.objects.get().pk


# Maximum length.


def test_a_full_queue_refuses_and_nothing_of_the_call_is_stored() -> None:
    queue = make_queue(max_length=2)
    publish("orders", b"1")
    with pytest.raises(QueueFull, match="'orders'"):
        publish_many("orders", [b"2", b"3"])
    publish("orders", b"2")
    with pytest.raises(QueueFull):
        publish("orders", b"3")
    assert assert_counts_are_exact(queue).ready == 2


def test_parts_that_were_stored_are_taken_back_when_a_later_one_is_refused() -> None:
    queue = make_queue(max_length=5000)
    with transaction.atomic():
        with pytest.raises(QueueFull):
            publish_many("orders", [b""] * 6000)
        publish("orders", b"the transaction goes on")
    assert assert_counts_are_exact(queue).ready == 1


def test_nothing_is_stored_when_the_place_of_one_with_a_key_was_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = make_queue()
    publish("orders", b"1", key="k")

    def find_taken(kind: str, name: str, rows: object, ids: list[int | None], *_: object) -> tuple[Any, Exception]:
        """The message with the key has left, and others have filled the queue."""
        return ids, QueueFull("'orders'")

    monkeypatch.setattr("queues.api._find_taken", find_taken)
    with transaction.atomic():
        with pytest.raises(QueueFull):
            publish_many("orders", [Outgoing(body=b"2", key="k"), b"3"])
        publish("orders", b"the transaction goes on")
    assert assert_counts_are_exact(queue).ready == 2


def test_a_full_target_of_a_route_refuses_for_all() -> None:
    make_queue(), store(make_queue("copy", max_length=1))
    add_route("orders", "copy")
    with pytest.raises(QueueFull, match="'copy'"):
        publish("orders", b"x")
    assert not Message.objects.filter(queue__name="orders").exists()


def test_a_queue_that_drops_the_oldest_keeps_the_newest_and_archives_the_rest() -> None:
    queue = make_queue(max_length=2, overflow="drop-oldest")
    publish_many("orders", [b"1", b"2", b"3"])
    publish("orders", b"4")
    assert [bytes(message.payload) for message in Message.objects.all()] == [b"3", b"4"]
    assert assert_counts_are_exact(queue).settled == 2
    assert list(ArchivedMessage.objects.values_list("outcome", flat=True)) == [3, 3]


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_two_publishers_cannot_both_take_the_last_place() -> None:
    make_queue(max_length=1)
    with another_connection() as other:
        other.execute("select 1 from queues_queuecount for update")  # the other is about to take it
        with connection.cursor() as cursor:
            cursor.execute("set lock_timeout = '100ms'")
        try:
            with pytest.raises(Exception, match="lock timeout"):
                publish("orders", b"x")
        finally:
            with connection.cursor() as cursor:
                cursor.execute("reset lock_timeout")
    publish("orders", b"x")


# Refusals.


@pytest.mark.parametrize(
    ("body", "advice"), [("text", "encode"), ({"a": 1}, "json"), ([1], "json"), (None, "bytes"), (3, "bytes")]
)
def test_a_body_that_is_not_bytes_is_refused_with_advice(body: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        publish("orders", body)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"key": ""}, "0 bytes"),
        ({"key": "x" * 1025}, "1025 bytes"),
        ({"key": "a\0b"}, "NUL"),
        ({"key": "\ud800"}, "Unicode"),
        ({"headers": {"a": b"x"}}, "JSON"),
        ({"headers": {"a": float("nan")}}, "JSON"),
        ({"headers": {"a": "\ud800"}}, "JSON"),
        ({"headers": {"a": ["x\0"]}}, "NUL"),
        ({"headers": {"a": "x" * 70_000}}, "bytes as JSON"),
        ({"delay": -1}, "delay is -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"ttl": 0}, "ttl is 0"),
        ({"ttl": 1e300}, "ttl is"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_attempts": 40_000}, "max_attempts"),
        ({"max_attempts": 1.5}, "max_attempts"),
    ],
)
def test_values_that_cannot_be_stored_are_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    make_queue()
    with pytest.raises(InvalidMessage, match=reason):
        publish("orders", b"", **fields)


@pytest.mark.parametrize("fields", [{"key": 3}, {"headers": [1]}, {"headers": {1: 2}}, {"delay": "5"}, {"ttl": True}])
def test_arguments_of_the_wrong_type_are_type_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        publish("orders", b"", **fields)


def test_a_backslash_before_u0000_is_text_and_stored() -> None:
    make_queue()
    publish("orders", b"", headers={"a": "\\u0000"})
    assert Message.objects.get().headers == {"a": "\\u0000"}


def test_a_body_larger_than_any_listener_takes_is_refused(settings: Any) -> None:
    make_queue()
    settings.BROKER_MAX_FRAME = 10
    publish("orders", b"x" * 10)
    with pytest.raises(InvalidMessage, match="11 bytes"):
        publish("orders", b"x" * 11)


@pytest.mark.parametrize("address", ["", "queue:", "topic:", "a\0b", "x" * 256, "peer:bob", "\ud800"])
def test_an_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidAddress):
        publish(address, b"")


# Together with the engine.


@pytest.mark.django_db(transaction=True)
async def test_a_waiting_consumer_of_a_running_node_gets_it_when_the_transaction_commits() -> None:
    engine = Engine(options_from_settings("test"))
    published = asyncio.Event()
    loop = asyncio.get_running_loop()

    def in_a_transaction() -> None:
        with transaction.atomic():
            publish("orders", b"x", headers={"h": 1})
        loop.call_soon_threadsafe(published.set)
        connections.close_all()

    await asyncio.to_thread(_make_queue_here)
    await engine.start()
    try:
        waiter = OneDelivery()
        (await engine.queue("orders")).wait(waiter)
        async with asyncio.timeout(20):
            await asyncio.to_thread(in_a_transaction)
            await published.wait()
            _, payload, _, detail = await waiter.delivered
        assert payload == b"x"
        assert detail.headers == {"h": 1}
    finally:
        await engine.stop()


def _make_queue_here() -> None:
    make_queue()
    connections.close_all()
