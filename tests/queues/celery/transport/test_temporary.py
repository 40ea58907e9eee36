"""Queues for replies, events and remote control: taken from without an engine, and gone with those who use them."""

from __future__ import annotations

import select
import warnings
from typing import Any

import pytest
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.pidbox import Mailbox

from queues.celery.transport import direct, temporary
from queues.celery.transport.store_connection import StoreConnection
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.tables import LOCKS
from tests.waiting import PATIENCE, wait_until

FAN = Exchange("fan", "fanout", durable=False, delivery_mode="transient")
REPLIES = Queue("replies", FAN, auto_delete=True)


def test_every_bound_queue_gets_a_copy_at_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queues.celery.transport.transport.POLL", 3600.0)  # and not at the next poll
    first = Got(connect(), [Queue("one", FAN, auto_delete=True)], no_ack=True)
    second = Got(connect(), [Queue("two", FAN, auto_delete=True)], no_ack=True)
    assert first.nothing_more(0.1)
    assert second.nothing_more(0.1)
    connect().Producer().publish("all", exchange=FAN, declare=[FAN])
    assert (first.bodies(1), second.bodies(1)) == (["all"], ["all"])


def test_a_process_that_only_waits_for_replies_runs_no_engine(connect: Connect, tables: Tables) -> None:
    got = Got(connect(), [REPLIES], no_ack=True)
    connect().Producer().publish("reply", routing_key="replies")
    assert got.bodies(1) == ["reply"]
    assert tables.rows("select * from queues_node") == []
    assert tables.held("replies") == (0, 0, 0, 0)


def test_many_replies_come_in_order(connect: Connect) -> None:
    got = Got(connect(), [REPLIES], no_ack=True)
    producer = connect().Producer()
    with producer.batch():
        for number in range(350):
            producer.publish(number, routing_key="replies")
    assert got.bodies(350) == list(range(350))


def packed(tables: Tables, queue: str, *bodies: str) -> None:
    """Store messages as a publisher of another protocol does, together."""
    tables.rows(
        "with s as (insert into queues_segment (first, queue_id, count, bodies)"
        " select nextval('queues_message_id'), id, cardinality(bodies), bodies"
        " from queues_queue, (select array(select convert_to(b, 'UTF8') from unnest(%s::text[]) b) as bodies) as given"
        " where name = %s returning queue_id, count)"
        " insert into queues_queuetally (queue_id, ready, published) select queue_id, count, count from s returning 1",
        list(bodies), queue,
    )  # fmt: skip


def test_messages_that_are_stored_together_come_in_order_among_others(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "MAX_TAKEN", 3)
    connection = connect(foreign_queues=["replies"])
    got, producer = Got(connection, [REPLIES], no_ack=True), connect().Producer()
    for number in range(4):
        producer.publish(f"{number}", routing_key="replies")
    packed(tables, "replies", "4", "5", "6", "7", "8")
    packed(tables, "replies", "9", "10")
    producer.publish("11", routing_key="replies")
    assert [message.body.decode().strip('"') for message in got.wait(12)] == [str(number) for number in range(12)]
    assert tables.held("replies") == (0, 0, 0, 0)


def test_purging_a_queue_takes_what_is_stored_together(connect: Connect, tables: Tables) -> None:
    channel = connect().channel()
    Queue("kept", FAN)(channel).declare()
    packed(tables, "kept", "1", "2", "3")
    assert channel.queue_purge("kept") == 3
    assert tables.held("kept") == (0, 0, 0, 0)
    assert [row["outcome"] for row in tables.archived("kept")] == [2, 2, 2]
    assert tables.rows("select from queues_segment") == []


def test_a_broadcast_may_be_acknowledged(connect: Connect, tables: Tables) -> None:
    got = Got(connect(), [REPLIES])
    connect().Producer().publish("news", exchange=FAN, declare=[FAN])
    [message] = got.wait(1)
    assert tables.held("replies") == (0, 1, 0, 0)
    message.ack()
    wait_until(lambda: tables.held("replies") == (0, 0, 0, 0), "it is settled")


def test_a_queue_goes_with_its_last_consumer(connect: Connect, tables: Tables) -> None:
    first, second = Got(connect(), [REPLIES], no_ack=True), Got(connect(), [REPLIES], no_ack=True)
    connect().Producer().publish("body", routing_key="replies")
    first.consumer.cancel()
    assert "replies" in tables.queues()
    assert second.bodies(1) == ["body"]
    second.consumer.cancel()
    assert tables.queues() == []
    assert tables.rows("select * from queues_kombubinding") == []
    assert tables.rows("select * from queues_queuecount") == []


def test_messages_left_in_a_temporary_queue_go_with_it(connect: Connect, tables: Tables) -> None:
    connection = connect()
    got = Got(connection, [REPLIES], no_ack=True)
    connect().Producer().publish("late", routing_key="replies")
    tables.rows(
        "insert into queues_segment (first, queue_id, count, bodies)"
        " select nextval('queues_message_id'), id, 2, array['a', 'b']::bytea[] from queues_queue where name = 'replies'"
        " returning first"
    )
    got.consumer.cancel()
    assert tables.queues() == []
    assert tables.rows("select * from queues_openmessage") == []


