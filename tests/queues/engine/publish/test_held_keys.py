"""Publishes whose key an unfinished transaction holds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from queues.engine.api import DetailedMessage, Engine, StoreUnavailable
from tests.queues.engine.conftest import Producer, Store
from tests.tables import lock_waits


@contextmanager
def holding(store: Store, queue: int, *keys: str) -> Iterator[psycopg.Connection]:
    """Another's transaction that has stored messages with these keys."""
    with psycopg.connect(store.conninfo) as other:
        for key in keys:
            other.execute(
                "insert into queues_message (id, queue_id, state, payload, key) "
                "select nextval('queues_message_id'), %s, 0, '', %s", (queue, key),
            )  # fmt: skip
        yield other
        other.rollback()


async def test_a_subscribe_does_not_wait_for_a_publish_whose_key_is_held(
    engine: Engine, store: Store, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("queues.engine.publish.group_commit.KEY_PATIENCE", 3600.0)
    queue = store.queue("orders")
    with holding(store, queue, "k"):
        publish = asyncio.create_task(producer.publish_detailed("orders", DetailedMessage(b"1", key="k")))
        await store.until(lambda: store.rows(lock_waits("fivewire writer")), "the publish waits for its key")
        assert (await engine.subscriptions.create(b"t", 1, None)).topic == b"t"
        assert not publish.done()
    await publish
    assert ([row["key"] for row in store.messages(queue)], producer.failed) == (["k"], [])


async def test_held_keys_hold_up_other_publishes_only_now_and_then(
    engine: Engine, store: Store, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue("orders")
    with holding(store, queue, "a", "b"):
        await producer.publish_detailed("orders", DetailedMessage(b"1", key="a"), DetailedMessage(b"2", key="free"))
        assert [(token, type(error)) for token, error in producer.failed] == [(0, StoreUnavailable)]
        monkeypatch.setattr("queues.engine.publish.group_commit.KEY_PATIENCE", 3600.0)
        engine.writer._rests_until += 3600.0
        await producer.publish_detailed("orders", DetailedMessage(b"3", key="b"), DetailedMessage(b"4"))
        assert len(producer.failed) == 2
    assert [bytes(row["payload"]) for row in store.messages(queue)] == [b"2", b"4"]
