"""Overhop against a running broker: jobs that came from elsewhere - Django, BlipMQ, SSPQ - and Overhop's at theirs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from django.db import transaction

from queues.api import InvalidMessage, publish
from tests.wire.broker import Blip, Broker, Database, Sspq, put
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec.names import Type

JSON, MSGPACK = "application/json", "application/msgpack"


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, "--sspq-also", "127.0.0.1:0=shared", "--sspq-queue", "shared") as running:
        yield running


def add_route(store: Database, source: str, target: str) -> None:
    store.execute("insert into queues_route (source, target) values (%s, %s)", source, target)


def delivered(worker: Peer, queue: str) -> Any:
    """The payload of the next job, the same in its record; it is done then."""
    sid = worker.subscribe(queue, 1)
    quest = worker.quest()
    payload = quest["job_payload"]
    assert worker.record(quest["jid"])["payload"] == payload
    worker.ask(Type.DONE, jid=quest["jid"])
    worker.ask(Type.UNSUBSCRIBE, sid=sid)
    return payload


# From Django.


@pytest.mark.parametrize(
    ("body", "content_type", "expected"),
    [
        (b'{"b": [1, true, null], "a": "\xc3\xbc"}', JSON, {"a": "ü", "b": [1, True, None]}),
        (b" 7 ", JSON, 7),
        (b'""', JSON, ""),
        (b'{"n": 1.5}', JSON, b'{"n": 1.5}'),
        (b"[1e3]", JSON, b"[1e3]"),
        (b"NaN", JSON, b"NaN"),
        (b"9223372036854775807", JSON, 2**63 - 1),
        (b"9223372036854775808", JSON, b"9223372036854775808"),
        (b'"\\ud800"', JSON, b'"\\ud800"'),
        (b"no json", JSON, b"no json"),
        (b"", JSON, b""),
        (b"\xff\xfe", JSON, b"\xff\xfe"),
        (b"[" * 1000 + b"]" * 1000, JSON, b"[" * 1000 + b"]" * 1000),
        (b"[" * 100_000, JSON, b"[" * 100_000),
        (msgpack.packb({"b": b"\xff", "a": [None, -1]}), MSGPACK, {"a": [None, -1], "b": b"\xff"}),
        (b"\xdc\x00\x01\xcd\x00\x07", MSGPACK, [7]),
        (b'{"a": 1}', None, b'{"a": 1}'),
        (msgpack.packb({"a": 1}), None, msgpack.packb({"a": 1})),
        (b"", None, b""),
    ],
)
def test_messages_of_django_are_a_value_or_bytes(
    worker: Peer, queue: str, django_alias: str, body: bytes, content_type: str | None, expected: Any
) -> None:
    publish(queue, body, content_type=content_type, using=django_alias)
    payload = delivered(worker, queue)
    assert (payload, type(payload)) == (expected, type(expected))


@pytest.mark.parametrize("body", [msgpack.packb(1.5), b"\xc1", b"", b"\x01\x02", msgpack.packb({1: 2}), b"\x91" * 100])
def test_msgpack_that_overhop_cannot_carry_is_refused_where_it_is_published(
    worker: Peer, queue: str, django_alias: str, body: bytes
) -> None:
    with pytest.raises(InvalidMessage):
        publish(queue, body, content_type=MSGPACK, using=django_alias)
    assert worker.stats(queue) == {}


def test_messages_of_django_come_with_the_commit(worker: Peer, queue: str, django_alias: str) -> None:
    worker.subscribe(queue, 9)
    with transaction.atomic(using=django_alias):
        publish(queue, b"1", content_type=JSON, using=django_alias)
        assert worker.no_quest()
    assert worker.quest()["job_payload"] == 1
    with transaction.atomic(using=django_alias):
        publish(queue, b"2", content_type=JSON, using=django_alias)
        transaction.set_rollback(True, using=django_alias)
    assert worker.no_quest()


def test_messages_of_django_have_their_options(worker: Peer, queue: str, django_alias: str) -> None:
    publish(queue, b"1", content_type=JSON, priority=-1, key="k", max_attempts=2, using=django_alias)
    publish(queue, b"2", content_type=JSON, using=django_alias)
    worker.subscribe(queue, 9)
    quests = worker.quests(2)
    assert [quest["job_payload"] for quest in quests] == [2, 1]
    assert [quest["max_attempts"] for quest in quests] == [5, 2]
    record = worker.record(quests[1]["jid"])
    assert (record["key"], record["priority"]) == ("k", -1)
    assert worker.enqueue(queue, 3, key="k") == quests[1]["jid"]


def test_django_and_overhop_share_a_queue_of_any_name(worker: Peer, store: Database, django_alias: str) -> None:
    name = "any: näme"
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff) values (%s, gen_random_uuid(), 5, '1 s')",
        name,
    )
    publish("queue:" + name, b"x", using=django_alias)
    jid = worker.enqueue(name, "y")
    assert worker.record(jid)["queue_name"] == name
    assert worker.do(name, 2) == [b"x", "y"]


def test_a_payload_too_large_for_an_envelope_becomes_a_dead_letter_and_the_others_go_on(
    worker: Peer, queue: str, django_alias: str
) -> None:
    publish(queue, b"x" * (9 << 20), using=django_alias)
    publish(queue, json.dumps("é" * 2_000_000, ensure_ascii=True).encode(), content_type=JSON, using=django_alias)
    publish(queue, b"fits", using=django_alias)
    worker.subscribe(queue, 9)
    assert worker.quest()["job_payload"] == "é" * 2_000_000
    assert worker.quest()["job_payload"] == b"fits"
    worker.wait_for_stats(queue, active=2, failed=1)


# From and to the other protocols.


def test_a_blipmq_topic_feeds_workers_through_a_route(
    broker: Broker, worker: Peer, store: Database, queue: str
) -> None:
    add_route(store, f"topic:{queue}", f"queue:{queue}")
    worker.subscribe(queue, 9)
    with Blip(broker.blipmq) as client:
        client.publish(queue.encode(), b"one", b"\xff\x00", b'{"json": 1}')
    assert [quest["job_payload"] for quest in worker.quests(3)] == [b"one", b"\xff\x00", b'{"json": 1}']


def test_an_sspq_queue_feeds_workers_and_workers_jobs_reach_sspq(broker: Broker, worker: Peer, store: Database) -> None:
    put(broker.sspq, b"from sspq")
    assert worker.do("shared", 1) == [b"from sspq"]
    store.wait_for_states(store.queue("shared"))
    worker.enqueue("shared", {"a": [1]})
    with Sspq(broker.sspq) as client:
        assert client.receive().payload == msgpack.packb({"a": [1]})
        client.confirm()
        client.hang_up()


def test_a_job_is_copied_along_a_route_and_only_its_own_queue_answers(
    broker: Broker, worker: Peer, store: Database, queue: str
) -> None:
    copy = make_queue(worker, store)
    add_route(store, f"queue:{queue}", f"queue:{copy}")
    add_route(store, f"queue:{queue}", f"topic:{queue}")
    with Blip(broker.blipmq) as client:
        subscription = client.subscribe(queue.encode())
        jid = worker.enqueue(queue, {"n": 1}, priority=2)
        assert jid.startswith(queue + ":")
        assert client.consume(subscription, 1) == [msgpack.packb({"n": 1})]
    assert worker.do(copy, 1) == [{"n": 1}]
    assert worker.do(queue, 1) == [{"n": 1}]
    assert worker.record(jid)["status"] == "completed"
