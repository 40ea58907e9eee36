"""What many queues cost by the clock."""

from __future__ import annotations

import time

import pytest

from queues.engine import Engine, QueueBuffer
from queues.engine.deadlines import Agenda
from tests.queues.engine.conftest import Producer, Store, Waiting


def test_an_agenda_gives_each_thing_once_at_its_earliest_time() -> None:
    agenda: Agenda[str] = Agenda()
    for thing, at in (("a", 5.0), ("b", 2.0), ("a", 3.0), ("b", 9.0), ("c", 4.0)):
        agenda.at(thing, at)
    assert agenda.due(1.9) == []
    assert agenda.due(3.5) == ["b", "a"]
    agenda.at("a", 8.0)
    assert agenda.due(7.0) == ["c"]
    assert (agenda.due(10.0), agenda.due(10.0), len(agenda)) == (["a"], [], 0)


async def test_idle_queues_with_consumers_are_not_looked_at_each_time(
    engine: Engine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffers = []
    for n in range(50):
        store.queue(f"q{n}")
        buffers.append(await engine.queue(f"q{n}"))
        buffers[-1].wait(Waiting())
    await store.until(lambda: all(buffer.interested and not buffer.backlog for buffer in buffers), "all are served")
    assert store.rows("select count(*) from queues_interest")[0]["count"] == 50
    looked: list[QueueBuffer] = []
    monkeypatch.setattr(QueueBuffer, "is_cold", lambda buffer, now: looked.append(buffer))
    monkeypatch.setattr("queues.engine.buffer.COLD", 3600.0)
    soon = time.monotonic() + 60
    engine.maintenance._cold(engine.settler, soon)
    first = len(looked)
    for n in range(100):
        engine.maintenance._cold(engine.settler, soon + n * 0.1)
    assert (first, len(looked)) == (50, 50)


async def test_only_queues_with_deadlines_are_looked_at(engine: Engine, store: Store) -> None:
    names = [f"q{n}" for n in range(20)]
    for name in names:
        store.queue(name, ack_timeout="3600 s")
    buffers = [await engine.queue(name) for name in names]
    await Producer(engine).publish("q0", b"x")
    await store.until(lambda: buffers[0].deliver_many(time.monotonic(), 1), "the delivery")
    assert len(engine.settler.timed) == 1
    assert engine.settler.timed.due(time.monotonic() + 3000) == []
    assert engine.settler.timed.due(time.monotonic() + 4000) == [buffers[0]]
