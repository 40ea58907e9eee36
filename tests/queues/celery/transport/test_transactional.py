"""With `django_connection`: tasks leave with the transaction, and what a caller waits for leaves at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections as django_connections
from django.db import transaction
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import ChannelError
from kombu.pidbox import Mailbox

from queues.models import Queue as StoredQueue
from tests.queues.celery.transport import project
from tests.queues.celery.transport.conftest import Connect, StartWorker
from tests.queues.celery.transport.tables import Got, Tables
from tests.queues.celery.transport.test_celery import leave, use
from tests.waiting import PATIENCE, wait_until

ORDERS = Queue("orders")
FAN = Exchange("fan", "fanout")
REPLIES = Queue("replies", FAN, auto_delete=True)


@pytest.fixture
def connection(connect: Connect) -> Connection:
    """One that publishes in the transactions of the default alias."""
    return connect(django_connection="default")


@pytest.fixture
def unpolled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without polls: only an announced message is found."""
    monkeypatch.setattr("queues.celery.transport.transport.POLL", 3600.0)


def publish(connection: Connection, body: object, queue: Queue = ORDERS, **options: object) -> None:
    connection.Producer().publish(body, routing_key=queue.name, declare=[queue], **options)


def bodies(tables: Tables, queue: str = "orders") -> list[bytes]:
    return [row["payload"] for row in tables.messages(queue)]


def test_a_task_leaves_with_the_callers_commit(connection: Connection, connect: Connect) -> None:
    got = Got(connect(), [ORDERS])
    with transaction.atomic():
        publish(connection, "committed")
        assert got.nothing_more(0.2)
    assert got.bodies(1) == ["committed"]
    publish(connection, "outside")
    assert got.bodies(2)[-1] == "outside"


def test_a_task_goes_with_the_callers_rollback(connection: Connection, tables: Tables) -> None:
    with contextlib.suppress(KeyError), transaction.atomic():
        publish(connection, 1)
        raise KeyError
    assert bodies(tables) == []


def test_a_refused_task_does_not_spoil_the_callers_transaction(connection: Connection, tables: Tables) -> None:
    with transaction.atomic():
        with pytest.raises(ChannelError):
            connection.Producer().publish(1, routing_key="nowhere", mandatory=True)
        publish(connection, 2)
    assert bodies(tables) == [b"2"]


def test_outside_a_transaction_django_opens_no_connection(connection: Connection, tables: Tables) -> None:
    django_connections["default"].close()
    publish(connection, 1)
    assert django_connections["default"].connection is None
    assert bodies(tables) == [b"1"]


def test_without_confirms_a_task_leaves_with_the_commit_all_the_same(connect: Connect, tables: Tables) -> None:
    connection = connect(django_connection="default", confirm_publish=False)
    with contextlib.suppress(KeyError), transaction.atomic():
        publish(connection, 1)
        raise KeyError
    with transaction.atomic():
        publish(connection, 2)
    publish(connection, 3)
    wait_until(lambda: bodies(tables) == [b"2", b"3"], "both are stored")


def test_tasks_leave_again_after_the_transports_connection_was_lost(connection: Connection, tables: Tables) -> None:
    publish(connection, 1)
    tables.cut()
    publish(connection, 2, retry=True)
    with transaction.atomic():
        publish(connection, 3)
        tables.cut()
        publish(connection, 4, Queue("others"), retry=True)
    assert bodies(tables) == [b"1", b"2", b"3"]
    assert bodies(tables, "others") == [b"4"]


# Temporary queues: a caller waits.


def test_a_reply_comes_at_once_though_the_transaction_is_undone(
    connection: Connection, connect: Connect, unpolled: None
) -> None:
    got = Got(connect(), [REPLIES], no_ack=True)
    assert got.nothing_more(0.1)
    publish(connection, "outside", REPLIES)
    assert got.bodies(1) == ["outside"]
    with contextlib.suppress(KeyError), transaction.atomic():
        publish(connection, "inside", REPLIES)
        assert got.bodies(2)[-1] == "inside"
        raise KeyError