def test_the_queue_of_a_consumer_that_died_goes_after_a_while(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(temporary, "TIMEOUT", 0.2)
    dying = connect()
    Got(dying, [REPLIES], no_ack=True)
    kept = Got(connect(), [Queue("kept", FAN, auto_delete=True)], no_ack=True)
    tables.rows("select pg_terminate_backend(%s)", dying.transport.database._connection.info.backend_pid)
    sweeper = connect().channel()

    def gone() -> bool:
        temporary.sweep(sweeper.connection.database)
        return "replies" not in tables.queues()

    wait_until(gone, "the dead one's queue is gone")
    assert tables.queues() == ["kept"]
    assert kept.nothing_more(0.01)


@pytest.fixture
def abandoned(connect: Connect, tables: Tables) -> int:
    """The id of a queue whose consumer died long ago."""
    dying = connect()
    Got(dying, [REPLIES], no_ack=True)
    tables.rows("select pg_terminate_backend(%s)", dying.transport.database._connection.info.backend_pid)
    wait_until(lambda: not temporary_queue_is_held(tables), "its session is gone")
    temporary.sweep(connect().channel().connection.database)
    [row] = tables.rows("update queues_temporaryqueue set unused_since = now() - interval '1 day' returning queue_id")
    return int(row["queue_id"])


def test_a_worker_that_comes_back_long_after_it_was_killed_uses_its_queue(
    connect: Connect, tables: Tables, abandoned: int
) -> None:
    sweeper = connect().channel().connection.database
    assert sweeper.query("sweep", lock_class=temporary.LOCK_CLASS) == [([abandoned],)]
    REPLIES(connect().channel()).declare()
    sweeper.query("drop_unused", lock_class=temporary.LOCK_CLASS, queues=[abandoned])
    assert [row["id"] for row in tables.rows("select id from queues_queue")] == [abandoned]
    again = Got(connect(), [REPLIES], no_ack=True)
    connect().Producer().publish("reply", routing_key="replies")
    assert again.bodies(1) == ["reply"]


def test_a_queue_that_goes_while_it_is_declared_is_made_again(
    connect: Connect, tables: Tables, abandoned: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drop = {"lock_class": temporary.LOCK_CLASS, "queues": [abandoned]}
    monkeypatch.setattr(temporary, "sweep", lambda database: database.query("drop", **drop))
    again = Got(connect(), [REPLIES], no_ack=True)
    connect().Producer().publish("reply", routing_key="replies")
    assert again.bodies(1) == ["reply"]
    assert [row["id"] for row in tables.rows("select id from queues_queue")] != [abandoned]


def temporary_queue_is_held(tables: Tables) -> bool:
    return bool(tables.rows(f"{LOCKS} and classid = %s::oid", temporary.LOCK_CLASS))


def test_a_queue_waits_for_its_first_consumer_as_long_as_it_says(connect: Connect, tables: Tables) -> None:
    channel = connect().channel()
    Queue("short", expires=60)(channel).declare()
    Queue("long", auto_delete=True)(channel).declare()
    temporary.sweep(channel.connection.database)
    assert tables.queues() == ["long", "short"]
    tables.rows("update queues_temporaryqueue set unused_since = unused_since - interval '1 hour' returning queue_id")
    temporary.sweep(channel.connection.database)
    assert tables.queues() == ["long"]


def test_consuming_from_a_queue_that_is_gone_is_refused(connect: Connect) -> None:
    connection = connect()
    with pytest.raises(ChannelError, match="no queue 'replies'"):
        connection.channel().basic_consume("replies", True, print, "tag")


def test_messages_that_no_notification_told_of_come_too(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.celery.transport.transport.POLL", 0.2)
    got = Got(connect(), [REPLIES], no_ack=True)
    assert got.nothing_more(0.05)
    tables.rows(
        "insert into queues_message (id, queue_id, state, content, payload)"
        " select nextval('queues_message_id'), id, 0, 4, '7' from queues_queue where name = 'replies' returning id"
    )
    assert got.bodies(1) == [7]


def test_remote_control_reaches_every_node_and_brings_their_answers(connect: Connect, tables: Tables) -> None:
    serving, asking = connect(), connect()
    mailbox = Mailbox("test", type="fanout")
    nodes = [mailbox(serving).Node(name, channel=serving.channel()) for name in ("left", "right")]
    for node in nodes:
        node.handler(ping)
        node.listen()
    asked = mailbox(asking)
    asked._publish("ping", {}, reply_ticket="t", channel=asking.default_channel)
    for _ in nodes:
        serving.drain_events(timeout=PATIENCE)
    replies = asked._collect("t", limit=2, timeout=PATIENCE, channel=asking.default_channel)
    assert sorted(name for reply in replies for name in reply) == ["left", "right"]
    assert not [name for name in tables.queues() if "reply" in name]


def ping(state: object) -> str:
    return "pong"


def test_two_nodes_of_one_name_are_told_of(connect: Connect) -> None:
    mailbox = Mailbox("test", type="fanout")
    for connection in (connect(), connect()):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            mailbox(connection).Node("same", channel=connection.channel()).listen()
    assert "already using this process mailbox" in str(told[-1].message)


def test_an_answer_that_comes_while_others_are_taken_is_taken_at_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.celery.transport.transport.POLL", 3600.0)
    got = Got(connect(), [REPLIES], no_ack=True)
    producer, query = connect().Producer(), StoreConnection.query

    def and_one_more(database: StoreConnection, name: str, /, **parameters: Any) -> Any:
        rows = query(database, name, **parameters)
        if name == "take" and rows:
            monkeypatch.setattr(StoreConnection, "query", query)
            producer.publish("second", routing_key="replies")  # behind what `take` has seen,
            wait_until(lambda: select.select([database], [], [], 0)[0], "the news are here")
            database.hear()  # and heard of before it returns, as its own reading of notifications does
        return rows

    assert got.nothing_more(0.2)
    monkeypatch.setattr(StoreConnection, "query", and_one_more)
    producer.publish("first", routing_key="replies")
    assert got.bodies(2) == ["first", "second"]
