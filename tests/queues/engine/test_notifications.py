"""Notifications: what is read strictly, sent in parts, and obeyed without trust."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.engine.control import Announcer
from queues.engine.notifications import (
    Ack,
    Changed,
    Dead,
    Gone,
    Interest,
    Malformed,
    Purge,
    Ready,
    Transient,
    parse,
)
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store

IDS = st.integers(0, (1 << 31) - 1)
BIGINTS = st.integers(1 - (1 << 63), (1 << 63) - 1)
SENDABLE = st.one_of(
    st.builds(Ready, st.dictionaries(IDS, BIGINTS, min_size=1, max_size=500)),
    st.builds(Dead, st.lists(IDS, min_size=1, max_size=2000).map(tuple)),
    st.builds(Gone, IDS),
    st.builds(Transient, IDS, IDS, st.binary(max_size=5600)),
    st.builds(Ack, IDS, st.lists(BIGINTS, min_size=1, max_size=1000).map(tuple), st.none() | BIGINTS),
    st.builds(Purge, IDS, st.text(max_size=300), BIGINTS),
)
#: What any role may say.
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
    '{"evicted":1,"connection":[]}', '{"periodic":"\\ud800"}', '{"\\ud800":1}',
]  # fmt: skip


def total(parts: list[Any], whole: Any) -> Any:
    """What was sent in parts, put together."""
    match whole:
        case Ready():
            return Ready({queue: first for part in parts for queue, first in part.queues.items()})
        case Dead():
            return Dead(tuple(queue for part in parts for queue in part.queues))
        case Ack():
            return Ack(whole.queue, tuple(tag for part in parts for tag in part.tags), parts[0].consumer)
        case _:
            [only] = parts
            return only


@given(SENDABLE)
def test_what_is_sent_fits_and_is_read_again(notification: Any) -> None:
    texts = list(notification.texts())
    assert all(len(text.encode()) < 8000 for text in texts)
    whole = replace(notification, by=notification.by[:200]) if isinstance(notification, Purge) else notification
    assert total([parse(text) for text in texts], notification) == whole


@pytest.mark.parametrize("text", STRANGE)
def test_what_is_no_notification_is_refused(text: str) -> None:
    with pytest.raises(Malformed):
        parse(text)


def test_every_type_that_sql_sends_is_read() -> None:
    assert parse('{"interest" : [1, 2], "node" : 3}') == Interest((1, 2), 3, True)
    assert parse('{"disinterest" : [1], "node" : 3}') == Interest((1,), 3, False)
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


async def test_a_notification_whose_handling_fails_costs_only_itself(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine()

    def fail(*_: Any) -> None:
        raise RuntimeError("unforeseen")

    engine.on_periodic_change.append(fail)
    node = engine.node
    heard: list[int] = []
    engine.on_key_change.append(heard.append)
    store.rows("""select pg_notify('fivewire', '{"periodic":1}')""")
    store.rows("""select pg_notify('fivewire', '{"key":5}')""")
    await store.until(lambda: heard == [5], "the next one is obeyed")
    assert (engine.node, engine.counts.notifications_failed) == (node, 1)
    assert [record.levelno for record in caplog.records if "not obeyed" in record.message] == [logging.ERROR]


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
    engine.on_key_change.append(heard.append)
    store.rows("""select pg_notify('fivewire', '{"key":5}')""")
    await store.until(lambda: heard, "the last was heard")
    await store.until(lambda: not engine._asked, "what was heard is compared with the tables")
    assert not set(engine.topology.interest) - {queue}
    assert 99 not in engine.topology.interest.get(queue, set())
    assert (set(engine.buffers), set(engine.topology.policies), buffer.shared) == ({queue}, {queue}, False)


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
    other.on_key_change.append(heard.append)
    await store.until(lambda: not engine.announcer._other, "they are sent")
    store.rows("""select pg_notify('fivewire', '{"key":5}')""")
    await store.until(lambda: heard, "they were heard")
    assert (engine.node, other.node) == nodes
    assert other.counts.notifications_ignored == 0


async def test_a_publish_is_announced_to_a_node_whose_interest_was_not_heard_of(
    make_engine: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.maintenance.UNSEEN", 3600.0)  # by the announcement, not by the slow look
    store.queue("jobs")
    publishing, consuming = await make_engine(), await make_engine()
    monkeypatch.setattr(publishing._listener, "hear", lambda text: None)  # it is deaf
    buffer = await consuming.queue("jobs")
    producer = Producer(publishing)
    await producer.publish("queue:jobs", b"0")  # it knows the queue, and of no other node that serves it
    assert await Consumer(buffer).bodies(1) == [b"0"]
    for body in (b"1", b"2"):
        taken = asyncio.create_task(Consumer(buffer).bodies(1))
        await store.until(lambda: buffer.demand and not (buffer.backlog or buffer.claiming), "it has looked in vain")
        await producer.publish("queue:jobs", body)
        assert await taken == [body]


def test_a_flood_of_single_notifications_does_not_fill_the_memory() -> None:
    announcer = Announcer()
    sent = sum(announcer.say(Transient(1, 1, bytes(5600))) for _ in range(10_000))
    assert sent == (4 << 20) // (5600 + 64)
