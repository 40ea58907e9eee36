"""Consumers in the event loop of a worker, and messages that wait for a place."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

import pytest
from kombu.asynchronous import Hub

from queues.celery.transport import channel
from queues.engine.api import Deliveries
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.queues.celery.transport.test_consuming import BILLS, ORDERS, send
from tests.waiting import wait_until


def full(connect: Connect, count: int) -> Got:
    """A consumer that may have one message and has it; so many more wait for their place."""
    connection = connect()
    got = Got(connection, [ORDERS], prefetch=1)
    send(connection, 0)
    got.wait(1)
    consumer, thread = got.channel._channel_consumer, got.channel._thread

    def allow() -> None:
        consumer.ahead = count
        consumer._grant()

    send(connection, *range(1, count + 1))
    thread.call(allow)
    wait_until(lambda: len(got.channel._prefetched.items) == count, "the others are ahead")
    assert len(got.messages) == 1
    return got


def is_signalled(got: Got) -> bool:
    return bool(select.select([got.connection.transport.inbox], [], [], 0)[0])


def test_messages_that_come_for_a_consumer_without_a_free_place_do_not_wake_it(connect: Connect) -> None:
    got = full(connect, 3)
    assert got.nothing_more(0.05)  # until the signal of the first message is read
    send(got.connection, 4)
    got.channel._thread.call(got.channel._channel_consumer.set_prefetch, 2)
    wait_until(lambda: len(got.channel._prefetched.items) == 4, "one more has come")
    assert not is_signalled(got)


def test_a_consumer_that_may_have_more_gets_what_has_waited(connect: Connect) -> None:
    got = full(connect, 3)
    assert got.nothing_more(0.05)
    got.channel.basic_qos(0, 3, False)
    assert got.bodies(3) == [0, 1, 2]


def test_a_message_that_came_while_another_was_got_is_delivered(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is got takes no place, but for a moment it looks so."""
    connection = connect()
    got = Got(connection, [ORDERS], prefetch=1)
    send(connection, "got", queue=BILLS)
    make = got.channel._message

    def make_and_wait(*given: Any) -> Any:
        message = make(*given)
        send(connection, "pushed")
        wait_until(lambda: bool(got.channel._prefetched), "a message has come")
        return message

    with monkeypatch.context() as slow:
        slow.setattr(got.channel, "_message", make_and_wait)
        assert got.channel.basic_get("bills").payload == "got"
    assert got.bodies(1) == ["pushed"]


def test_in_the_event_loop_a_place_is_filled_before_the_loop_waits(connect: Connect) -> None:
    got = full(connect, 3)
    assert got.nothing_more(0.05)
    hub = Hub()
    transport = got.connection.transport
    transport.register_with_event_loop(transport, hub)
    got.messages[0].ack()
    assert not is_signalled(got)
    assert len(got.messages) == 1  # the consumer's callback is not called within the acknowledgement
    hub.fire_timers()  # what the loop does between callbacks, such as acknowledgements, and its wait
    assert [message.payload for message in got.messages] == [0, 1]


def test_in_the_event_loop_many_messages_leave_others_their_turn(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.celery.transport.transport.TURN", 2)
    monkeypatch.setattr("queues.celery.transport.transport.REST", 0.05)
    got = full(connect, 5)
    assert got.nothing_more(0.05)
    hub = Hub()
    transport = got.connection.transport
    transport.register_with_event_loop(transport, hub)
    got.channel.basic_qos(0, 10, False)
    turns: list[int] = []

    def all_have_come() -> bool:
        hub.fire_timers(max_timers=1)
        turns.append(len(got.messages))
        return turns[-1] == 6

    wait_until(all_have_come, "they come in several turns")
    assert sorted(set(turns)) == [3, 5, 6]


def test_acknowledgements_are_settled_together_and_in_order(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    send(connection, *range(6))
    got = Got(connection, [ORDERS])
    got.wait(6)
    settled: list[object] = []
    acknowledge, reject = Deliveries.ack_many, channel.REJECT

    def note_acknowledged(self: Deliveries, tags: Sequence[int], consumer: int | None = None) -> list[int]:
        settled.append(len(tags))
        return acknowledge(self, tags, consumer)

    def note_dead(deliveries: Deliveries, tag: int) -> None:
        settled.append("dead")
        reject(deliveries, tag)

    monkeypatch.setattr(Deliveries, "ack_many", note_acknowledged)
    monkeypatch.setattr(channel, "REJECT", note_dead)

    def settle_all() -> None:
        for message in (got.messages[n] for n in (2, 0, 1)):
            message.ack()
        got.messages[3].reject()
        for message in got.messages[4:]:
            message.ack()

    got.channel._thread.call(settle_all)  # in the loop, so that nothing is settled in between
    wait_until(lambda: len(settled) == 3, "all are settled")
    assert settled == [3, "dead", 2]
    wait_until(lambda: tables.held("orders") == (0, 0, 0, 1), "the store knows")
