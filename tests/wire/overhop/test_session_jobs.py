"""Overhop against a running broker: jobs, given with every option."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.wire.broker import Database
from tests.wire.overhop.peer import Payload, Peer, make_queue
from wire.overhop.codec.names import Code, Type
from wire.overhop.codec.timestamps import format_timestamp

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"
LATER = "2999-01-01T00:00:00+00:00"
STATUSES = ("new", "waiting", "delayed", "completed", "failed", "active")


def listed(peer: Peer, queue: str, status: str, **options: Any) -> list[Any]:
    """The payloads of LSJOB's jobs; each is shown as JOB shows it."""
    answer = peer.ask(Type.LSJOB, {"q": queue, "status": status} | options)
    assert set(answer) == {"q", "status", "page", "page_size", "jobs"}
    assert (answer["q"], answer["status"]) == (queue, status)
    for job in answer["jobs"]:
        assert job["status"] == status
        record = peer.record(job["jid"])
        record.pop("log", None)
        assert record == job
    return [job["payload"] for job in answer["jobs"]]


# Giving.


@pytest.mark.parametrize(
    "payload", [0, -1, 2**63 - 1, "", "ü\0", b"", b"\xff\x00", True, False, [], {}, {"": None}, [{"a": [1, b"2"]}] * 20]
)
def test_a_payload_arrives_as_it_was_given(worker: Peer, queue: str, payload: Any) -> None:
    worker.subscribe(queue, 1)
    jid = worker.enqueue(queue, payload)
    received = worker.quest()["job_payload"]
    assert (received, type(received)) == (payload, type(payload))
    assert worker.record(jid)["payload"] == payload


