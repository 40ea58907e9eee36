"""BlipMQ deliveries by a running broker: tags, QoS, redelivery, late acknowledgements, limits."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker, Database, Frame, nack
from wire.blipmq import codec
from wire.blipmq.codec import PONG, PUBLISH

BACKOFF = 0.1
UNKNOWN = "unknown subscription or delivery tag"


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_BLIPMQ_MAX_ATTEMPTS=3) as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[Blip]:
    with Blip(broker.blipmq) as connection:
        yield connection


@pytest.fixture(scope="module")
def hasty_broker(store: Database) -> Iterator[Broker]:
    """One whose deliveries come back while a test runs; those of the other do not."""
    with Broker(store, BROKER_BLIPMQ_MAX_ATTEMPTS=3, BROKER_BLIPMQ_RETRY_BACKOFF=BACKOFF) as running:
        yield running


@pytest.fixture
def hasty(hasty_broker: Broker) -> Iterator[Blip]:
    with Blip(hasty_broker.blipmq) as connection:
        yield connection


@pytest.fixture
def slow(client: Blip) -> int:
    """A subscription of `slow`."""
    return client.subscribe(b"slow")


# The form of a delivery.


def test_delivery_tags_count_from_one_in_each_subscription(client: Blip, slow: int, store: Database) -> None:
    other = client.subscribe(b"slow")
    client.publish(b"slow", b"a", b"b", b"c")
    for subscription in (slow, other):
        deliveries = [client.next(subscription) for _ in range(3)]
        assert [(delivery.cid, delivery.body) for delivery in deliveries] == [(1, b"a"), (2, b"b"), (3, b"c")]
        client.ask(*(codec.encode_ack(tag, subscription) for tag in (1, 2, 3)))


@pytest.mark.parametrize(("published", "subscribed"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_effective_qos_is_the_lower_of_the_two(client: Blip, published: int, subscribed: int) -> None:
    topic = b"qos%d%d" % (published, subscribed)
    subscription = client.subscribe(topic, subscribed)
    client.publish(topic, b"x", qos=published)
    delivery = client.next(subscription, cid=77)
    assert (delivery.qos, delivery.topic, delivery.body) == (min(published, subscribed), topic, b"x")
    assert delivery.cid == (1 if delivery.qos else 77)


def test_qos_0_deliveries_carry_the_correlation_id_of_their_poll_and_need_no_ack(hasty: Blip) -> None:
    subscription = hasty.subscribe(b"qos0", 0)
    hasty.publish(b"qos0", b"a", b"b", qos=0)
    frames = hasty.ask(*(codec.encode_poll(cid, subscription) for cid in (5, 1 << 50, 7)))
    assert [(frame.cid, frame.body) for frame in frames] == [(5, b"a"), (1 << 50, b"b")]
    time.sleep(3 * BACKOFF)
    assert hasty.poll(subscription) is None


def test_messages_of_one_publisher_are_delivered_in_their_order_whatever_their_qos(client: Blip) -> None:
    subscription = client.subscribe(b"mixed")
    assert client.poll(subscription) is None
    for n in range(6):
        client.publish(b"mixed", b"%d" % n, qos=n % 2)
    assert [client.next(subscription).body for _ in range(6)] == [b"%d" % n for n in range(6)]


def test_a_stream_of_qos_0_messages_does_not_keep_those_of_qos_1_waiting(client: Blip, broker: Broker) -> None:
    subscription = client.subscribe(b"flood")
    client.publish(b"flood", *[b"durable"] * 20)
    with Blip(broker.blipmq) as flood:
        flood.publish(b"flood", *[b"x"] * 50, qos=0)
        seen: list[bytes] = []
        while seen.count(b"durable") < 20:
            flood.publish(b"flood", b"x", b"x", qos=0)
            seen.append(client.next(subscription).body)
            assert len(seen) <= 40, seen


def test_qos_0_messages_are_never_written_to_the_store(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"memory")
    client.publish(b"memory", b"x", qos=0)
    assert store.states(store.queue_of(subscription)).total() == 0
    assert client.next(subscription).body == b"x"


def test_a_publish_reaches_every_subscription_of_the_topic_and_no_other(client: Blip, store: Database) -> None:
    subscriptions = [client.subscribe(b"fan") for _ in range(5)]
    other = client.subscribe(b"fan.out")
    client.publish(b"fan", b"x")
    assert [store.states(store.queue_of(subscription)).total() for subscription in subscriptions] == [1] * 5
    for subscription in subscriptions:
        delivery = client.next(subscription)
        assert (delivery.cid, delivery.body) == (1, b"x")
        client.ack(1, subscription)
    assert client.poll(other) is None


def test_every_subscribe_makes_a_new_subscription_with_a_greater_id(client: Blip) -> None:
    ids = [client.subscribe(b"again") for _ in range(3)]
    assert ids == sorted(set(ids))


def test_subscription_ids_count_from_one(client: Blip, store: Database) -> None:
    client.subscribe(b"from one")
    assert store.value("select min(id) from queues_subscription") == 1


def test_a_subscriber_gets_nothing_published_before_it_subscribed(client: Blip) -> None:
    client.publish(b"history", b"old")
    subscription = client.subscribe(b"history")
    client.publish(b"history", b"new")
    assert client.consume(subscription, 1) == [b"new"]
    assert client.poll(subscription) is None


def test_a_publish_to_a_topic_without_subscriptions_is_dropped(client: Blip, store: Database) -> None:
    client.publish(b"deserted", b"unheard", b"unheard")
    assert not store.value("select count(*) from queues_openmessage where payload = 'unheard'")


def test_messages_come_in_the_order_they_were_published(client: Blip) -> None:
    subscription = client.subscribe(b"order")
    bodies = [b"%d" % n for n in range(3000)]
    client.publish(b"order", *bodies)
    assert client.consume(subscription, 3000) == bodies


def test_an_empty_body_is_a_message(client: Blip) -> None:
    subscription = client.subscribe(b"empty")
    client.publish(b"empty", b"")
    delivery = client.next(subscription)
    assert (delivery.topic, delivery.body) == (b"empty", b"")


@pytest.mark.parametrize(
    "topic",
    [b"with\0nul", b"\0", "темы/日本 ✓".encode(), b"a" * 60_000, b" ", b"*", b"demo\n", b"_subscription/1/x"],
    ids=["NUL inside", "NUL", "not ASCII", "60 KB", "space", "asterisk", "line feed", "a system's name"],
)
def test_a_topic_is_its_exact_bytes(client: Blip, topic: bytes) -> None:
    subscription = client.subscribe(topic)
    client.publish(b"\0" + topic, b"wrong")
    client.publish(topic + b"\0", b"wrong")
    client.publish(topic, b"right")
    delivery = client.next(subscription)
    assert (delivery.topic, delivery.body) == (topic, b"right")
    client.ack(delivery.cid, subscription)
    assert client.poll(subscription) is None


def test_topics_that_differ_after_2_kb_are_different(client: Blip) -> None:
    long = b"long" * 15_000
    one, two = client.subscribe(long + b"1"), client.subscribe(long + b"2")
    client.publish(long + b"2", b"x")
    assert client.poll(one) is None
    assert client.next(two).body == b"x"


# POLL.


def test_a_poll_is_answered_at_once_or_not_at_all(client: Blip, broker: Broker) -> None:
    subscription = client.subscribe(b"never waits")
    assert client.ask(codec.encode_poll(5, subscription)) == []
    with Blip(broker.blipmq) as publisher:
        publisher.publish(b"never waits", b"later")
    assert client.is_silent()
    assert client.next(subscription).body == b"later"


def test_a_poll_takes_one_message(client: Blip, slow: int) -> None:
    client.publish(b"slow", b"a", b"b")
    assert client.next(slow).body == b"a"  # which asserts that no second one came
    assert client.is_silent()
    assert client.next(slow).body == b"b"


def test_a_poll_right_behind_a_publish_finds_its_message_when_the_commit_is_quick(client: Blip) -> None:
    subscription = client.subscribe(b"behind")

    def found() -> bool:
        pair = codec.encode_publish(4, 1, b"behind", b"x") + codec.encode_poll(5, subscription)
        frames = client.ask(pair)
        delivery = frames[0] if frames else client.next(subscription)
        client.ack(delivery.cid, subscription)
        return bool(frames)

    wait_until(found)


def test_when_the_store_does_not_answer_a_poll_is_silent_and_its_message_comes_later(
    broker: Broker, client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"stuck")
    store.change_queue(store.queue_of(subscription), ack_timeout=datetime.timedelta(seconds=60))
    client.publish(b"stuck", b"x")
    with store.unwritable_messages(), Blip(broker.blipmq) as other:
        assert other.ask(*[codec.encode_poll(5, subscription)] * 3) == []
    assert client.next(subscription).body == b"x"


def test_any_connection_may_poll_and_acknowledge_a_subscription(
    client: Blip, broker: Broker, store: Database
) -> None:
    subscription = client.subscribe(b"shared")
    client.publish(b"shared", b"a", b"b")
    with Blip(broker.blipmq) as other, Blip(broker.blipmq) as third:
        assert other.next(subscription).cid == 1
        assert client.next(subscription).cid == 2
        third.ack(1, subscription)
        other.ack(2, subscription)
    store.wait_for_states(store.queue_of(subscription))
    assert client.poll(subscription) is None


# Acknowledgements.


def test_an_acknowledged_message_leaves_the_store_and_an_archive_row_stays(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"settled")
    client.publish(b"settled", b"body")
    client.ack(client.next(subscription).cid, subscription)
    queue = store.queue_of(subscription)
    store.wait_for_states(queue)
    outcome, size, payload = wait_until(
        lambda: store.rows("select outcome, size, payload from queues_archive where queue_id = %s", queue)
    )[0]
    assert (outcome, size, payload) == (0, 4, None)


def test_a_second_ack_of_the_same_delivery_is_404(client: Blip) -> None:
    subscription = client.subscribe(b"twice")
    client.publish(b"twice", b"x")
    tag = client.next(subscription).cid
    ack = codec.encode_ack(tag, subscription)
    assert client.ask(ack, ack) == [nack(tag, 404, UNKNOWN)]


def test_a_tag_of_one_subscription_does_not_settle_that_of_another(client: Blip, slow: int) -> None:
    other = client.subscribe(b"slow")
    client.publish(b"slow", b"x")
    assert client.next(slow).cid == 1
    assert client.ask(codec.encode_ack(1, other)) == [nack(1, 404, UNKNOWN)]
    client.ack(1, slow)


# Redelivery.


def test_an_unacknowledged_message_is_delivered_again_with_the_same_tag_after_growing_waits(hasty: Blip) -> None:
    subscription = hasty.subscribe(b"retry")
    hasty.publish(b"retry", b"x")
    asked, got = [], []

    def poll() -> Frame | None:
        begin = time.monotonic()
        delivery = hasty.poll(subscription)
        if delivery is not None:
            asked.append(begin)
            got.append(time.monotonic())
        return delivery

    for _ in range(3):
        delivery = wait_until(poll, "a delivery")
        assert (delivery.cid, delivery.body) == (1, b"x")
    # Between the two times of each the broker has delivered it.
    assert got[1] - asked[0] >= BACKOFF * 0.9
    assert got[2] - asked[1] >= 2 * BACKOFF * 0.9


def test_a_redelivery_comes_at_the_tail(hasty: Blip, store: Database) -> None:
    subscription = hasty.subscribe(b"tail")
    queue = store.queue_of(subscription)
    hasty.publish(b"tail", b"a", b"b", b"c")
    assert hasty.next(subscription).body == b"a"
    wait_until(lambda: store.value("select count(*) from queues_message where queue_id = %s and tag = 1", queue))
    order = [(delivery.cid, delivery.body) for delivery in (hasty.next(subscription) for _ in range(3))]
    assert order == [(2, b"b"), (3, b"c"), (1, b"a")]


def test_after_its_last_attempt_a_message_is_a_dead_letter(hasty: Blip, store: Database) -> None:
    subscription = hasty.subscribe(b"dead")
    hasty.publish(b"dead", b"x")
    for _ in range(3):
        assert hasty.next(subscription).cid == 1
    queue = store.queue_of(subscription)
    store.wait_for_states(queue, dead=1)
    assert hasty.poll(subscription) is None
    assert hasty.ask(codec.encode_ack(1, subscription)) == [nack(1, 404, UNKNOWN)]
    attempts, error = store.rows("select attempts, error from queues_message where queue_id = %s", queue)[0]
    assert (attempts, error) == (3, "not acknowledged in time")
    assert store.payloads(queue) == [b"x"]


@pytest.fixture(params=[False, True], ids=["plain", "audited"])
def late(request: pytest.FixtureRequest, hasty_broker: Broker, hasty: Blip, store: Database) -> int:
    """A subscription of `late`, whose queue is audited or not: what answers a late ACK is the same."""
    subscription = hasty.subscribe(b"late")
    if request.param:
        store.change_queue(store.queue_of(subscription), audited=True)
        store.wait_until_obeyed(hasty_broker)
    return subscription


def test_an_ack_that_comes_while_the_message_waits_to_go_out_again_settles_it(
    hasty: Blip, late: int, store: Database
) -> None:
    subscription, queue = late, store.queue_of(late)
    hasty.publish(b"late", b"x")
    tag = hasty.next(subscription).cid
    wait_until(lambda: store.value("select count(*) from queues_message where queue_id = %s and tag = 1", queue))
    hasty.ack(tag, subscription)
    store.wait_for_states(queue)
    assert hasty.poll(subscription) is None


def test_a_late_ack_settles_a_message_that_is_in_memory_to_go_out_again(
    hasty_broker: Broker, hasty: Blip, late: int, store: Database
) -> None:
    subscription, queue = late, store.queue_of(late)
    hasty.publish(b"late", b"a", b"b")
    assert [hasty.next(subscription).cid for _ in range(2)] == [1, 2]
    wait_until(lambda: store.value("select count(*) from queues_message where queue_id = %s and tag > 0", queue) == 2)
    store.change_queue(queue, ack_timeout=datetime.timedelta(seconds=60))
    store.wait_until_obeyed(hasty_broker)
    assert hasty.next(subscription).cid == 1  # the claim for this one took both into memory
    assert store.states(queue)[1] == 2
    hasty.ack(2, subscription)
    hasty.ack(1, subscription)
    store.wait_for_states(queue)
    assert hasty.poll(subscription) is None


def test_a_late_ack_settles_a_message_that_is_just_being_returned(hasty: Blip, late: int, store: Database) -> None:
    subscription, queue = late, store.queue_of(late)
    hasty.publish(b"late", b"before", b"x")
    hasty.ack(hasty.next(subscription).cid, subscription)
    wait_until(lambda: store.states(queue).total() == 1)
    with store.unwritable_messages():
        delivery = hasty.next(subscription)  # it came into memory with the one before
        assert delivery.body == b"x"
        tag = delivery.cid
        store.wait_for_blocked("returned as")
        hasty.send(codec.encode_ack(tag, subscription))
        hasty.is_silent(0.05)
    assert hasty.ask() == []
    store.wait_for_states(queue)


def test_of_a_message_that_came_twice_the_first_ack_settles_it_and_the_second_is_told_so(
    hasty_broker: Broker, hasty: Blip, late: int, store: Database
) -> None:
    queue = store.queue_of(late)
    hasty.publish(b"late", b"x")
    assert [hasty.next(late).cid for _ in range(2)] == [1, 1]
    hasty.ack(1, late)
    store.wait_for_states(queue)
    assert hasty.ask(codec.encode_ack(1, late)) == [nack(1, 404, UNKNOWN)]
    with Blip(hasty_broker.blipmq) as other:
        assert other.ask(codec.encode_ack(1, late)) == [nack(1, 404, UNKNOWN)]


def test_an_ack_after_the_connection_that_polled_is_gone_settles_the_message(
    hasty_broker: Broker, hasty: Blip, store: Database
) -> None:
    subscription = hasty.subscribe(b"gone")
    hasty.publish(b"gone", b"x")
    with Blip(hasty_broker.blipmq) as other:
        tag = other.next(subscription).cid
    hasty.ack(tag, subscription)
    store.wait_for_states(store.queue_of(subscription))


def test_messages_polled_by_a_vanished_client_are_delivered_again(hasty_broker: Broker, hasty: Blip) -> None:
    subscription = hasty.subscribe(b"vanished")
    hasty.publish(b"vanished", b"x")
    with Blip(hasty_broker.blipmq) as other:
        assert other.next(subscription).cid == 1
    assert hasty.next(subscription).cid == 1


# Queues with a maximum length.


def test_a_full_queue_refuses_with_the_correlation_id_and_loses_nothing_else(client: Blip, store: Database) -> None:
    full, free = client.subscribe(b"full"), client.subscribe(b"free")
    store.change_queue(store.queue_of(full), max_length=2)
    answers = client.ask(
        codec.encode_publish(101, 1, b"full", b"a"),
        codec.encode_publish(102, 1, b"free", b"x"),
        codec.encode_publish(103, 1, b"full", b"b"),
        codec.encode_publish(104, 1, b"full", b"c"),
        codec.encode_publish(105, 1, b"free", b"y"),
    )
    assert answers == [nack(104, 503, "queue full")]
    assert client.ask(codec.encode_publish(106, 1, b"full", b"d")) == [nack(106, 503, "queue full")]
    assert client.consume(free, 2) == [b"x", b"y"]
    assert client.consume(full, 2) == [b"a", b"b"]
    store.wait_for_states(store.queue_of(full))
    assert client.ask(codec.encode_publish(107, 1, b"full", b"e")) == []
    assert client.consume(full, 1) == [b"e"]


def test_a_publish_to_several_queues_of_which_one_is_full_enters_none(client: Blip, store: Database) -> None:
    full, free = client.subscribe(b"one is full"), client.subscribe(b"one is full")
    store.change_queue(store.queue_of(full), max_length=1)
    client.publish(b"one is full", b"a")
    assert client.ask(codec.encode_publish(5, 1, b"one is full", b"b")) == [nack(5, 503, "queue full")]
    assert store.payloads(store.queue_of(free)) == [b"a"]


def test_a_full_queue_that_drops_keeps_the_newest(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"drop")
    queue = store.queue_of(subscription)
    store.change_queue(queue, max_length=3, overflow="drop-oldest")
    client.publish(b"drop", *(b"%d" % n for n in range(10)))
    client.publish(b"drop", b"10")
    assert client.consume(subscription, 3) == [b"8", b"9", b"10"]
    dropped = store.value("select count(*) from queues_archive where queue_id = %s and outcome = 3", queue)
    assert dropped == 8


# Messages that PostgreSQL refuses.


def test_a_message_that_cannot_be_stored_is_refused_alone(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"refused")
    with store.refusing(b"poison"):
        frames = client.ask(
            codec.encode_publish(101, 1, b"refused", b"a"),
            codec.encode_publish(102, 1, b"refused", b"poison"),
            codec.encode_publish(103, 1, b"refused", b"b"),
        )
    assert [frame.cid for frame in frames] == [102]
    code, text = int.from_bytes(frames[0].payload[:2], "big"), frames[0].payload[4:].decode()
    assert code == 500
    assert text.startswith("durable publish failed: ")
    assert "this payload is refused" in text
    assert client.consume(subscription, 2) == [b"a", b"b"]
    assert client.ask(codec.encode_publish(104, 1, b"refused", b"poison")) == []


# Order of replies.


def test_no_reply_overtakes_the_commit_of_an_earlier_publish(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"barrier")
    assert client.poll(subscription) is None
    with store.unwritable_messages():
        client.send(
            codec.encode_publish(101, 1, b"barrier", b"x"),
            codec.encode_publish(102, 1, b"", b""),
            codec.encode_ack(103, subscription),
            codec.encode_hello(104),
            codec.encode_subscribe(105, b"barrier", 1),
            codec.encode_poll(106, 999_999_999),
            codec.encode_poll(107, subscription),
            codec.encode_ping(108),
        )
        store.wait_for_blocked("queues_publish_version")
        assert client.is_silent()
        assert store.states(store.queue_of(subscription)).total() == 0
    frames = [client.read()]
    while frames[-1].kind != PONG:
        frames.append(client.read())
    # The last POLL finds the message if the SUBSCRIBE before it has taken until now.
    assert [frame.cid for frame in frames if frame.kind != PUBLISH] == [102, 103, 104, 105, 108]


def test_pong_means_that_the_row_is_committed(client: Blip, store: Database) -> None:
    subscription = client.subscribe(b"committed")
    queue = store.queue_of(subscription)
    for n in range(50):
        client.publish(b"committed", b"%d" % n)
        assert store.states(queue).total() == n + 1


def test_pong_of_one_connection_does_not_wait_for_the_publishes_of_another(
    broker: Broker, client: Blip, store: Database
) -> None:
    client.subscribe(b"others")
    with Blip(broker.blipmq) as other, store.unwritable_messages():
        client.send(codec.encode_publish(5, 1, b"others", b"x"), codec.encode_ping(6))
        store.wait_for_blocked("queues_publish_version")
        assert other.ask(codec.encode_ping(7)) == [(PONG, 7, b"")]
        assert client.is_silent()
    assert client.read().kind == PONG


def test_a_delivery_is_never_sent_before_its_message_is_committed(
    broker: Broker, client: Blip, store: Database
) -> None:
    subscription = client.subscribe(b"uncommitted")
    with Blip(broker.blipmq) as consumer:
        assert consumer.poll(subscription) is None
        with store.unwritable_messages():
            client.send(codec.encode_publish(5, 1, b"uncommitted", b"x"))
            store.wait_for_blocked("queues_publish_version")
            assert consumer.poll(subscription) is None
        assert consumer.next(subscription).kind == PUBLISH
