"""Frames sent to a worker, with a double in place of the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from queues.engine.api import Content, PrefetchedQueue, PushRun
from queues.engine.message import Detail
from wire.overhop.assignments import Assignments, Pushed
from wire.overhop.codec.decoder import Decoder
from wire.overhop.codec.names import Type
from wire.overhop.delivery import Consumer, Deliveries


class Owner:
    """A session that keeps what it is to send."""

    def __init__(self) -> None:
        self.failures = self.changes = 0
        self.connection: Any = SimpleNamespace(name="overhop 10.0.0.1:7", listener=self, log_fields={})
        self.client: Any = None
        self.assignments = Assignments[Consumer]()
        self.sent = b""

    def session_failed(self, _: str) -> bool:
        self.failures += 1
        return True

    def send_quests(self, frames: list[bytes | bytearray], count: int) -> None:
        self.sent += b"".join(frames)

    def note_change(self) -> None:
        self.changes += 1


class Buffer:
    """A queue that notes what becomes a dead letter."""

    def __init__(self) -> None:
        self.policy = SimpleNamespace(max_attempts=5, uuid=str(UUID(int=1)))
        self.deliveries = self
        self.buried: dict[int, str] = {}

    def bury(self, tag: int, error: str) -> None:
        self.buried[tag] = error


def test_a_job_whose_payload_fails_in_an_unforeseen_way_becomes_a_dead_letter_and_the_next_is_delivered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(payload: bytes, content: Content | None) -> bytes:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("wire.overhop.delivery.payload_value", fail)
    owner, buffer = Owner(), Buffer()
    consumer = Consumer(cast(Deliveries, owner), "q", cast(PrefetchedQueue, buffer), 1000, None)
    msgpack = Detail(content=Content.MSGPACK)
    consumer.push([PushRun((1,), (11,), [b"{}"], 0, None), PushRun((2,), (12,), [b"\x07"], 0, msgpack)], None)
    assert buffer.buried == {1: "it cannot be delivered: ZeroDivisionError"}
    (quest,) = Decoder.for_client().feed(owner.sent)
    assert (quest.t, quest.p["job_payload"]) == (Type.QUEST, 7)
    assert owner.failures == 1
    [record] = caplog.records
    assert record.getMessage() == "overhop 10.0.0.1:7: message 11 of q cannot be delivered"


def test_what_is_taken_from_a_worker_without_its_doing_changes_its_snapshot() -> None:
    owner = Owner()
    consumer = Consumer(cast(Deliveries, owner), "q", cast(PrefetchedQueue, Buffer()), 1000, None)
    owner.assignments.add(Pushed(consumer, 1, 0.0, 1.0), [5], [b"q:1"])
    consumer.expired([5])
    assert (owner.changes, len(owner.assignments)) == (1, 0)
    consumer.refuse()  # its queue is gone, and its credits with it
    assert owner.changes == 2