def test_a_job_without_a_payload_has_nil(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    jid = worker.enqueue(queue)
    assert worker.quest()["job_payload"] is None
    assert worker.record(jid)["payload"] is None


def test_the_largest_payload_passes_and_one_byte_more_is_refused(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 2)
    largest = 8 * 1024 * 1024 - 2048 - 5  # the envelope, less what a QUEST needs, less the head of a bin
    worker.enqueue(queue, b"x" * largest)
    assert worker.quest()["job_payload"] == b"x" * largest
    assert worker.refused(Type.ENQUEUE, q=queue, job_payload=b"x" * (largest + 1)) is Code.INVALID_JOB_PAYLOAD
    assert worker.stats(queue) == {"active": 1}


def test_jobs_have_ids_of_their_own(worker: Peer, queue: str) -> None:
    jids = worker.enqueue_many(queue, list(range(100)))
    assert len(set(jids)) == 100
    for jid in jids:
        name, uuid = jid.split(":")
        assert (name, str(UUID(uuid))) == (queue, uuid)


def test_a_job_comes_when_it_is_scheduled_and_not_before(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 2)
    at = datetime.now(UTC) + timedelta(seconds=4)  # what comes before it here is not held up for so long
    jid = worker.enqueue(queue, "later", scheduled_at=format_timestamp(at.astimezone()))
    worker.enqueue(queue, "at once")
    assert worker.quest()["job_payload"] == "at once"
    record = worker.record(jid)
    assert record["status"] == "delayed"
    assert abs(datetime.fromisoformat(record["execution_start_at"]) - at) < timedelta(milliseconds=5)
    assert worker.quest()["job_payload"] == "later"
    assert at <= datetime.now(UTC)  # how much later that may be is measured in test_two_nodes.py, of many jobs


def test_jobs_of_other_times_come_in_the_order_of_their_times(worker: Peer, other: Peer, queue: str) -> None:
    began = datetime.now(UTC)
    for n in (3, 1, 2):
        other.enqueue(queue, n, scheduled_at=(began + timedelta(seconds=4 + n / 5)).isoformat())
    worker.subscribe(queue, 3)
    assert [quest["job_payload"] for quest in worker.quests(3)] == [1, 2, 3]


@pytest.mark.parametrize("at", ["1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "2020-02-29t23:59:60z"])
def test_a_job_scheduled_in_the_past_is_pushed_at_once(worker: Peer, queue: str, at: str) -> None:
    worker.subscribe(queue, 1)
    worker.enqueue(queue, at, scheduled_at=at)
    assert worker.quest()["job_payload"] == at


@pytest.mark.parametrize("at", ["2999-12-31T23:59:59.999999999+23:59", "9999-12-31T23:59:59Z"])
def test_a_job_may_be_scheduled_for_a_far_future(worker: Peer, queue: str, at: str) -> None:
    jid = worker.enqueue(queue, scheduled_at=at)
    assert worker.record(jid)["status"] == "delayed"


def test_a_job_may_have_attempts_and_an_interval_of_its_own(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 9)
    jid = worker.enqueue(queue, max_attempts=2, retry_interval_ms=300)
    quest = worker.quest()
    assert (quest["attempt"], quest["max_attempts"]) == (1, 2)
    before = time.monotonic()
    worker.ask(Type.FAIL, jid=jid)
    assert worker.record(jid)["retry_interval_ms"] == 300
    quest = worker.quest()
    assert time.monotonic() - before >= 0.3
    assert (quest["attempt"], quest["max_attempts"]) == (2, 2)
    worker.ask(Type.FAIL, jid=jid)
    assert worker.record(jid)["status"] == "failed"


def test_a_queue_may_ignore_what_a_job_would_have(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, {"allow_job_overrides": False}, max_attempts=3)
    worker.subscribe(queue, 9)
    jid = worker.enqueue(queue, "x", max_attempts=1, retry_interval_ms=2**31 - 1, priority=3)
    record = worker.record(jid)
    assert (record["max_attempts"], record["retry_interval_ms"]) == (3, 100)
    for attempt in (1, 2, 3):
        quest = worker.quest()
        assert (quest["attempt"], quest["max_attempts"]) == (attempt, 3)
        worker.ask(Type.FAIL, jid=jid)
    assert worker.record(jid)["status"] == "failed"
    for more in ({}, {"key": "k"}):
        jid = worker.enqueue(queue, "x", max_attempts=1, **more)
        assert worker.quest()["max_attempts"] == 3
        assert worker.record(jid)["max_attempts"] == 3
    assert worker.refused(Type.ENQUEUE, q=queue, max_attempts=0) is Code.INVALID_MAX_ATTEMPTS


def test_a_full_queue_refuses_and_takes_again_when_there_is_room(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, max_length=3)
    rids = [worker.request(Type.ENQUEUE, q=queue, job_payload=n) for n in range(5)]
    replies = [worker.reply(rid) for rid in rids]
    assert [reply.t for reply in replies] == [Type.OK] * 3 + [Type.ERR] * 2
    assert {reply.p["code"] for reply in replies[3:]} == {Code.QUEUE_FULL}
    assert worker.refused(Type.ENQUEUE, q=queue, key="k") is Code.QUEUE_FULL
    assert worker.do(queue, 1) == [0]
    worker.enqueue(queue, "fits")
    worker.wait_for_stats(queue, new=3, completed=1)
    assert listed(worker, queue, "new") == [1, 2, "fits"]


# Keys.


def test_a_key_names_one_unfinished_job(worker: Peer, other: Peer, store: Database, queue: str) -> None:
    jid = worker.enqueue(queue, 1, key="k")
    assert other.enqueue(queue, 2, key="k") == jid
    assert other.enqueue(queue, 2, key="k", priority=5, scheduled_at=LATER) == jid
    assert other.enqueue(queue, 3, key="K") != jid
    assert other.enqueue(make_queue(other, store), 4, key="k") != jid
    assert listed(worker, queue, "new") == [1, 3]
    assert worker.record(jid)["key"] == "k"


@pytest.mark.parametrize("status", ["delayed", "active", "retried", "failed", "urgent"])
def test_a_key_is_kept_as_long_as_its_job_is_not_done(worker: Peer, other: Peer, queue: str, status: str) -> None:
    options: Payload = {"scheduled_at": LATER} if status == "delayed" else {"priority": 9} if status == "urgent" else {}
    jid = worker.enqueue(queue, 1, key="k", max_attempts=1 if status == "failed" else 5, **options)
    if status in ("active", "retried", "failed"):
        worker.subscribe(queue, 1)
        worker.quest()
    if status in ("retried", "failed"):
        worker.ask(Type.FAIL, jid=jid, retry_in_ms=0)
    assert other.enqueue(queue, 2, key="k") == jid
    assert worker.record(jid)["payload"] == 1


def test_a_key_is_free_once_its_job_is_done_or_removed(worker: Peer, queue: str) -> None:
    jids = [worker.enqueue(queue, 1, key="k")]
    assert worker.do(queue, 1) == [1]
    jids.append(worker.enqueue(queue, 2, key="k"))
    worker.wait_for_stats(queue, new=1, completed=1)
    worker.ask(Type.RMJOB, jid=jids[1])
    jids.append(worker.enqueue(queue, 3, key="k"))
    assert len(set(jids)) == 3
    assert worker.do(queue, 1) == [3]


def test_one_key_pipelined_among_other_jobs_is_one_job_and_answers_keep_their_order(worker: Peer, queue: str) -> None:
    rids = [
        worker.request(Type.ENQUEUE, {"q": queue, "job_payload": n} | ({"key": "k"} if n % 2 else {}))
        for n in range(40)
    ]
    jids = [worker.reply(rid).p["jid"] for rid in rids]
    assert len(set(jids[0::2])) == 20
    assert len(set(jids[1::2])) == 1
    assert worker.stats(queue) == {"new": 21}


def test_done_and_the_same_key_in_one_go_make_a_new_job(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 1000)
    jid = worker.enqueue(queue, 0, key="k")
    for n in range(1, 20):
        assert worker.quest()["jid"] == jid
        done = worker.request(Type.DONE, jid=jid)
        again = worker.request(Type.ENQUEUE, q=queue, job_payload=n, key="k")
        assert worker.reply(done).t == Type.OK
        assert worker.reply(again).p["jid"] != jid
        jid = worker.ask(Type.ENQUEUE, q=queue, key="k")["jid"]
