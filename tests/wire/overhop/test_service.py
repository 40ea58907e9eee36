"""The shared part of Overhop's connections, with a double in place of the engine."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from queues.engine import Grant, QueueNotFound
from queues.reach import Operation
from tests.waiting import PATIENCE
from wire.overhop.service import OverhopOptions, OverhopService
from wire.unconfirmed import UnconfirmedByClient

BEFORE = Grant(1, "clients", ("overhop",), ("*",), ("*",), ())
ORDERS = SimpleNamespace(id=7, name="orders", uuid=str(UUID(int=7)))
LIMITED = Grant(1, "clients", ("overhop",), ("orders*",), (), ())
AFTER = Grant(1, "clients", ("overhop",), (), (), ())


class FakeEngine:
    """Answers what it is told to; `asked` says what for."""

    node = 1
    options = SimpleNamespace()

    def __init__(self) -> None:
        self.on_key_change: list[Any] = []
        self.answers: list[Any] = []
        self.asked = asyncio.Queue[str]()

    async def _answer(self, what: str) -> Any:
        self.asked.put_nowait(what)
        answer = self.answers.pop(0)
        if callable(answer):
            answer = answer()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def grant_named(self, name: str) -> Any:
        return await self._answer(name)

    async def request(self, name: str, **parameters: Any) -> Any:
        return await self._answer(name)

    async def named_policies(self, names: Iterable[str]) -> Any:
        await asyncio.sleep(0)
        return await self._answer(" ".join(sorted(names)))

    def known_policy(self, id: int) -> Any:
        return ORDERS

    def publisher(self, destination: Any, key: int | None) -> Any:
        return Mock()


@pytest.fixture
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def service(engine: Any) -> Iterator[OverhopService]:
    service = OverhopService(engine, OverhopOptions(api_key="clients"), UnconfirmedByClient(engine, 1 << 20, Counter()))
    yield service
    service.queries.close()


async def test_a_key_that_is_changed_while_it_is_looked_up_is_looked_up_again(
    engine: FakeEngine, service: OverhopService
) -> None:
    def changed_meanwhile() -> Grant:
        for told in engine.on_key_change:
            told(1)
        return BEFORE

    engine.answers = [changed_meanwhile, AFTER]
    assert not await service.may(Operation.PUBLISH, "q")
    assert engine.asked.qsize() == 2
    assert not await service.may(Operation.PUBLISH, "q")
    assert engine.asked.qsize() == 2


async def test_a_list_of_workers_that_could_not_be_written_is_not_the_last(
    engine: FakeEngine, service: OverhopService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wire.overhop.service.SNAPSHOT", 0.01)
    worker = Mock()
    worker.snapshot.return_value = {"wid": "1"}
    service.registered(worker, "1")
    engine.answers = [RuntimeError("the transaction is read-only"), None]
    writing = asyncio.create_task(service._write_snapshots())
    for _ in range(2):
        assert await asyncio.wait_for(engine.asked.get(), PATIENCE) == "write_workers"
    writing.cancel()
    await asyncio.wait([writing])
    assert "the list of workers was not written" in caplog.text


async def test_many_subscriptions_are_looked_at_less_often(
    engine: FakeEngine, service: OverhopService, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter((0.0, 0.001, 0.001, 0.016))
    monkeypatch.setattr("wire.overhop.service.thread_time", lambda: next(clock))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr("wire.overhop.service.asyncio.sleep", sleep)
    service.registered(Mock(), "1")
    engine.answers = [None, None]
    with pytest.raises(asyncio.CancelledError):
        await service._write_snapshots()
    assert pauses == [1.0, 1.0, pytest.approx(5.0)]


async def test_connections_that_begin_with_one_queue_look_it_up_once(
    engine: FakeEngine, service: OverhopService
) -> None:
    engine.answers = [BEFORE, {"orders": ORDERS}]
    await service.permissions()
    targets = await asyncio.gather(*(service.find_target("orders") for _ in range(200)))
    assert len({id(target) for target in targets}) == 1
    assert engine.asked.qsize() == 2


async def test_a_queue_that_was_not_there_is_looked_up_by_each(engine: FakeEngine, service: OverhopService) -> None:
    engine.answers = [BEFORE, {}, {"orders": ORDERS}]
    await service.permissions()
    first, second = await asyncio.gather(*(service.find_target("orders") for _ in range(2)), return_exceptions=True)
    assert isinstance(first, QueueNotFound)
    assert second is service.target("orders")


async def test_the_queues_of_the_next_jobs_are_looked_up_together(engine: FakeEngine, service: OverhopService) -> None:
    engine.answers = [LIMITED, {"orders": ORDERS}]
    await service.permissions()
    await service.find_target("orders", ["orders", "orders-2", "orders-3", "secret"])
    assert [engine.asked.get_nowait() for _ in range(2)] == ["clients", "orders orders-2 orders-3"]
    assert service.target("orders") is not None
    assert service.target("orders-2") is None
