"""Lines from IRC into a durable queue: each once, in order, none lost while the database is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from channels.db import database_sync_to_async

from hydra.recorder import Recorder
from hydra.storage.line_records import Line, is_recorded
from queues.api import QueueFull
from queues.backoff import Backoff
from queues.operations.queues import create_queue
from tests.hydra.rows import QUEUE, lines, stored
from tests.waiting import PATIENCE, until


class Slow:
    """A database that does what it is told, and when."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.troubles: list[Exception] = []
        self.recorded: list[Line] = []
        self.present: set[tuple[int, int]] = set()
        self.batches = 0
        self.stopped = False

    async def run(self, function: Callable[..., Any], queue: str, *args: Any) -> Any:
        if function is is_recorded:
            return tuple(args) in self.present
        self.batches += 1
        await self.ready.wait()
        if self.troubles:
            raise self.troubles.pop(0)
        batch = args[1]
        self.recorded += batch
        self.present |= {line[:2] for line in batch}
        return len(batch)

    async def stop(self) -> None:
        self.stopped = True


class Recording:
    """A recorder, its database and what it has told."""

    def __init__(self) -> None:
        self.happened: list[tuple[str, str]] = []
        self.recorder = Recorder(QUEUE, "alpha", lambda *what: self.happened.append(what))
        self.database = Slow()
        self.recorder._database = self.database  # type: ignore[assignment]

    def take(self, *given: Line) -> None:
        for line in given:
            self.recorder.take(*line)

    async def until(self, condition: Callable[[], Any]) -> None:
        await until(condition)


@pytest.fixture
async def recording(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Recording]:
    monkeypatch.setattr("hydra.recorder.RETRY", Backoff(0.001, 5.0))
    recording = Recording()
    yield recording
    recording.database.ready.set()
    await recording.recorder.stop(0)


async def test_lines_that_come_meanwhile_are_stored_together_and_in_order(recording: Recording) -> None:
    recording.database.ready.clear()
    recording.take(*lines(0))
    await recording.until(lambda: recording.database.batches)
    recording.take(*lines(1, 2, 3))
    recording.database.ready.set()
    await recording.until(lambda: len(recording.database.recorded) == 4)
    assert recording.database.recorded == lines(0, 1, 2, 3)
    assert recording.database.batches == 2


async def test_lines_wait_while_the_database_is_away_and_that_is_said_once(recording: Recording) -> None:
    recording.database.troubles = [ConnectionError("away"), ConnectionError("away"), QueueFull("full")]
    recording.take(*lines(0, 1))
    await recording.until(lambda: recording.database.recorded)
    assert recording.database.recorded == lines(0, 1)
    assert recording.happened == [("lines wait", f"{QUEUE}: away"), ("lines wait", f"{QUEUE}: The queue is full: full")]


async def test_a_line_that_cannot_be_stored_for_an_unforeseen_reason_is_given_up_alone(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording.database.run

    async def choosy(function: Callable[..., Any], queue: str, *args: Any) -> Any:
        if function is not is_recorded and any(line[1] == 5 for line in args[1]):
            raise ValueError("unforeseen")
        return await run(function, queue, *args)

    monkeypatch.setattr(recording.database, "run", choosy)
    recording.take(*lines(*range(12)))
    await recording.until(lambda: len(recording.database.recorded) == 11)
    assert recording.database.recorded == lines(*(idx for idx in range(12) if idx != 5))
    assert [what for what in recording.happened if what[0] == "fault"] == [
        ("fault", "hydra.recv: term 3, 5 was given up: ValueError: unforeseen")
    ]


async def test_the_first_line_of_a_newcomer_waits_for_the_one_before_it(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.recorder.PREDECESSOR", 3600.0)
    recording.take(*lines(5, 6))
    await asyncio.sleep(0.02)
    assert recording.database.recorded == []
    recording.database.present.add((3, 4))
    await recording.until(lambda: recording.database.recorded)
    assert recording.database.recorded == lines(5, 6)


async def test_a_newcomer_does_not_wait_for_ever(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydra.recorder.PREDECESSOR", 0.01)
    recording.take(*lines(5))
    await recording.until(lambda: recording.database.recorded)


async def test_the_oldest_lines_are_given_up_and_no_others_when_too_many_wait(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydra.recorder.MAX_WAITING", 3)
    recording.database.ready.clear()
    recording.take(*lines(0, 1))
    await recording.until(lambda: recording.database.batches)  # with these two
    recording.take(*lines(2, 3, 4))
    assert [kind for kind, _ in recording.happened] == ["line lost", "line lost"]
    recording.database.ready.set()
    await recording.until(lambda: len(recording.database.recorded) == 5)
    assert recording.database.recorded == lines(0, 1, 2, 3, 4)
    await recording.recorder.stop(PATIENCE)


async def test_waiting_lines_are_stored_before_the_end(recording: Recording) -> None:
    recording.take(*lines(*range(2500)))
    await recording.recorder.stop(PATIENCE)
    assert len(recording.database.recorded) == 2500
    assert recording.database.stopped


async def test_a_database_that_does_not_answer_does_not_hold_up_the_end(recording: Recording) -> None:
    recording.database.ready.clear()
    recording.take(*lines(0))
    await recording.recorder.stop(0.01)
    assert recording.database.recorded == []


@pytest.mark.django_db(transaction=True)
async def test_lines_arrive_in_a_real_queue() -> None:
    await database_sync_to_async(create_queue)(QUEUE)
    recorder = Recorder(QUEUE, "alpha", lambda *what: None)
    for line in lines(0, 1, 2):
        recorder.take(*line)
    await recorder.stop(PATIENCE)
    assert await database_sync_to_async(stored)() == lines(0, 1, 2)