def test_of_a_broadcast_only_what_is_to_be_kept_waits_for_the_commit(
    connection: Connection, connect: Connect, tables: Tables
) -> None:
    got = Got(connect(), [REPLIES], no_ack=True)
    Queue("orders", FAN)(connect().channel()).declare()
    with transaction.atomic():
        connection.Producer().publish("all", exchange=FAN, declare=[FAN])
        assert got.bodies(1) == ["all"]
        assert bodies(tables) == []
    assert bodies(tables) == [b"all"]


def test_a_reply_to_a_client_that_is_gone_does_not_spoil_the_callers_transaction(
    connection: Connection, tables: Tables
) -> None:
    with transaction.atomic():
        connection.Producer().publish(1, routing_key="replies", delivery_mode="transient")
        publish(connection, 2)
    assert bodies(tables) == [b"2"]


def test_a_reply_to_a_queue_with_a_maximum_length_comes_at_once(
    connection: Connection, connect: Connect, unpolled: None
) -> None:
    short = Queue("short", auto_delete=True, max_length=10)
    got = Got(connect(), [short], no_ack=True)
    assert got.nothing_more(0.1)
    publish(connection, "reply", short)
    assert got.bodies(1) == ["reply"]


def test_a_program_can_ask_and_be_answered_within_a_transaction(
    connection: Connection, connect: Connect, unpolled: None
) -> None:
    serving = connect(django_connection="default")
    mailbox = Mailbox("test", type="fanout")
    node = mailbox(serving).Node("node", channel=serving.channel())
    node.handler(ping)
    node.listen()
    asking = mailbox(connection)
    with transaction.atomic():
        publish(connection, 1)
        asking._publish("ping", {}, reply_ticket="t", channel=connection.default_channel)
        serving.drain_events(timeout=PATIENCE)
        answers = asking._collect("t", limit=1, timeout=PATIENCE, channel=connection.default_channel)
        assert answers == [{"node": "pong"}]


def ping(state: object) -> str:
    return "pong"


# Queues that an operator deletes.


def test_a_deleted_queue_is_made_again_for_a_task_in_a_transaction(connection: Connection, tables: Tables) -> None:
    publish(connection, 1)
    tables.rows("delete from queues_queue where name = 'orders' returning id")
    with transaction.atomic():
        publish(connection, 2)
        assert bodies(tables) == []
    assert bodies(tables) == [b"2"]


def test_a_queue_that_the_transaction_itself_deleted_is_not_made_again(connection: Connection) -> None:
    publish(connection, 1)
    with transaction.atomic():
        StoredQueue.objects.get(name="orders").delete()
        with pytest.raises(ChannelError, match="NO_ROUTE"):
            connection.Producer().publish(2, routing_key="orders", mandatory=True)


def test_a_queue_that_the_transaction_itself_made_takes_its_tasks(connection: Connection, tables: Tables) -> None:
    with transaction.atomic():
        StoredQueue.objects.create(name="new")
        connection.Producer().publish(1, routing_key="new")
    assert bodies(tables, "new") == [b"1"]


# A real worker.


@pytest.fixture
def app(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    app = use(broker_url)
    monkeypatch.setitem(app.conf, "broker_transport_options", {"django_connection": "default"})
    yield app
    leave(app)


def test_a_worker_is_asked_and_answers_at_once(
    app: Any, start_worker: StartWorker, database_url: str, unpolled: None
) -> None:
    settings = {"DATABASE_URL": database_url, "DJANGO_SETTINGS_MODULE": "brokersite.settings"}
    worker = start_worker("-c", "1", PROJECT_ALIAS="default", **settings)
    answer = {worker.name: {"ok": "pong"}}
    assert app.control.inspect(timeout=PATIENCE, limit=1).ping() == answer
    with transaction.atomic():
        assert app.control.inspect(timeout=PATIENCE, limit=1).ping() == answer
        result = project.number.delay(3)
    assert result.get(timeout=PATIENCE) == 3


def test_a_task_for_a_queue_that_the_transactions_snapshot_cannot_see_is_refused_and_not_dropped(
    connection: Connection, tables: Tables
) -> None:
    with transaction.atomic():
        with django_connections["default"].cursor() as cursor:
            cursor.execute("set transaction isolation level repeatable read")
            cursor.execute("select count(*) from queues_queue")  # takes the snapshot
        with pytest.raises(ChannelError, match=r"'orders' is newer than this transaction \(repeatable read\)"):
            publish(connection, 1)
    publish(connection, 2)
    assert bodies(tables) == [b"2"]
