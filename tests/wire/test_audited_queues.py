"""Audited queues behind a running broker: the chain names the API keys of each protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.waiting import wait_until
from tests.wire.broker import KEY, Blip, Broker, Database, Sspq, put
from tests.wire.overhop.peer import Peer

Row = tuple[str, str, str]


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_OVERHOP_API_KEY=KEY) as running:
        yield running


def rows(store: Database, queue: str) -> list[Row]:
    """A queue's audit events, without the one that audit was switched on: event, from, to."""
    return store.rows(
        "select event, sender, recipient from queues_audit join queues_auditchain c on c.id = chain_id"
        " where c.name = %s and event <> 'audit-on' order by seq", f"queue:{queue}",
    )  # fmt: skip


def wait_for_rows(store: Database, queue: str, *expected: Row) -> None:
    wait_until(lambda: rows(store, queue) == list(expected), lambda: f"{expected} (now {rows(store, queue)})")


def names(store: Database, queue: str) -> set[Row]:
    """Every kind of row in a queue's chain."""
    return set(rows(store, queue))


def test_a_blipmq_subscription_is_recorded_with_the_key_of_its_client(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as client:
        subscription = client.subscribe(b"prices")
        queue = store.queue_of(subscription)
        store.change_queue(queue, audited=True)
        name = str(store.value("select name from queues_queue where id = %s", queue))

        def consumed() -> set[Row]:
            """Deliveries are recorded as soon as the node has heard that they are to be."""
            client.publish(b"prices", b"1", b"2")
            assert client.consume(subscription, 2) == [b"1", b"2"]
            return {row for row in names(store, name) if row[0] == "deliver"}

        assert wait_until(consumed, "a delivery with a row") == {("deliver", name, KEY)}
        wait_until(lambda: ("settle", KEY, "") in names(store, name), "a settlement with a row")
        assert names(store, name) == {("publish", KEY, name), ("deliver", name, KEY), ("settle", KEY, "")}


def test_an_overhop_job_is_recorded_with_the_key_of_all_clients(broker: Broker, store: Database) -> None:
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff, audited)"
        " values ('jobs', gen_random_uuid(), 5, '1 s', true)"
    )
    with Peer(broker.overhop) as worker:
        worker.enqueue("jobs", 1)
        assert worker.do("jobs", 1) == [1]
        wait_for_rows(store, "jobs", ("publish", KEY, "jobs"), ("deliver", "jobs", KEY), ("settle", KEY, ""))


def test_a_protocol_without_keys_leaves_the_names_empty(broker: Broker, store: Database) -> None:
    store.change_queue(store.queue("sspq"), audited=True)
    with Sspq(broker.sspq) as receiver:

        def settled() -> bool:
            put(broker.sspq, b"1")
            assert receiver.receive().payload == b"1"
            receiver.confirm()
            return {"deliver", "settle"} <= {row[0] for row in names(store, "sspq")}

        wait_until(settled, "a delivery and a settlement with a row")
    assert names(store, "sspq") == {("publish", "", "sspq"), ("deliver", "sspq", ""), ("settle", "", "")}
