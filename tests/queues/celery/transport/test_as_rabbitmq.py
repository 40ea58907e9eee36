"""kombu's channel and producer, method by method: what RabbitMQ does, or a refusal or a warning."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError

from queues.celery.transport.exchanges import matches_topic
from queues.models import Queue as StoredQueue
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Tables
from tests.waiting import wait_until

ORDERS = Queue("orders")


def error_of(call: Callable[[], object]) -> tuple[int, str]:
    """The code and the method of the ChannelError that a call raises."""
    with pytest.raises(ChannelError) as caught:
        call()
    return caught.value.reply_code, caught.value.method_name


#: What RabbitMQ 3.10 gives to queues that are bound to a topic exchange, by pattern.
KEYS = ["video", "video.a", "end", "x.y.end", "a.b", "a.x.y.b", "", "a.", "a..b", ".", "A.b", "a\nb"]
REACHED = {
    "video.#": ["video", "video.a"],
    "#.end": ["end", "x.y.end"],
    "a.#.b": ["a.b", "a.x.y.b", "a..b"],
    "#": KEYS,
    "#.#": KEYS,
    "*": ["video", "end", "a\nb"],
    "*.*": ["video.a", "a.b", "a.", ".", "A.b"],
    "a.*": ["a.b", "a."],
    "*.#": [key for key in KEYS if key],
    "": [""],
    "#.a.#.b.#": ["a.b", "a.x.y.b", "a..b"],
}


@pytest.mark.parametrize("pattern", REACHED)
def test_a_topics_hash_stands_for_no_word_too(pattern: str) -> None:
    assert [key for key in KEYS if matches_topic(pattern, key)] == REACHED[pattern]


def test_a_topic_of_many_hashes_costs_no_more_than_its_length() -> None:
    assert not matches_topic(".".join(["#", "a"] * 60), ".".join("a" * 127) + ".b")


def test_a_task_reaches_the_queue_that_is_bound_with_a_hash_at_its_end(connect: Connect, tables: Tables) -> None:
    exchange = Exchange("media", "topic")
    connection = connect()
    Queue("films", exchange, "video.#")(connection.channel()).declare()
    connection.Producer().publish(1, exchange=exchange, routing_key="video")
    assert len(tables.messages("films")) == 1


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("options", [{}, {"confirm_publish": False}])
def test_a_mandatory_message_without_a_queue_is_refused_in_a_batch_too(
    connect: Connect, tables: Tables, batch: bool, options: dict[str, Any]
) -> None:
    connection = connect(**options)
    producer = connection.Producer()

    def publish(exchange: str) -> None:
        if not batch:
            producer.publish(2, exchange=exchange, routing_key="nowhere", mandatory=True)
            return
        with producer.batch():
            producer.publish(1, routing_key="orders", declare=[ORDERS])
            producer.publish(2, exchange=exchange, routing_key="nowhere", mandatory=True)

    for exchange in ("", "nothing is bound to it"):
        assert error_of(lambda exchange=exchange: publish(exchange))[0] == 312  # type: ignore[misc]
    connection.release()
    assert not tables.queues() or not tables.messages("orders")


def test_a_producers_callback_is_given_a_mandatory_message_that_reaches_no_queue(connect: Connect) -> None:
    returned: list[tuple[Any, ...]] = []
    producer = connect().Producer(on_return=lambda *given: returned.append(given))
    producer.publish(1, routing_key="nowhere", mandatory=True)
    [(error, exchange, routing_key, message)] = returned
    assert (error.reply_code, exchange, routing_key, message["body"]) == (312, "", "nowhere", "1")


def test_what_nobody_listens_to_now_is_dropped_without_a_line(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    producer = connect().Producer()
    for exchange in ("celeryev", "celery.pidbox", "reply.celery.pidbox"):
        producer.publish(1, exchange=exchange, routing_key="x")
    assert caplog.records == []


def test_arguments_that_a_queue_does_not_obey_are_named_once(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    arguments = {"x-dead-letter-exchange": "dead", "x-message-ttl": 9, "x-max-priority": 10, "x-queue-type": "quorum"}
    channel = connect().channel()
    for _ in range(2):
        Queue("orders", max_length_bytes=7, queue_arguments=arguments)(channel).declare()
    channel.exchange_declare("orders", "direct", arguments={"alternate-exchange": "others"})
    channel.basic_consume("orders", callback=print, arguments={"x-priority": 1})
    assert [record.getMessage() for record in caplog.records] == [
        "arguments of the queue 'orders' have no effect, docs/celery.md says what to do: "
        "x-dead-letter-exchange, x-max-length-bytes",
        "arguments of the exchange 'orders' have no effect: alternate-exchange",
        "arguments of consumers of the queue 'orders' have no effect: x-priority",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-max-length", 0), ("x-max-length", -1), ("x-max-length", "7"), ("x-max-length", True),
        ("x-message-ttl", -1), ("x-message-ttl", "x"), ("x-message-ttl", 2.5), ("x-expires", 0),
        ("x-expires", float("nan")), ("x-overflow", "what"), ("x-single-active-consumer", "yes"),
        ("x-max-priority", 300), ("x-queue-type", "stream"),
    ],
)  # fmt: skip
def test_an_invalid_argument_of_a_queue_is_refused(connect: Connect, tables: Tables, name: str, value: object) -> None:
    channel = connect().channel()
    assert error_of(lambda: channel.queue_declare("q", arguments={name: value})) == (406, "Channel.queue_declare")
    assert tables.queues() == []


def test_arguments_beyond_what_a_column_takes_are_the_most_that_it_does(connect: Connect) -> None:
    channel = connect().channel()
    channel.queue_declare("q", arguments={"x-max-length": 2**40, "x-message-ttl": 2**62})
    queue = StoredQueue.objects.get()
    assert queue.max_length == 2**31 - 1
    assert queue.message_ttl is not None
    assert queue.message_ttl.days == 36_500


def test_an_exclusive_queue_is_its_connections_alone(connect: Connect, tables: Tables) -> None:
    owner, other = connect(), connect().channel()
    mine = owner.channel()
    for _ in range(2):
        mine.queue_declare("mine", exclusive=True, auto_delete=True)
    for method, call in {
        "queue_declare": lambda: other.queue_declare("mine", exclusive=True, auto_delete=True),
        "basic_consume": lambda: other.basic_consume("mine", callback=print),
        "basic_get": lambda: other.basic_get("mine"),
        "queue_purge": lambda: other.queue_purge("mine"),
        "queue_delete": lambda: other.queue_delete("mine"),
        "queue_bind": lambda: other.queue_bind("mine", "amq.direct", "x"),
    }.items():
        assert error_of(call) == (405, f"Channel.{method}")
    other.basic_publish(other.prepare_message("1"), routing_key="mine")
    assert mine.queue_delete("mine") == 1
    mine.queue_declare("mine", exclusive=True, auto_delete=True)
    owner.release()

    def is_free() -> bool:
        with contextlib.suppress(ChannelError):
            other.queue_declare("mine", exclusive=True, auto_delete=True)
            return True
        return False

    wait_until(is_free, "PostgreSQL has ended the session, and with it the lock")


def test_remote_control_of_a_worker_that_reconnects_is_not_locked_by_its_former_connection(connect: Connect) -> None:
    for connection in (connect(), connect()):
        connection.channel().queue_declare("celery@here.celery.pidbox", exclusive=True, auto_delete=True)


def test_errors_name_the_method_that_was_called(connect: Connect) -> None:
    channel = connect().channel()
    for method, call in {
        "queue_declare": lambda: channel.queue_declare("nowhere", passive=True),
        "basic_consume": lambda: channel.basic_consume("nowhere", callback=print),
        "basic_get": lambda: channel.basic_get("nowhere"),
        "queue_purge": lambda: channel.queue_purge("nowhere"),
        "queue_bind": lambda: channel.queue_bind("nowhere", "amq.direct", "x"),
        "exchange_declare": lambda: channel.exchange_declare("nowhere", "strange", passive=True),
    }.items():
        assert error_of(call) == (404, f"Channel.{method}")
    channel.queue_declare("here", auto_delete=True)
    assert error_of(lambda: channel.queue_bind("here", "not declared", "x")) == (404, "Channel.queue_bind")
    assert channel.queue_delete("nowhere") == 0


def test_what_this_transport_has_not_is_refused(connect: Connect) -> None:
    channel = connect().channel()
    source = Exchange("source")(channel)
    for call in (
        lambda: Exchange("target")(channel).bind_to(source), lambda: Exchange("target")(channel).unbind_from(source),
        lambda: channel.flow(False), channel.tx_select, lambda: channel.basic_qos(1, 1, False),
        lambda: channel.Producer().publish(1, routing_key="x", immediate=True),
        lambda: channel.basic_consume("x", callback=print, exclusive=True),
    ):  # fmt: skip
        assert error_of(call)[0] == 540
    channel.confirm_select()
    channel.flow(True)
    assert error_of(lambda: channel.basic_qos(0, -1, False))[0] == 406


def test_a_consumer_tag_is_used_once(connect: Connect) -> None:
    channel = connect().channel()
    ORDERS(channel).declare()
    channel.basic_consume("orders", callback=print, consumer_tag="t")
    assert error_of(lambda: channel.basic_consume("orders", callback=print, consumer_tag="t"))[0] == 530


def test_exchanges_of_amqp_are_there_and_have_their_types(connect: Connect, tables: Tables) -> None:
    channel = connect().channel()
    Queue("films", Exchange("amq.topic", "topic"), "video.*")(channel).declare()
    channel.Producer().publish(1, exchange="amq.topic", routing_key="video.new")
    assert len(tables.messages("films")) == 1
    assert error_of(lambda: channel.exchange_declare("amq.topic", "direct"))[0] == 406
    assert error_of(lambda: channel.exchange_declare("amq.mine", "direct"))[0] == 403
    assert error_of(lambda: channel.exchange_delete("amq.topic"))[0] == 403


def test_a_queue_or_an_exchange_in_use_is_not_deleted_if_that_is_asked_for(connect: Connect, tables: Tables) -> None:
    channel = connect().channel()
    exchange = Exchange("ex")
    queue = Queue("q", exchange, "x", auto_delete=True)(channel)
    queue.declare()
    channel.Producer().publish(1, exchange=exchange, routing_key="x")
    assert error_of(lambda: queue.delete(if_empty=True)) == (406, "Channel.queue_delete")
    assert error_of(lambda: exchange(channel).delete(if_unused=True)) == (406, "Channel.exchange_delete")
    assert queue.purge() == 1
    tag = queue.consume(callback=print)
    assert error_of(lambda: queue.delete(if_unused=True)) == (406, "Channel.queue_delete")
    assert tables.queues() == ["q"]
    channel.basic_cancel(tag)


@pytest.mark.parametrize("options", [{"serializer": "raw"}, {"content_type": "text/plain"}])
def test_an_empty_text_comes_back_as_text(connect: Connect, options: dict[str, Any]) -> None:
    channel = connect().channel()
    channel.Producer().publish("", routing_key="orders", declare=[ORDERS], **options)
    message = ORDERS(channel).get(no_ack=True, accept=["text/plain", "application/data"])
    assert (message.body, message.payload) == ("", "")


@pytest.mark.parametrize("priority", [-1, 256, "5", "high", 2.5, pytest.param(10**5000, id="huge")])
def test_a_priority_that_amqp_has_not_is_refused(connect: Connect, tables: Tables, priority: Any) -> None:
    producer = connect().Producer()
    with pytest.raises(ValueError, match="whole number from 0 to 255"):
        producer.publish(1, routing_key="orders", declare=[ORDERS], priority=priority)
    assert tables.messages("orders") == []


@pytest.mark.parametrize("expiration", ["-1", "nan", "inf", "soon", pytest.param("1" * 5000, id="huge")])
def test_an_expiration_that_is_no_time_is_refused(connect: Connect, expiration: str) -> None:
    channel = connect().channel()
    message = channel.prepare_message("1", properties={"expiration": expiration})
    with pytest.raises(ValueError, match="must be milliseconds"):
        channel.basic_publish(message, routing_key="orders")


@pytest.mark.parametrize("name", ["a\0b", "name-\udcff", "x" * 256])
def test_names_that_cannot_be_are_refused_and_the_channel_goes_on(
    connect: Connect, tables: Tables, name: str
) -> None:
    connection = connect()
    channel = connection.channel()
    ORDERS(channel).declare()
    message = channel.prepare_message("1")
    for call in (
        lambda: channel.exchange_declare(name, "topic"), lambda: channel.exchange_delete(name),
        lambda: channel.queue_bind("orders", "amq.topic", name), lambda: channel.queue_unbind("orders", name, ""),
        lambda: channel.basic_publish(message, exchange=name, routing_key="x"),
        lambda: channel.basic_publish(message, exchange="amq.topic", routing_key=name),
    ):  # fmt: skip
        assert error_of(call)[0] == 403
    for call in (lambda: channel.queue_purge(name), lambda: channel.basic_get(name)):
        assert error_of(call)[0] == 404
    channel.basic_publish(message, routing_key="orders")
    assert connection.connected
    assert len(tables.messages("orders")) == 1


