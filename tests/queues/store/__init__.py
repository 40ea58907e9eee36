"""Common helpers of this directory: messages in given states, exact counts, notifications."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
from django.db import connection
from django.utils import timezone

from queues.database.parameters import connection_parameters
from queues.engine.api import Waiter
from queues.models import Message, Node, Queue, State
from queues.store.counts import QueueCounts, queue_counts


def make_node() -> Node:
    """A node that no process runs."""
    return Node.objects.create(name="test", host="here", pid=1, first_message_id=0)


def make_queue(name: str = "orders", **policy: Any) -> Queue:
    return Queue.objects.create(name=name, **policy)


def store(queue: Queue, state: State = State.READY, count: int = 1, **fields: Any) -> list[Message]:
    """Put messages into a queue as the engine would, with its counts."""
    fields.setdefault("payload", b"body")
    if state in (State.LEASED, State.DEAD_LEASED):
        fields.setdefault("node", make_node())
    if state == State.DELAYED:
        fields.setdefault("due_at", timezone.now() + timedelta(hours=1))
    with connection.cursor() as cursor:
        cursor.execute("select nextval('queues_message_id')")
        first = cursor.fetchone()[0]
        column = {State.DEAD_LEASED: "dead"}.get(state, state.label)
        cursor.execute(
            f"insert into queues_queuetally (queue_id, {column}, published) values (%s, %s, %s)",
            [queue.pk, count, count],
        )
    rows = (
        Message(id=first + n, queue=queue, state=state, attempts=fields.get("attempts", 0), **_without(fields))
        for n in range(count)
    )
    return Message.objects.bulk_create(rows, batch_size=1000)  # a statement has 65,535 parameters at most


def _without(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "attempts"}


def store_segment(queue: Queue, count: int = 4, node: Node | None = None, **fields: Any) -> list[int]:
    """Put messages into a queue as one row, with its counts: ready, or leased to a node. Returns their ids."""
    [first] = store_segments([queue], 1, count, node, **fields)
    return list(range(first, first + count))


def store_segments(
    queues: Sequence[Queue], segments: int, count: int = 2, node: Node | None = None, **fields: Any
) -> list[int]:
    """Put segments of so many messages each into queues in turn, with their counts. Returns their first ids."""
    columns: dict[str, Any] = {"producer_id": None, "content": None, "max_attempts": None} | fields
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into queues_segment (first, queue_id, node_id, count, producer_id, content, max_attempts, bodies)"
            " select nextval('queues_message_id'), (%(queues)s::int[])[1 + n %% cardinality(%(queues)s::int[])],"
            " %(node)s, %(count)s, %(producer_id)s::bigint, %(content)s::smallint, %(max_attempts)s::smallint,"
            " array(select convert_to(slot::text, 'UTF8') from generate_series(1, %(count)s) slot)"
            " from generate_series(0, %(segments)s - 1) n returning first",
            {
                "queues": [queue.pk for queue in queues], "node": None if node is None else node.pk, "count": count,
                "segments": segments, **columns,
            },
        )  # fmt: skip
        firsts = [row[0] for row in cursor.fetchall()]
        cursor.execute(
            f"insert into queues_queuetally (queue_id, {'leased' if node else 'ready'}, published)"
            " select queue_id, sum(count), sum(count) from queues_segment where first = any(%s) group by 1", [firsts]
        )  # fmt: skip
    return firsts


def whole_segments() -> list[int]:
    """The first ids of the segments that there are."""
    with connection.cursor() as cursor:
        cursor.execute("select first from queues_segment order by first")
        return [row[0] for row in cursor.fetchall()]


@contextmanager
def segments_read(most: int) -> Iterator[None]:
    """The statements inside read so many rows of segments at most. For tests in one transaction."""
    before = _segment_rows_read()
    yield
    read = _segment_rows_read() - before
    assert read <= most, f"{read} segments were read"


def _segment_rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute(
            "select seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_stat_xact_user_tables"
            " where relname = 'queues_segment'"
        )
        return int(cursor.fetchone()[0])


def assert_counts_are_exact(queue: Queue) -> QueueCounts:
    """The counts that are kept are those of the rows."""
    kept = queue_counts(queue.pk)
    rows = list(Message.objects.filter(queue=queue).values_list("state", flat=True))
    assert (kept.ready, kept.leased, kept.delayed, kept.dead) == (
        rows.count(0), rows.count(1), rows.count(2), rows.count(3) + rows.count(4),
    )  # fmt: skip
    assert kept.published - kept.settled == len(rows)
    return kept


class Notifications:
    """The notifications and instructions sent to nodes."""

    def __init__(self, listener: psycopg.Connection[Any]) -> None:
        self._listener = listener

    def take(self, word: str) -> list[Any]:
        """Everything heard so far, or told to a node, that begins with this word. Notifications come before the reply
        to a query."""
        with psycopg.connect(**connection_parameters(), autocommit=True) as other:
            told = other.execute("delete from queues_instruction returning id, text").fetchall()
            other.execute("""select pg_notify('fivewire', '{"end": 0}')""")
        heard: list[Any] = []
        for notification in self._listener.notifies(timeout=60):
            messages = [json.loads(notification.payload)]
            if "end" in messages[0]:
                return heard
            if "instructions" in messages[0]:
                first = messages[0]["instructions"]
                messages, told = [json.loads(text) for id, text in told if id >= first], []
            heard += [message[word] for message in messages if word in message]
        raise AssertionError("no notification arrived")


@contextmanager
def listening() -> Iterator[Notifications]:
    """Hear what is announced from now on; only for tests that commit."""
    with psycopg.connect(**connection_parameters(), autocommit=True) as listener:
        listener.execute("listen fivewire")
        yield Notifications(listener)


@contextmanager
def another_connection() -> Iterator[psycopg.Connection[Any]]:
    """A connection beside Django's, in a transaction."""
    with psycopg.connect(**connection_parameters()) as other:
        yield other
        other.rollback()


class OneDelivery(Waiter):
    """A consumer that waits for one message."""

    def __init__(self) -> None:
        super().__init__(key=None)
        self.delivered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def deliver(self, delivery: Any) -> None:
        self.delivered.set_result(delivery)

    def refuse(self) -> None:
        self.delivered.cancel()
