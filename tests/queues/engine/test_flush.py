"""`manage.py flush`, and Django's tests that commit: nothing of the broker is left, and no id comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import connection, models

from queues.api import publish
from queues.audit.upkeep import look_after
from queues.models import (
    ApiKey,
    AuditChain,
    BulkOperation,
    EtlRun,
    Node,
    PeriodicJob,
    Queue,
    Route,
    Subscription,
    Topology,
)
from queues.models import (
    Consumer as QueueConsumer,
)
from tests.queues.engine.conftest import Consumer, MakeEngine, Producer, Store
from tests.queues.shell import Shell

pytestmark = pytest.mark.django_db(transaction=True)

#: A row in each table of the broker's that Django does not manage.
FILL = """
    insert into queues_archive (id, queue_id, outcome, attempts, published_at, finished_at, size)
    values (1, 1, 0, 0, now(), now(), 1);
    insert into queues_segment (first, queue_id, count, bodies) values (8192, 1, 1, array['1'::bytea]);
    insert into queues_segment (first, queue_id, node_id, count, bodies_id, slot) values (12288, 1, 1, 1, 1, 2);
    insert into queues_segmentbody (slot, id, bodies) values (2, 1, array['1'::bytea]);
    insert into queues_segmentsettlement (first, low, high, kept, slot) values (12288, 0, 0, true, 2);
    insert into queues_queuetally (queue_id, ready) values (1, 1);
    insert into queues_queuetally (queue_id, ready, slot) values (1, 1, 3);
    insert into queues_archivedsegment (first, count, queue_id, published_at, finished_at, sizes, lows, highs,
        consumers, delivered, jobs)
    values (8192, 1, 1, now(), '2001-01-01', '{1}', '{0}', '{0}', '{null}', '{null}', '{false}');
    insert into queues_instruction (node_id, text) values (1, '');
    insert into queues_rollupdraft values (1, now(), 'secret', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, '', '', '');
"""
REMEMBERED = (
    ApiKey, AuditChain, BulkOperation, QueueConsumer, EtlRun, Node, PeriodicJob, Queue, Route, Subscription,
)  # fmt: skip


def flush(**options: Any) -> None:
    call_command("flush", interactive=False, verbosity=0, **options)


def flush_and_close() -> None:
    flush()
    connection.close()


def filled() -> set[str]:
    """The broker's tables that have rows, but the one whose row is always there."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select relname from pg_class where relnamespace = current_schema()::regnamespace and relkind = 'r'"
            " and relname like 'queues\\_%' and relname <> 'queues_topology'"
        )
        names = [name for (name,) in cursor.fetchall()]
        return {name for name in names if value(f"select exists (select from {name})")}


def value(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def test_flush_leaves_no_row_of_the_broker_behind() -> None:
    Queue.objects.create(name="secret", audited=True)
    publish("secret", b"1")
    with connection.cursor() as cursor:
        cursor.execute(FILL)
    look_after()
    assert {"queues_message", "queues_audithead", "queues_segmentbody_2"} <= filled()
    flush()
    assert filled() == set()


def test_a_queue_that_is_made_after_flush_has_no_messages_and_no_id_of_another(shell: Shell) -> None:
    secret = Queue.objects.create(name="secret")
    for body in (b"1", b"2", b"3"):
        publish("secret", body)
    flush()
    assert shell("queue", "create", "other").status == 0
    assert "no ready message" in shell("queue", "peek", "other").err
    other = Queue.objects.get()
    assert other.pk > secret.pk
    assert value(f"select array[ready, leased, delayed, dead]::int[] from queues_held({other.pk})") == [0, 0, 0, 0]


@pytest.mark.parametrize("model", REMEMBERED, ids=lambda model: model.__name__)
def test_ids_that_others_remember_come_back_by_no_way_that_django_has(model: type[models.Model]) -> None:
    def new_id() -> int:
        return int(value(f"select queues_new_id('{model._meta.db_table}_id_seq', '{model._meta.db_table}')"))

    first = new_id()
    statements = [
        *connection.ops.sequence_reset_sql(no_style(), [model]),  # loaddata
        *connection.ops.sequence_reset_by_name_sql(no_style(), connection.introspection.sequence_list()),
        *connection.ops.sql_flush(no_style(), [model._meta.db_table], reset_sequences=True, allow_cascade=True),
    ]
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    assert new_id() == first + 1


def test_an_id_that_a_fixture_has_taken_is_left_out() -> None:
    first = Queue.objects.create(name="first")
    Queue.objects.create(pk=first.pk + 1, name="of a fixture")
    assert Queue.objects.create(name="second").pk == first.pk + 2


def test_the_version_of_the_topology_never_goes_back() -> None:
    Queue.objects.create(name="orders")
    versions = [Topology.objects.get().version]
    flush()
    versions.append(Topology.objects.get().version)
    Topology.objects.update(version=1)  # what `serialized_rollback` restores
    versions.append(Topology.objects.get().version)
    with connection.cursor() as cursor:
        cursor.execute("truncate queues_topology")
    versions.append(Topology.objects.get().version)
    assert versions == sorted(set(versions))


async def test_a_process_that_serves_meanwhile_goes_on_with_the_new_queues(
    make_engine: MakeEngine, store: Store
) -> None:
    engine = await make_engine()
    producer = Producer(engine)
    secret, _ = store.queue("secret"), store.queue("idle")
    await producer.publish("secret", b"1", b"2", b"3")
    consumer = Consumer(await engine.queue("secret"))
    assert await consumer.bodies(1, ack=False) == [b"1"]
    node = engine.node
    waiting = asyncio.create_task(Consumer(await engine.queue("idle")).next())
    await sync_to_async(flush_and_close)()
    other = store.queue("other")
    assert other > secret
    await store.until(lambda: engine.available and engine.node > node, "that it is a node again")
    assert await waiting is None, "its queue is gone"
    await producer.publish("other", b"4")
    assert await Consumer(await engine.queue("other")).bodies(1) == [b"4"]
    await store.until(lambda: store.counts(other) == (0, 0, 0, 0), "its counts")
    assert store.rows("select id from queues_openmessage") == []
