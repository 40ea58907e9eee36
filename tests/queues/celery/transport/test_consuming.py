"""Messages that are acknowledged: by a consumer, through the engine of its process."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
import pytest
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.exceptions import ChannelError

from queues.api import publish
from queues.celery.consumers import engine_thread
from queues.celery.transport.errors import DatabaseUnavailable
from queues.engine.consume.fetcher import Fetcher
from queues.models import Queue as StoredQueue
from queues.models import Route
from queues.operations.route_traffic import read_traffic
from tests.queues.celery.transport.conftest import Connect
from tests.queues.celery.transport.tables import Got, Tables
from tests.waiting import PATIENCE, wait_until

ORDERS, BILLS = Queue("orders"), Queue("bills")
TASK = {"task": "add", "id": "8c6a5c1e-0000-4000-8000-000000000001"}


def send(connection: Connection, *bodies: object, queue: Queue = ORDERS, **properties: Any) -> None:
    producer = connection.Producer()
    for body in bodies:
        producer.publish(body, routing_key=queue.name, declare=[queue], **properties)


def test_an_acknowledged_message_is_finished(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, {"n": 1})
    [message] = Got(connection, [ORDERS]).wait(1)
    assert message.payload == {"n": 1}
    assert tables.held("orders") == (0, 1, 0, 0)
    message.ack()
    [archived] = wait_until(lambda: tables.archived("orders"), "it is in the archive")
    assert archived["outcome"] == 0
    assert tables.messages("orders") == []


def test_messages_come_in_order_and_each_once(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, *range(200))
    got = Got(connection, [ORDERS], prefetch=10)
    for count in range(1, 201):
        got.wait(count)[-1].ack()
    assert got.bodies(200) == list(range(200))
    wait_until(lambda: tables.held("orders") == (0, 0, 0, 0), "all are acknowledged")


def test_a_waiting_consumer_gets_what_another_process_publishes_at_once(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.cluster.tidying.UNSEEN", 3600.0)  # and not at the next poll
    consuming, publishing = connect(), connect()
    got = Got(consuming, [ORDERS])
    assert got.nothing_more(0.1)
    send(publishing, "now")
    assert got.bodies(1) == ["now"]


def test_no_more_come_than_the_prefetch_count_over_all_queues(connect: Connect) -> None:
    connection = connect()
    send(connection, *range(10))
    send(connection, *range(10), queue=BILLS)
    got = Got(connection, [ORDERS, BILLS], prefetch=3)
    got.wait(3)
    assert got.nothing_more()
    got.messages[0].ack()
    got.wait(4)
    assert got.nothing_more()
    got.channel.basic_qos(0, 8, False)
    got.wait(9)
    assert got.nothing_more()


def test_both_queues_of_a_consumer_get_their_turns(connect: Connect) -> None:
    connection = connect()
    send(connection, *["order"] * 20)
    send(connection, *["bill"] * 20, queue=BILLS)
    got = Got(connection, [ORDERS, BILLS], prefetch=4)
    for count in range(1, 21):
        got.wait(count)[-1].ack()
    assert set(got.bodies(20)) == {"order", "bill"}


def test_higher_priorities_come_first(connect: Connect) -> None:
    connection = connect()
    for priority in (0, 3, 9, 3):
        send(connection, priority, priority=priority)
    assert Got(connection, [ORDERS]).bodies(4) == [9, 3, 3, 0]


def test_a_requeued_message_comes_again_and_says_so(connect: Connect) -> None:
    connection = connect()
    send(connection, 1, 2)
    got = Got(connection, [ORDERS], prefetch=1)
    [first] = got.wait(1)
    assert not first.delivery_info["redelivered"]
    first.requeue()
    got.wait(2)[-1].ack()
    again = got.wait(3)[-1]
    assert got.bodies(3) == [1, 2, 1]
    assert again.delivery_info["redelivered"]


def test_a_rejected_message_is_a_dead_letter(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, 1)
    Got(connection, [ORDERS]).wait(1)[0].reject()
    wait_until(lambda: tables.held("orders") == (0, 0, 0, 1), "it is a dead letter")
    assert tables.messages("orders")[0]["error"] == "rejected by the consumer"


def test_a_consumer_that_leaves_gives_back_what_it_has_in_its_order(connect: Connect) -> None:
    leaving, staying = connect(), connect()
    send(leaving, 1, 2, 3)
    Got(leaving, [ORDERS]).wait(3)
    leaving.release()
    got = Got(staying, [ORDERS])
    assert got.bodies(3) == [1, 2, 3]
    assert not got.messages[0].delivery_info["redelivered"]


def test_a_consumer_that_recovers_gets_its_messages_again(connect: Connect) -> None:
    connection = connect()
    send(connection, 1)
    got = Got(connection, [ORDERS])
    got.wait(1)
    got.channel.basic_recover(requeue=True)
    assert got.bodies(2) == [1, 1]


def test_a_task_with_an_eta_waits_in_the_store(connect: Connect, tables: Tables) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    eta = datetime.now(UTC) + timedelta(seconds=5)
    send(connection, "later", headers=TASK | {"eta": eta.isoformat()})
    assert tables.held("orders") == (0, 0, 1, 0)
    [message] = got.wait(1)
    assert datetime.now(UTC) >= eta
    assert message.headers["eta"] == eta.isoformat()


def test_an_expired_message_does_not_come(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, "old", expiration=0.001)
    send(connection, "new")
    got = Got(connection, [ORDERS])
    assert got.bodies(1) == ["new"]
    wait_until(lambda: [row["outcome"] for row in tables.archived("orders")] == [1], "it is archived as expired")


def test_a_task_that_is_sent_again_while_it_is_under_way_is_stored_twice(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, 1, 2, headers=TASK)
    assert [row["key"] for row in tables.messages("orders")] == [TASK["id"], None]
    assert Got(connection, [ORDERS]).bodies(2) == [1, 2]


def test_a_message_can_be_fetched_without_a_consumer(connect: Connect, tables: Tables) -> None:
    connection = connect()
    channel = connection.channel()
    queue = ORDERS(channel)
    queue.declare()
    assert queue.get() is None
    send(connection, 1, 2)
    message = wait_until(queue.get, "there is a message")
    assert message.payload == 1
    message.ack()
    assert queue.get(no_ack=True).payload == 2
    wait_until(lambda: tables.held("orders") == (0, 0, 0, 0), "both are finished")
    assert queue.get() is None


def test_a_consumer_that_acknowledges_nothing_loses_nothing_it_was_not_given(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, 1, 2)
    assert Got(connection, [ORDERS], no_ack=True).bodies(2) == [1, 2]
    wait_until(lambda: len(tables.archived("orders")) == 2, "they are finished all the same")


def test_a_requeued_message_is_there_for_the_next_get(connect: Connect) -> None:
    connection = connect()
    send(connection, "progress")
    queue = ORDERS(connection.default_channel)
    for _ in range(30):
        message = queue.get()
        assert message is not None
        message.requeue()


def test_a_requeued_message_is_the_first_again(connect: Connect) -> None:
    connection = connect()
    queue = ORDERS(connection.default_channel)
    send(connection, 1, 2)
    for number in range(3, 13):
        queue.get().requeue()
        send(connection, number)
        assert queue.get().payload == number - 2


def test_messages_of_another_connection_are_there_for_the_next_get(connect: Connect) -> None:
    connection, publisher = connect(), connect()
    queue = ORDERS(connection.default_channel)
    queue.declare()
    for number in range(30):
        assert queue.get(no_ack=True) is None
        send(publisher, number)
        assert queue.get(no_ack=True).payload == number


def test_without_confirms_what_was_published_is_there_for_the_next_get(connect: Connect) -> None:
    connection = connect(confirm_publish=False)
    queue = ORDERS(connection.default_channel)
    for number in range(10):
        send(connection, number)
        assert queue.get(no_ack=True).payload == number


def test_more_messages_can_be_got_than_are_read_ahead(connect: Connect) -> None:
    connection = connect()
    count = 3 * engine_thread.READ_AHEAD
    send(connection, *range(count))
    queue = ORDERS(connection.default_channel)
    assert [queue.get().payload for _ in range(count)] == list(range(count))
    assert queue.get() is None


@pytest.mark.parametrize("content_type", [None, "application/json", "application/vnd.peerbus.v1+json"])
def test_a_message_that_is_no_task_is_a_dead_letter_and_runs_nothing(
    connect: Connect, tables: Tables, content_type: str | None
) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    publish("orders", b"[[1, 2], {}, {}]", headers=TASK | {"kombu": {"properties": {}}}, content_type=content_type)
    send(connection, "a task")
    assert got.bodies(1) == ["a task"]
    [dead] = wait_until(lambda: [row for row in tables.messages("orders") if row["state"] == 3], "it is a dead letter")
    assert dead["error"] == "it was not published by a Celery client"
    got.messages[0].ack()
    got.channel.close()
    publish("orders", b"[]", headers=TASK, content_type=content_type)
    assert ORDERS(connection.channel()).get() is None


def test_a_remote_control_command_of_another_protocol_is_not_obeyed(
    connect: Connect, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect()
    commands = Queue("me.celery.pidbox", auto_delete=True)
    got = Got(connection, [commands], no_ack=True)
    publish("me.celery.pidbox", b'{"method": "shutdown"}', content_type="application/json")
    connection.Producer().publish({"method": "ping"}, routing_key="me.celery.pidbox")
    assert got.bodies(1) == [{"method": "ping"}]
    assert "not published by a Celery client" in caplog.text
    wait_until(lambda: tables.messages("me.celery.pidbox") == [], "it is gone")


def test_a_queue_that_is_named_gives_messages_of_any_protocol(connect: Connect) -> None:
    connection = connect(foreign_queues=["orders"])
    got = Got(connection, [ORDERS])
    publish("orders", b"[[1], {}, {}]", headers=TASK, content_type="application/json")
    [message] = got.wait(1)
    assert (message.headers, message.payload) == (TASK, [[1], {}, {}])


def test_a_message_that_cannot_be_read_costs_itself(
    connect: Connect, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect()
    send(connection, 1, 2, 3)
    tables.rows("update queues_message set headers = jsonb_build_object('kombu', "
                "jsonb_build_object('properties', 'none')) where convert_from(payload, 'utf8') = '2' returning id")
    got = Got(connection, [ORDERS])
    assert got.bodies(2) == [1, 3]
    [dead] = wait_until(lambda: [row for row in tables.messages("orders") if row["state"] == 3], "it is a dead letter")
    assert dead["error"].startswith("it cannot be read: TypeError")
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == f"the message {dead['origin_id'] or dead['id']} of the queue 'orders' cannot be read"


def test_an_error_in_the_engines_thread_fails_its_call_only(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    thread = got.channel._thread
    thread.call(lambda: 1 / 0)
    send(connection, 1, 2)
    assert got.bodies(2) == [1, 2]
    assert "ZeroDivisionError" in caplog.text


def test_a_consumer_whose_engine_has_died_is_told_and_goes_on_with_another(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    def die() -> None:
        raise SystemExit("the end")

    connection = connect()
    send(connection, 1)
    got = Got(connection, [ORDERS])
    got.wait(1)
    got.channel._thread.call(die)
    with pytest.raises(OSError, match="the engine's thread has ended") as told:
        connection.drain_events(timeout=PATIENCE)
    assert isinstance(told.value, connection.recoverable_connection_errors)
    assert "SystemExit: the end" in caplog.text
    connection.close()
    assert Got(connect(), [ORDERS]).bodies(1) == [1]


def test_a_message_of_the_python_api_is_a_task(connect: Connect) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    publish("orders", b"[[1, 2], {}, {}]", headers=TASK, content_type="application/vnd.fivewire.celery")
    [message] = got.wait(1)
    assert message.headers == TASK
    assert message.payload == [[1, 2], {}, {}]


def test_a_route_copies_a_task(connect: Connect, tables: Tables) -> None:
    connection = connect()
    BILLS(connection.channel()).declare()
    send(connection, "before")
    Route.objects.create(source="queue:orders", target="queue:bills")
    send(connection, "after", headers=TASK)
    assert tables.held("bills")[0] == 1
    assert [route.carried for route in read_traffic().values()] == [1]
    assert Got(connection, [BILLS]).bodies(1) == ["after"]
    assert Got(connection, [ORDERS]).bodies(2) == ["before", "after"]


def test_a_paused_queue_gives_nothing(connect: Connect) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    StoredQueue.objects.filter(name="orders").update(paused=True)
    [buffer] = got.channel._thread.engine.prefetched_queues.queues.values()
    wait_until(lambda: buffer.policy.paused, "the worker has heard of it by a notification")
    send(connection, 1)
    assert got.nothing_more()
    StoredQueue.objects.filter(name="orders").update(paused=False)
    assert got.bodies(1) == [1]


def test_a_queue_that_is_deleted_and_made_anew_is_consumed_again(connect: Connect) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    StoredQueue.objects.get(name="orders").delete()
    publisher = connect()
    with pytest.raises(ChannelError, match="NO_ROUTE"):
        publisher.Producer().publish(1, routing_key="orders", mandatory=True)
    send(publisher, 2)
    assert got.bodies(1) == [2]


def test_when_the_sessions_are_cut_messages_come_again(
    connect: Connect, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_thread, "COMING_BACK", PATIENCE)
    connection = connect()
    send(connection, 1)
    got = Got(connection, [ORDERS])
    got.wait(1)
    engine = got.channel._thread.engine
    node = engine.node
    tables.cut()
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=PATIENCE)
    connection.release()
    wait_until(lambda: engine.node != node or not engine.available, "the engine has noticed it, too")
    again = connect()
    assert Got(again, [ORDERS]).bodies(1) == [1]


def test_a_worker_drops_nothing_that_the_installation_keeps(connect: Connect) -> None:
    connection = connect()
    send(connection, 1)
    got = Got(connection, [ORDERS])
    got.wait(1)
    options = got.channel._thread.engine.options
    assert options.archive_days == 0  # no partition is dropped
    assert options.idle_subscription_days == 0
    assert options.dedupe_window > 50 * 365 * 86_400


def test_a_late_acknowledgement_still_counts_when_the_engine_lost_its_connection(
    connect: Connect, tables: Tables
) -> None:
    connection = connect()
    send(connection, 1)
    [message] = Got(connection, [ORDERS]).wait(1)
    StoredQueue.objects.filter(name="orders").update(paused=True)  # else it would be given out again
    tables.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'fivewire fetcher'"
        " and datname = current_database()"
    )
    wait_until(lambda: tables.held("orders") == (1, 0, 0, 0), "the lease is given back")
    message.ack()
    wait_until(lambda: tables.held("orders") == (0, 0, 0, 0), "it is settled")


def in_child(work: Callable[[], None]) -> None:
    """Do something in a forked child, and see that it can be done."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_publishes_on_a_connection_of_its_own_and_leaves_its_parents_alone(connect: Connect) -> None:
    connection = connect()
    got = Got(connection, [ORDERS])
    in_child(lambda: send(connection, "from the child"))
    assert got.bodies(1) == ["from the child"]
    send(connection, "from the parent")
    assert got.bodies(2)[-1] == "from the parent"


