"""Messages that a consumer is given ahead of what it may have, as long as it works fast."""

from __future__ import annotations

from threading import Event

from kombu.entity import Queue

from queues.models import Queue as StoredQueue
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.queues.celery.transport.test_consuming import send
from tests.waiting import PATIENCE, wait_until

ORDERS = Queue("orders")


def work_until_given_ahead(connect: Connect, most: int = 2) -> Got:
    """A consumer that has acknowledged what it got at once until messages came ahead; it has `most` messages now."""
    connection = connect()
    producer = connection.Producer()
    producer.publish(0, routing_key="orders", declare=[ORDERS])
    with producer.batch():
        for n in range(1, 2000):
            producer.publish(n, routing_key="orders")
    got = Got(connection, [ORDERS], prefetch=most)
    count, ahead = 0, False
    while count < 1000 and not ahead:
        count += 1
        got.wait(count)[-1].ack()
        assert len(got.channel._unsettled) <= most
        ahead = count >= 200 and bool(got.channel._prefetched)  # it is taken back from a consumer that pauses now
    assert ahead
    got.wait(count + most)
    return got


def test_of_a_queue_that_is_recorded_no_message_is_given_ahead(connect: Connect, tables: Tables) -> None:
    """Its record says when a consumer got each message."""
    connection = connect()
    send(connection, 0)
    StoredQueue.objects.filter(name="orders").update(audited=True)
    for n in range(1, 400):
        send(connection, n)
    got = Got(connection, [ORDERS], prefetch=2)
    ahead = 0
    for count in range(1, 400):
        got.wait(count)[-1].ack()
        assert len(got.channel._unsettled) + len(got.channel._prefetched.items) <= 2
        ahead = max(ahead, got.channel._channel_consumer.ahead)
    assert ahead > 0  # another queue's messages would be


def leased(tables: Tables) -> int:
    return tables.held("orders")[1]


def test_a_consumer_that_works_fast_gets_every_message_once_in_order_and_no_more_at_a_time_than_it_may(
    connect: Connect,
) -> None:
    got = work_until_given_ahead(connect)
    while got.channel._prefetched:  # until what it was given ahead has been taken back
        assert got.nothing_more(0.01)
    for message in got.messages[-2:]:
        message.ack()
    for count in range(len(got.messages) + 1, 2001):
        got.wait(count)[-1].ack()
    assert got.bodies(2000) == list(range(2000))


def test_prefetched_messages_are_free_for_others_when_the_consumer_is_slow(
    connect: Connect, tables: Tables
) -> None:
    got = work_until_given_ahead(connect)
    wait_until(lambda: leased(tables) == 2, "only what the consumer has is leased")
    assert not got.channel._prefetched
    done = len(got.messages)
    for message in got.messages[-2:]:
        message.ack()
    assert [message.payload for message in got.wait(done + 2)[-2:]] == [done, done + 1]


def test_a_consumer_that_pauses_before_messages_came_ahead_is_given_none_when_they_come(
    connect: Connect, tables: Tables
) -> None:
    connection, other = connect(), connect()
    for n in range(4):
        send(connection, n)
    got = Got(connection, [ORDERS], prefetch=2)
    for message in got.wait(2):
        message.ack()
    got.wait(4)
    channel = got.channel._channel_consumer
    wait_until(lambda: channel._pace is None, "the looks that allow messages ahead, and none any more")
    assert channel.ahead == 0
    assert [consumer.credits for consumer in channel._consumers] == [0]
    for n in range(4, 8):
        send(other, n)
    assert Got(other, [ORDERS], prefetch=4).bodies(4) == [4, 5, 6, 7]


def test_prefetched_messages_are_free_for_others_when_the_consumer_is_cancelled(
    connect: Connect, tables: Tables
) -> None:
    got = work_until_given_ahead(connect)
    got.consumer.cancel()
    wait_until(lambda: leased(tables) == 2, "only what the consumer has is leased")
    assert not got.channel._prefetched


def test_prefetched_messages_are_free_for_others_when_the_channel_is_closed(
    connect: Connect, tables: Tables
) -> None:
    got = work_until_given_ahead(connect)
    got.channel.close()
    wait_until(lambda: leased(tables) == 0, "nothing is leased")


def test_messages_prefetched_during_a_channels_close_are_free_for_others_at_once(
    connect: Connect, tables: Tables
) -> None:
    connection, other = connect(), connect()
    for n in range(10):
        send(connection, n)
    got, staying = Got(connection, [ORDERS], prefetch=2), Got(other, [Queue("bills")])
    got.wait(2)
    thread, consumers, closing = got.channel._thread, got.channel._channel_consumer, Event()
    assert staying.channel._thread is thread

    def push_more() -> None:
        assert closing.wait(PATIENCE)
        consumers.set_prefetch(5)

    thread.call(push_more)
    got.channel.close()
    closing.set()
    wait_until(lambda: leased(tables) == 0, "nothing is leased")
    assert staying.channel._thread is thread
    assert not thread.ended
