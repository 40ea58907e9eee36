"""A running listener does the steps of bulk operations, and its consumers get what becomes ready."""

from __future__ import annotations

import signal

from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker, Database


def make_queue(store: Database, name: str) -> int:
    """Make a queue; its id."""
    return int(
        store.value(
            "insert into queues_queue (name, uuid, max_attempts, retry_backoff)"
            " values (%s, gen_random_uuid(), 5, interval '1 second') returning id", name,
        )
    )  # fmt: skip


def begin_move(store: Database, source: int, target: int, count: int) -> int:
    """Store messages in a queue, and note an operation that moves them, as the site does."""
    store.execute(
        "insert into queues_message (id, queue_id, state, payload)"
        " select nextval('queues_message_id'), %s, 0, convert_to(n::text, 'UTF8') from generate_series(1, %s) n",
        source, count,
    )  # fmt: skip
    tally = "insert into queues_queuetally (queue_id, ready, published) values (%s, %s, %s)"
    store.execute(tally, source, count, count)
    id = store.value(
        """insert into queues_bulkoperation (action, criteria, target, "by", state, cursor, high, looked, done, skipped,
            error)
        select 'move', jsonb_build_object('queue', s.name), t.name, 'alice', 'running', '',
            nextval('queues_message_id'), 0, 0, 0, ''
        from queues_queue s, queues_queue t where s.id = %s and t.id = %s returning id""",
        source, target,
    )  # fmt: skip
    return int(id)


def test_a_listener_moves_what_was_asked_for_and_its_consumer_gets_it_in_order_once(store: Database) -> None:
    source = make_queue(store, "source")
    with Broker(store) as broker, Blip(broker.blipmq) as client:
        subscription = client.subscribe(b"moved")
        operation = begin_move(store, source, store.queue_of(subscription), 1200)
        assert client.consume(subscription, 1200) == [b"%d" % n for n in range(1, 1201)]
        row = "select state, done, skipped from queues_bulkoperation where id = %s"
        wait_until(lambda: store.rows(row, operation) == [("done", 1200, 0)], "its end")


def test_an_operation_goes_on_after_its_listener_was_killed(store: Database) -> None:
    source, target = make_queue(store, "killed source"), make_queue(store, "killed target")
    with Broker(store) as broker:
        operation = begin_move(store, source, target, 20_000)
        done = "select done from queues_bulkoperation where id = %s"
        wait_until(lambda: store.value(done, operation) > 0, "the first step")
        broker.stop(signal.SIGKILL)
    with Broker(store):
        state = "select state from queues_bulkoperation where id = %s"
        wait_until(lambda: store.value(state, operation) == "done", "its end")
    assert store.value(done, operation) == 20_000
    assert store.states(target)[0] == 20_000
    assert store.states(source)[0] == 0
