"""Clients with published messages that are not durable yet: paused, and read again."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest

from queues.engine.api import Engine
from wire.net.connection import Connection
from wire.unconfirmed import PENDING, UnconfirmedByClient


class FakeEngine:
    """An engine in which the test opens and commits batches."""

    def __init__(self) -> None:
        self.open_batch = 1
        self.committed = 0
        self.holders: list[Any] = []

    def holds(self, batch: int) -> bool:
        return batch > self.committed

    def hold(self, holder: Any) -> None:
        self.holders.append(holder)

    def unhold(self, holder: Any) -> None:
        self.holders.remove(holder)

    def commit(self, batch: int) -> None:
        self.committed = batch
        for holder in tuple(self.holders):
            holder.release()


class FakeConnection:
    def __init__(self) -> None:
        self.paused = False

    def pause_reading(self, reason: str) -> None:
        assert reason == PENDING
        self.paused = True

    def resume_reading(self, reason: str) -> None:
        assert reason == PENDING
        self.paused = False


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def by_client(engine: FakeEngine) -> UnconfirmedByClient:
    return UnconfirmedByClient(cast(Engine, engine), 100, Counter())


def connect() -> Any:
    return cast(Connection, FakeConnection())


def test_a_client_with_too_much_is_paused_on_the_connection_that_goes_over_and_others_are_not(
    by_client: UnconfirmedByClient,
) -> None:
    first, second, other = connect(), connect(), connect()
    greedy = by_client.of(7)
    assert by_client.of(7) is greedy
    greedy.add(first, 60)
    by_client.of(8).add(other, 100)
    greedy.add(second, 50)
    assert (first.paused, second.paused, other.paused) == (False, True, False)


def test_it_is_read_again_when_half_of_its_share_is_durable(engine: FakeEngine, by_client: UnconfirmedByClient) -> None:
    connection, unconfirmed = connect(), by_client.of(7)
    unconfirmed.add(connection, 90)
    engine.open_batch = 2
    unconfirmed.add(connection, 60)
    assert connection.paused
    engine.commit(1)
    assert connection.paused  # 60 of 100 wait
    engine.commit(2)
    assert not connection.paused
    assert engine.holders == []


def test_durable_messages_do_not_count(engine: FakeEngine, by_client: UnconfirmedByClient) -> None:
    connection, unconfirmed = connect(), by_client.of(7)
    for batch in range(1, 10):
        engine.open_batch = batch
        unconfirmed.add(connection, 90)
        engine.commit(batch)
    assert not connection.paused
    assert unconfirmed.waiting == 0
