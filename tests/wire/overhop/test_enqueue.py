"""Answers to jobs, however the engine takes their publishes apart."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID

import pytest

from queues.engine.api import Publisher, QueueFull, StoreUnavailable
from wire.overhop.codec.encoder import err, ok
from wire.overhop.codec.fields import forbidden
from wire.overhop.codec.names import Code
from wire.overhop.codec.runs import JobRun
from wire.overhop.enqueue import Enqueuer
from wire.overhop.payloads import JobNames

QUEUE: Any = SimpleNamespace(id=1, uuid=str(UUID(int=1)))
NAMES = JobNames("q", QUEUE.uuid)


class Rig:
    """An enqueuer, the tokens that it gives to the engine, and the replies that it fills in."""

    def __init__(self) -> None:
        self.tokens: list[Any] = []
        self.parts: list[bytes] = [b"earlier"]
        service: Any = SimpleNamespace(
            engine=SimpleNamespace(open_batch=1), largest_payload=100, publisher=self._found
        )
        self._known = {"q": self._publisher(), "unknown yet": None}
        replies: Any = SimpleNamespace(follow_batch=Mock(), begin=lambda: self.parts)
        self.enqueuer = Enqueuer(Mock(), service, replies, Mock(), Mock())

    def _publisher(self) -> Publisher:
        def publish(bodies: list[bytes], content: int, producer: Any, tokens: list[Any]) -> None:
            self.tokens += tokens

        return cast(Publisher, SimpleNamespace(publish_many_answered=publish))

    def _found(self, q: str) -> Publisher | None:
        if q not in self._known:
            raise forbidden(q, "out of reach")
        return self._known[q]

    def publish(self, *rids: str) -> None:
        run = JobRun("q", [rid.encode() for rid in rids], [b"\x80"] * len(rids))
        assert self.enqueuer.publish_run(run)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def oks(rids: Sequence[str], ids: Sequence[int]) -> list[bytes]:
    return [ok(rid, {"jid": NAMES.jid(id)}) for rid, id in zip(rids, ids, strict=True)]


@pytest.mark.parametrize("ids", [range(4090, 4102), range(5000, 5036, 3), [*range(9000, 9011), 5000]])
@pytest.mark.parametrize("cuts", [[], [1], [5], [3, 7, 11], list(range(1, 12))])
def test_each_job_is_answered_in_its_place(rig: Rig, ids: Sequence[int], cuts: list[int]) -> None:
    rids = [*"aaaaa", *"bbccd", *"zz"]
    rig.publish(*rids[:5])
    rig.publish(*rids[5:10])
    rig.publish(*rids[10:])
    for start, stop in reversed(list(zip([0, *cuts], [*cuts, 12], strict=True))):
        rig.enqueuer.published(rig.tokens[start:stop], ids[start:stop], QUEUE)
    assert b"".join(rig.parts) == b"".join([b"earlier", *oks(rids, ids)])


def test_a_job_that_is_not_stored_is_refused_in_its_place(rig: Rig) -> None:
    rig.publish(*"abcde")
    rig.enqueuer.published([rig.tokens[n] for n in (0, 2, 4)], [5000, 5001, 5002], QUEUE)
    rig.enqueuer.publish_failed(rig.tokens[3], StoreUnavailable())
    rig.enqueuer.publish_failed(rig.tokens[1], QueueFull())
    stored = oks("ace", [5000, 5001, 5002])
    full, away = err("b", Code.QUEUE_FULL, str(QueueFull())), err("d", Code.UNAVAILABLE, str(StoreUnavailable()))
    assert b"".join(rig.parts) == b"".join([b"earlier", stored[0], full, stored[1], away, stored[2]])


def test_the_jobs_of_a_queue_that_is_made_anew_have_its_new_names(rig: Rig) -> None:
    rig.publish("a", "b")
    anew: Any = SimpleNamespace(id=2, uuid=str(UUID(int=2 << 96)))
    rig.enqueuer.published([rig.tokens[0]], [5000], QUEUE)
    rig.enqueuer.published([rig.tokens[1]], [5001], anew)
    names = JobNames("q", anew.uuid)
    stored = ok("a", {"jid": NAMES.jid(5000)}), ok("b", {"jid": names.jid(5001)})
    assert b"".join(rig.parts) == b"".join([b"earlier", *stored])
    assert NAMES.jid(5001) != names.jid(5001)


def test_a_run_that_is_out_of_reach_or_has_a_large_job_is_left_to_others(rig: Rig) -> None:
    assert not rig.enqueuer.publish_run(JobRun("other", [b"r"], [b"\x80"]))
    assert not rig.enqueuer.publish_run(JobRun("unknown yet", [b"r"], [b"\x80"]))
    assert not rig.enqueuer.publish_run(JobRun("q", [b"r"] * 2, [b"\x80", bytes(101)]))
    assert rig.tokens == []