def test_a_forked_child_keeps_no_connection_of_its_parent_open(connect: Connect, tables: Tables) -> None:
    connection = connect()
    send(connection, 1)
    got = Got(connection, [ORDERS])
    got.wait(1)
    mine = {row["client_port"] for row in tables.rows(SESSIONS)}
    assert len(mine) > 5  # those of the database and the engine

    def look() -> None:
        own = {found.laddr.port for found in psutil.Process().net_connections("tcp")}
        assert not own & mine, "they are open here, too"

    in_child(look)


def test_without_confirms_a_forked_child_that_publishes_by_its_parents_producer_is_told(
    connect: Connect, tables: Tables
) -> None:
    connection = connect(confirm_publish=False)
    producer = connection.Producer()
    producer.publish(1, routing_key="orders", declare=[ORDERS])
    wait_until(lambda: len(tables.messages("orders")) == 1, "the parent's is stored")

    def publish_in_vain() -> None:
        with pytest.raises(connection.connection_errors):
            producer.publish(2, routing_key="orders")

    in_child(publish_in_vain)


SESSIONS = (
    "select client_port from pg_stat_activity where application_name like 'fivewire%%' and datname = current_database()"
)


def test_messages_behind_one_whose_callback_failed_are_delivered(connect: Connect) -> None:
    connection = connect()
    send(connection, *range(5))
    got = Got(connection, [ORDERS])
    keep = got.consumer.on_message

    def fail(message: Any) -> None:
        got.consumer.on_message = keep
        raise ValueError("the host's fault")

    got.consumer.on_message = fail
    wait_until(lambda: len(got.channel._prefetched.items) == 5, "all are there")
    with pytest.raises(ValueError, match="the host's fault"):
        connection.drain_events(timeout=PATIENCE)
    assert got.bodies(4) == [1, 2, 3, 4]


