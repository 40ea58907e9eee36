"""Notifications: what is read strictly, sent in parts, and obeyed without trust."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.clock import now
from queues.engine.cluster.notifications.channel import Announcer
from queues.engine.cluster.notifications.formats import (
    Changed,
    Dead,
    Disconnected,
    Gone,
    Instruction,
    InterestChange,
    Malformed,
    Purge,
    Ready,
    RemoteAck,
    Transient,
    Watched,
    parse,
    parse_instruction,
)
from queues.engine.consume.prefetch import Prefetch
from queues.engine.health import Health
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.queues.engine.faults import Faults

IDS = st.integers(0, (1 << 31) - 1)
BIGINTS = st.integers(1 - (1 << 63), (1 << 63) - 1)
SENDABLE = st.one_of(
    st.builds(Ready, st.dictionaries(IDS, BIGINTS, min_size=1, max_size=500), st.booleans()),
    st.builds(Dead, st.lists(IDS, min_size=1, max_size=2000).map(tuple)),
    st.builds(Gone, IDS),
    st.just(Watched()),
    st.builds(Transient, IDS, IDS, st.binary(max_size=5600)),
    st.builds(RemoteAck, IDS, st.lists(BIGINTS, min_size=1, max_size=1000).map(tuple), st.none() | BIGINTS),
    st.builds(Purge, IDS, st.text(max_size=300), BIGINTS),
    st.builds(Disconnected, IDS, st.lists(BIGINTS, min_size=1, max_size=1000).map(tuple)),
)
BIGGEST = (1 << 63) - 1
#: Payloads that any role may send.
STRANGE = [
    "", "1", "[]", "{}", '"ready"', "null", "[" * 7000, '{"a":' * 1500, '{"nothing":1}', '{"end":0}', '{"ready":5}',
    '{"ready":{"x":1}}', '{"ready":{"1":1.5}}', '{"ready":{"1":true}}', '{"ready":{"1":' + "9" * 4000 + "}}",
    '{"ready":{"' + "9" * 5000 + '":1}}', '{"ready":{"²":1}}', '{"ready":{"1":9223372036854775808}}',
    '{"dead":{"1":1}}',
    '{"dead":[1e400]}', '{"dead":[NaN]}', '{"queue":"1"}', '{"queue":[1]}', '{"key":{}}', '{"interest":null,"node":1}',
    '{"interest":[1]}', '{"interest":[-1],"node":1}', '{"gone":2147483648}', '{"gone":null}', '{"subscription":1.0}',
    '{"transient":1,"node":1,"body":5}', '{"transient":1,"node":1,"body":"%"}', '{"transient":1,"node":1,"body":"ü"}',
    '{"ack":1,"tags":5,"consumer":null}', '{"ack":1,"tags":["a"],"consumer":null}', '{"ack":1,"tags":[1]}',
    '{"ack":1,"tags":[1],"consumer":"x"}', '{"purge":1,"by":7}', '{"purge":null}', '{"mailbox":1,"connection":1}',
    '{"evicted":1,"connection":[]}', '{"disconnect":1,"node":1}', '{"disconnect":[1]}',
    '{"watched":5}', '{"watched":"everything"}', '{"periodic":"\\ud800"}', '{"\\ud800":1}',
]  # fmt: skip


def total(parts: list[Any], whole: Any) -> Any:
    """The message that was sent in these parts."""
    match whole:
        case Ready():
            [followed] = {part.followed for part in parts}
            return Ready({queue: first for part in parts for queue, first in part.queues.items()}, followed)
        case Dead():
            return Dead(tuple(queue for part in parts for queue in part.queues))
        case Disconnected():
            return Disconnected(whole.node, tuple(number for part in parts for number in part.connections))
        case RemoteAck():
            return RemoteAck(whole.queue, tuple(tag for part in parts for tag in part.tags), parts[0].consumer)
        case _:
            [only] = parts
            return only


@given(SENDABLE)
def test_a_sent_notification_fits_and_is_read_again(notification: Any) -> None:
    texts = list(notification.texts())
    assert all(len(text.encode()) < 8000 for text in texts)
    whole = replace(notification, by=notification.by[:200]) if isinstance(notification, Purge) else notification
    read = parse_instruction if isinstance(notification, Instruction) else parse
    assert total([read(text) for text in texts], notification) == whole


@pytest.mark.parametrize("text", STRANGE)
def test_an_invalid_notification_is_refused(text: str) -> None:
    for read in (parse, parse_instruction):
        with pytest.raises(Malformed):
            read(text)


def test_every_type_that_sql_sends_is_read() -> None:
    assert parse('{"interest" : [1, 2], "node" : 3}') == InterestChange((1, 2), 3, True)
    assert parse('{"disinterest" : [1], "node" : 3}') == InterestChange((1,), 3, False)
    for table in ("queue", "key", "route", "subscription", "periodic"):
        assert parse(json.dumps({table: 7})) == Changed(table, 7)


async def test_a_notification_that_any_role_can_send_does_not_stop_the_node(
    make_engine: MakeEngine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine()
    store.queue("jobs")
    node, consumer = engine.node, Consumer(await engine.queue("jobs"))
    caplog.clear()
    sendable = [text for text in STRANGE if len(text.encode()) < 8000]
    for text in sendable:
        store.rows("select pg_notify('fivewire', %s)", text)
    await store.until(lambda: engine.counts.notifications_ignored == len(sendable), "all were read")
    await Producer(engine).publish("queue:jobs", b"still here")
    assert await consumer.bodies(1) == [b"still here"]
    assert engine.node == node
    assert len([record for record in caplog.records if "notification" in record.message]) == 1


async def test_messages_that_follow_announced_ones_are_looked_for_when_their_time_is_over(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await make_engine()
    queue = store.queue("jobs")
    await engine.queue("jobs")
    looks: list[int] = []
    look = Prefetch.more_in_store

    def note(self: Prefetch, first_id: int) -> None:
        looks.append(first_id)
        look(self, first_id)

    monkeypatch.setattr(Prefetch, "more_in_store", note)
    for first, end in ((7, ""), (8, ', "followed": true'), (9, ', "followed": 1')):
        store.rows("select pg_notify('fivewire', %s)", f'{{"ready": {{"{queue}": {first}}}{end}}}')
    store.rows("select pg_notify('fivewire', %s)", next(Ready({queue: 10}, followed=True).texts()))
    await store.until(lambda: looks.count(10) == 2, "the second look for the last")
    assert sorted(looks) == [7, 8, 8, 9, 10, 10]


async def test_a_notification_whose_handling_fails_costs_only_itself(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine()

    node = engine.node
    heard: list[int] = []

    def fail_once() -> None:
        heard.append(5)
        if len(heard) == 1:
            raise RuntimeError("unforeseen")

    engine.on_periodic_change.append(fail_once)
    store.rows("""select pg_notify('fivewire', '{"periodic":1}')""")
    store.rows("""select pg_notify('fivewire', '{"periodic":5}')""")
    await store.until(lambda: heard == [5, 5], "the next one is obeyed")
    assert (engine.node, engine.counts.notifications_failed) == (node, 1)
    assert [record.levelno for record in caplog.records if "not obeyed" in record.message] == [logging.ERROR]


async def test_notifications_of_another_role_settle_remove_and_deliver_nothing(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    queue = store.queue("jobs")
    buffer = await engine.queue("jobs")
    taken = asyncio.create_task(Consumer(buffer).bodies(1, ack=False))
    await Producer(engine).publish("queue:jobs", b"0", b"1", b"2")
    assert await taken == [b"0"]
    await store.until(lambda: len(buffer.ready) == 2 and store.counts(queue) == (0, 3, 0, 0), "the rest in memory")
    subscription = await engine.subscriptions.create(b"news", 0, None)
    heard: list[int] = []
    engine.on_periodic_change.append(lambda: heard.append(5))
    made_up = [
        json.dumps({"purge": queue, "by": "stranger", "high": BIGGEST}),
        json.dumps({"ack": queue, "tags": list(buffer.unacked), "consumer": None}),
        json.dumps({"transient": subscription.buffer.id, "node": engine.node, "body": "eA=="}),
        json.dumps({"evicted": queue, "connection": 1}),
        json.dumps({"mailbox": queue, "connection": BIGGEST, "node": engine.node + 1}),
        json.dumps({"disconnect": [1], "node": engine.node}),
    ]
    with stranger(store) as role:
        for text in made_up:
            role.execute("select pg_notify('fivewire', %s)", (text,))
            for sql in ("select queues_instruct(array[%s], array[null::int])", "select %s from queues_instruction"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    role.execute(sql, (text,))
        role.execute("""select pg_notify('fivewire', '{"instructions":0}')""")
        role.execute("""select pg_notify('fivewire', '{"periodic":5}')""")
    await store.until(lambda: heard, "the last was heard")
    assert engine.counts.notifications_ignored == len(made_up)
    assert (len(buffer.unacked), len(buffer.ready), len(subscription.transient)) == (1, 2, 0)
    assert store.counts(queue) == (0, 3, 0, 0)


@contextmanager
def stranger(store: Store) -> Iterator[psycopg.Connection[Any]]:
    """A session of a role that may connect and no more."""
    with psycopg.connect(store.conninfo, autocommit=True) as connection:
        connection.execute("set role pg_monitor")
        yield connection


async def test_instructions_that_no_notification_told_of_are_carried_out(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.notifications.channel.UNTOLD", 0.1)
    engine = await make_engine()
    subscription = await engine.subscriptions.create(b"news", 0, None)
    said = [Transient(subscription.buffer.id, engine.node, b"%d" % n) for n in range(3)]
    sql = "insert into queues_instruction (node_id, text) values (%s, %s) returning id"
    for node in (engine.node, engine.node + 1):  # the other does not exist
        for transient in said:
            store.rows(sql, node, *transient.texts())
    await store.until(lambda: len(subscription.transient) == 3, "they are carried out")
    assert [body for _, body in subscription.transient] == [b"0", b"1", b"2"]
    assert {row["node_id"] for row in store.rows("select node_id from queues_instruction")} == {engine.node + 1}
    await make_engine()
    await store.until(lambda: not store.rows("select from queues_instruction"), "what was for the other is gone")


async def test_notifications_of_made_up_queues_and_nodes_take_no_memory(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine()
    queue = store.queue("jobs")
    buffer = await engine.queue("jobs")
    for text in (
        json.dumps({"interest": list(range(10**6, 10**6 + 700)), "node": 99}),
        json.dumps({"interest": [queue], "node": 99}),
        json.dumps({"ready": {str(n): n for n in range(10**6, 10**6 + 300)}}),
        json.dumps({"queue": 10**6}), json.dumps({"subscription": 10**6}), json.dumps({"gone": 10**6}),
        json.dumps({"ack": queue, "tags": [10**6], "consumer": 10**9}),
    ):  # fmt: skip
        store.rows("select pg_notify('fivewire', %s)", text)
    heard: list[int] = []
    engine.on_periodic_change.append(lambda: heard.append(5))
    store.rows("""select pg_notify('fivewire', '{"periodic":5}')""")
    await store.until(lambda: heard, "the last was heard")
    await store.until(lambda: not engine.connections.asked, "what was heard is compared with the tables")
    assert not set(engine.policies.served_by) - {queue}
    assert 99 not in engine.policies.served_by.get(queue, set())
    assert (set(engine.prefetched_queues.queues), set(engine.policies.by_id)) == ({queue}, {queue})
    assert not buffer.interest.shared


async def test_many_queues_that_go_cold_together_do_not_stop_the_node(make_engine: MakeEngine, store: Store) -> None:
    engine = await make_engine()
    queues = list(range(10**8, 10**8 + 3000))
    for name in ("add_interest", "drop_interest"):
        await engine.request(name, queues="{" + ",".join(map(str, queues)) + "}", node=engine.node)
    assert store.rows("select count(*) from queues_interest where queue_id >= %s", 10**8)[0]["count"] == 0


async def test_thousands_of_late_tags_do_not_stop_the_node(make_engine: MakeEngine, store: Store) -> None:
    engine, other = await make_engine(), await make_engine()
    subscription = await engine.subscriptions.create(b"topic", 1, None)
    queue = subscription.buffer.id
    there = await other.subscriptions.load(subscription.id)
    assert there is not None
    await other.request("add_interest", queues=f"{{{queue}}}", node=other.node)
    await engine.reread([queue])
    nodes = engine.node, other.node
    tags = [*range(1 << 62, (1 << 62) + 2000), 1 << 63, 1 << 70]
    assert await engine.subscriptions.ack_late(subscription, tags, None) == set()
    heard: list[int] = []
    other.on_periodic_change.append(lambda: heard.append(5))
    await store.until(lambda: not engine.announcer._other, "they are sent")
    store.rows("""select pg_notify('fivewire', '{"periodic":5}')""")
    await store.until(lambda: heard, "they were heard")
    assert (engine.node, other.node) == nodes
    assert other.counts.notifications_ignored == 0


async def test_a_publish_is_announced_to_a_node_whose_interest_was_not_heard_of(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)  # by the announcement, not by the slow look
    store.queue("jobs")
    publishing, consuming = await make_engine(), await make_engine()
    monkeypatch.setattr(publishing._parts.notifications, "hear", lambda text: None)  # it is deaf
    buffer = await consuming.queue("jobs")
    producer = Producer(publishing)
    await producer.publish("queue:jobs", b"0")  # it knows the queue, and of no other node that serves it
    assert await Consumer(buffer).bodies(1) == [b"0"]
    for body in (b"1", b"2"):
        taken = asyncio.create_task(Consumer(buffer).bodies(1))
        await store.until(
            lambda: buffer.interest.demand and not buffer.backlog.unclaimed, "it has looked in vain"
        )
        await producer.publish("queue:jobs", body)
        assert await taken == [body]


def test_a_flood_of_single_notifications_does_not_fill_the_memory() -> None:
    announcer = Announcer(Health())
    sent = sum(announcer.say(Transient(1, 1, bytes(5600))) for _ in range(10_000))
    assert sent == (4 << 20) // (5600 + 64)


async def test_a_consumer_on_another_node_is_notified_though_the_first_look_for_serving_nodes_failed(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)  # by the announcement, not by the slow look
    store.queue("jobs")
    publishing, consuming, faults = await make_engine(), await make_engine(), Faults(monkeypatch)
    monkeypatch.setattr(publishing._parts.notifications, "hear", lambda text: None)  # it is deaf
    await Producer(publishing).publish("queue:jobs", b"0")  # it knows the queue, and of no other node that serves it
    buffer = await consuming.queue("jobs")
    assert await Consumer(buffer).bodies(1) == [b"0"]
    taken = asyncio.create_task(Consumer(buffer).bodies(1))
    await store.until(
        lambda: buffer.interest.demand and not buffer.backlog.unclaimed, "it has looked in vain"
    )
    faults.put("served_elsewhere", "40P01")
    await Producer(publishing).publish("queue:jobs", b"1")
    assert await taken == [b"1"]
    assert (faults.hits["served_elsewhere"], publishing.counts.reconnects) == (1, 0)


async def test_a_late_ack_reaches_the_node_that_serves_the_subscription_though_it_could_not_be_sent_at_first(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, serving, faults = await make_engine(), await make_engine(), Faults(monkeypatch)
    made = await serving.subscriptions.create(b"news", 1, None)
    delivery = asyncio.create_task(Consumer(made.buffer).next())
    await Producer(other).publish("topic:news", b"kept")
    taken = await delivery
    assert taken is not None
    there = await other.subscriptions.load(made.id)
    assert there is not None
    faults.put("instruct", "53100")
    assert await other.subscriptions.ack_late(there, [taken[0]], None) == set()
    await store.until(lambda: store.counts(made.buffer.id) == (0, 0, 0, 0), "it is settled")
    assert faults.hits["instruct"] == 1


async def test_an_ack_reaches_the_node_that_delivered_though_it_was_not_heard_that_this_serves_the_queue(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, serving = await make_engine(), await make_engine()
    monkeypatch.setattr(other._parts.notifications, "hear", lambda text: None)  # as for a moment after it was said
    made = await serving.subscriptions.create(b"news", 1, None)
    there = await other.subscriptions.load(made.id)
    assert there is not None
    await Producer(other).publish("topic:news", b"kept")
    taken = await Consumer(made.buffer).next()
    assert taken is not None
    assert not there.buffer.interest.shared
    assert await other.subscriptions.ack_late(there, [taken[0]], None) == set()
    await store.until(lambda: store.counts(made.buffer.id) == (0, 0, 0, 0), "it is settled")


async def test_an_ack_reaches_the_node_that_delivered_though_no_consumer_has_come_to_it_for_long(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.consume.interest.COLD", 0.2)
    monkeypatch.setattr("queues.engine.cluster.tidying.COLD", 3600.0)
    other, serving = await make_engine(), await make_engine()
    made = await serving.subscriptions.create(b"news", 1, None)
    await Producer(other).publish("topic:news", b"kept", b"returned")
    taken = await Consumer(made.buffer).next()
    assert taken is not None
    await store.until(lambda: store.counts(made.buffer.id) == (1, 1, 0, 0), "what was taken ahead goes back")
    buffer = made.buffer
    await store.until(lambda: buffer.interest._next_look > now() + 1000, "it was looked at")
    there = await other.subscriptions.load(made.id)
    assert there is not None
    assert await other.subscriptions.ack_late(there, [taken[0]], None) == set()
    await store.until(lambda: store.counts(made.buffer.id) == (1, 0, 0, 0), "it is settled")
    buffer.interest.tidy_soon()
    await store.until(lambda: not buffer.interest.known, "the queue is served here no longer")


async def test_a_qos_0_message_and_a_late_ack_reach_the_node_that_serves_the_subscription(
    make_engine: MakeEngine, store: Store
) -> None:
    other, serving = await make_engine(), await make_engine()
    made = await serving.subscriptions.create(b"news", 1, None)
    delivery = asyncio.create_task(Consumer(made.buffer).next())
    await store.until(lambda: store.rows("select from queues_interest"), "it is known to be served")
    await Producer(other).publish("topic:news", b"kept")
    taken = await delivery
    assert taken is not None
    there = await other.subscriptions.load(made.id)
    assert there is not None
    other.subscriptions.deliver_transient(made.buffer.id, [b"0", b"1"])
    assert await other.subscriptions.ack_late(there, [taken[0]], None) == set()
    await store.until(lambda: len(made.transient) == 2, "they are passed on")
    assert [body for _, body in made.transient] == [b"0", b"1"]
    await store.until(lambda: store.counts(made.buffer.id) == (0, 0, 0, 0), "it is settled")
