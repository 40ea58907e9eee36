"""The shared part of Overhop's connections, with a double in place of the engine."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from queues.engine.api import Destination, Grant
from queues.engine.message import Counts
from queues.permissions.rules import Operation
from tests.waiting import PATIENCE
from wire.overhop.codec.fields import DomainError
from wire.overhop.codec.names import Code
from wire.overhop.service import OverhopOptions, OverhopService
from wire.unconfirmed import UnconfirmedByClient

BEFORE = Grant(1, "clients", ("overhop",), ("*",), ("*",), ())
LIMITED = Grant(1, "clients", ("overhop",), ("orders*",), (), ())
AFTER = Grant(1, "clients", ("overhop",), (), (), ())


class FakeEngine:
    """Answers what it is told to; `asked` says what for."""

    node = 1
    options = SimpleNamespace()

    def __init__(self) -> None:
        self.on_key_change: list[Any] = []
        self.answers: list[Any] = []
        self.published: list[tuple[Destination, int | None]] = []
        self.asked = asyncio.Queue[str]()
        self.counts = Counts()

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

    def publisher(self, destination: Destination, key: int | None) -> Any:
        self.published.append((destination, key))
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


async def test_only_workers_whose_state_may_have_changed_are_looked_at(
    engine: FakeEngine, service: OverhopService, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[list[str], list[str]]] = []
    looks = 0

    async def request(name: str, node: int, workers: str, gone: list[str]) -> None:
        told.append(([each["wid"] for each in json.loads(workers)], gone))

    async def sleep(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            workers["2"].version = 1
        elif looks == 4:
            service.disconnected(workers["1"], "1")
        elif looks == 5:
            engine.node = 2  # what the store was told is gone with the node before
        elif looks == 7:
            raise asyncio.CancelledError

    monkeypatch.setattr("wire.overhop.service.asyncio.sleep", sleep)
    monkeypatch.setattr(engine, "request", request)
    workers = {wid: Mock(version=0) for wid in "12"}
    for wid, worker in workers.items():
        worker.snapshot.return_value = {"wid": wid}
        service.registered(worker, wid)
    with pytest.raises(asyncio.CancelledError):
        await service._write_snapshots()
    assert told == [(["1", "2"], []), (["2"], []), ([], ["1"]), (["2"], [])]
    assert [worker.snapshot.call_count for worker in workers.values()] == [1, 3]


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
    worker = Mock()
    worker.snapshot.return_value = {"wid": "1"}
    service.registered(worker, "1")
    engine.answers = [None, None]
    with pytest.raises(asyncio.CancelledError):
        await service._write_snapshots()
    assert pauses == [1.0, 1.0, pytest.approx(5.0)]


async def test_queues_are_not_looked_up_to_give_jobs_to_them(engine: FakeEngine, service: OverhopService) -> None:
    assert service.publisher("orders") is None  # permissions are to be looked up first
    engine.answers = [LIMITED, AFTER]
    await service.permissions()
    publisher = service.publisher("orders")
    assert publisher is not None
    assert service.publisher("orders") is publisher
    with pytest.raises(DomainError) as refused:
        service.publisher("secret")
    assert refused.value.code is Code.FORBIDDEN
    assert engine.published == [(Destination("queue", b"orders"), LIMITED.id)]
    for told in engine.on_key_change:
        told(1)
    assert service.publisher("orders") is None
    await service.permissions()
    with pytest.raises(DomainError):
        service.publisher("orders")


async def test_names_that_no_queue_can_have_are_not_remembered(
    engine: FakeEngine, service: OverhopService, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.answers = [BEFORE]
    await service.permissions()
    first, long = "q" * 255, "q" * 256
    assert service.publisher(first) is service.publisher(first)
    assert service.publisher(long) is not service.publisher(long)
    monkeypatch.setattr("wire.overhop.service.MAX_PUBLISHERS", 2)
    kept = service.publisher(first)
    service.publisher("second")
    assert service.publisher(first) is kept
    service.publisher("third")
    assert service.publisher(first) is not kept