def test_the_message_of_a_get_that_timed_out_goes_to_others(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connect()
    send(connection, "one")
    channel = connection.channel()
    claim, go_on = Fetcher._claim, threading.Event()

    async def claim_late(*arguments: Any) -> Any:
        await asyncio.to_thread(go_on.wait, PATIENCE)  # the database is away for longer than any caller waits
        return await claim(*arguments)

    monkeypatch.setattr(Fetcher, "_claim", claim_late)
    channel._engage()  # its engine starts in time
    with monkeypatch.context() as impatient:
        impatient.setattr(engine_thread, "TIMEOUT", 0.5)
        with pytest.raises(DatabaseUnavailable, match="no answer"):
            channel.basic_get("orders")
    go_on.set()
    assert wait_until(lambda: channel.basic_get("orders"), "it is there").payload == "one"


def test_an_engine_that_is_used_again_at_the_last_moment_is_still_looked_after(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_thread, "IDLE", 0.1)
    monkeypatch.setattr(engine_thread, "LOOK", 0.05)
    connection = connect()
    send(connection, 1)
    first = Got(connection, [ORDERS])
    first.wait(1)[0].ack()
    [thread] = engine_thread._threads.values()
    with engine_thread._lock:  # another thread opens an engine for another database
        first.channel.close()
        wait_until(lambda: any(each.name == "fivewire stop" for each in threading.enumerate()), "it is to be stopped")
        consumers = thread.channel(lambda received: None, lambda: None)  # what `open_channel` does in its turn
    wait_until(lambda: all(each.name != "fivewire stop" for each in threading.enumerate()), "it is not stopped")
    assert not thread.ended
    thread.forget(consumers)
    wait_until(lambda: thread.ended, "it is stopped with its last user")


def test_a_single_active_consumer_is_followed_by_the_next_one_in_order(connect: Connect, tables: Tables) -> None:
    turns = Queue("turns", queue_arguments={"x-single-active-consumer": True})
    connection, other = connect(), connect()
    send(connection, *range(6), queue=turns)
    first = Got(connection, [turns], prefetch=3)
    first.wait(3)[0].ack()
    second = Got(other, [turns], prefetch=6)
    assert second.nothing_more()
    assert connection.default_channel.basic_get("turns") is None
    first.consumer.cancel()
    assert second.nothing_more(), "the first one may finish what it has"
    first.messages[1].ack()
    first.channel.close()
    assert second.bodies(4) == [2, 3, 4, 5]
    for message in second.messages:
        message.ack()
    wait_until(lambda: tables.held("turns") == (0, 0, 0, 0), "all are acknowledged")
