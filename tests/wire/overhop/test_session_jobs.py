"""Overhop against a running broker: jobs - given with every option, shown, listed, removed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from queues.operations import put_back
from tests.wire.broker import Database, wait_until
from tests.wire.overhop.peer import Payload, Peer, make_queue
from wire.overhop.codec import Code, Type, format_timestamp

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


def test_scheduled_at_is_kept_to_within_100_ms(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 2)
    at = datetime.now(UTC) + timedelta(seconds=0.6)
    jid = worker.enqueue(queue, "later", scheduled_at=format_timestamp(at.astimezone()))
    worker.enqueue(queue, "at once")
    assert worker.quest()["job_payload"] == "at once"
    record = worker.record(jid)
    assert record["status"] == "delayed"
    assert abs(datetime.fromisoformat(record["execution_start_at"]) - at) < timedelta(milliseconds=5)
    assert worker.quest()["job_payload"] == "later"
    assert at <= datetime.now(UTC) <= at + timedelta(milliseconds=100)


def test_jobs_of_other_times_come_in_the_order_of_their_times(worker: Peer, other: Peer, queue: str) -> None:
    began = datetime.now(UTC)
    for n in (3, 1, 2):
        other.enqueue(queue, n, scheduled_at=(began + timedelta(seconds=0.3 + n / 5)).isoformat())
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
    worker.ask(Type.FAIL, jid=jid)
    failed = time.monotonic()
    assert worker.record(jid)["retry_interval_ms"] == 300
    quest = worker.quest()
    assert 0.25 < time.monotonic() - failed < 1
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
    worker.ask(Type.RMJOB, jid=jids[1])
    jids.append(worker.enqueue(queue, 3, key="k"))
    assert len(set(jids)) == 3
    assert worker.do(queue, 1) == [3]


def test_one_key_pipelined_among_other_jobs_is_one_job_and_answers_keep_their_order(worker: Peer, queue: str) -> None:
    rids = [worker.request(Type.ENQUEUE, {"q": queue, "job_payload": n} | ({"key": "k"} if n % 2 else {})) for n in range(40)]
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


# Showing.


def test_a_record_of_each_status(worker: Peer, queue: str) -> None:
    before = datetime.now(UTC)
    jid = worker.enqueue(queue, {"n": 1}, key="k", priority=2, max_attempts=4, retry_interval_ms=50)
    record = worker.record(jid)
    created = datetime.fromisoformat(record["created_at"])
    assert before - timedelta(seconds=1) < created < datetime.now(UTC) + timedelta(seconds=1)
    expected = {
        "uuid": jid.split(":")[1],
        "jid": jid,
        "queue_name": queue,
        "payload": {"n": 1},
        "status": "new",
        "execution_start_at": None,
        "max_attempts": 4,
        "retry_interval_ms": 50,
        "created_at": record["created_at"],
        "runtime": {"attempts_so_far": 0},
        "key": "k",
        "priority": 2,
    }
    assert record == expected
    worker.subscribe(queue, 2)
    worker.quest()
    assert worker.record(jid) == expected | {"status": "active", "runtime": {"attempts_so_far": 1}}
    worker.ask(Type.FAIL, jid=jid, error="no luck")
    worker.quest()
    again = worker.record(jid)
    assert (again["status"], again["error"], again["runtime"]["attempts_so_far"]) == ("active", "no luck", 2)
    worker.ask(Type.LOG, jid=jid, line="half way")
    worker.ask(Type.LOG, jid=jid, line="there")
    worker.ask(Type.DONE, jid=jid, result={"sum": [3, b"\xff"]})
    done = worker.record(jid)
    assert (done["status"], done["result"], done["log"]) == ("completed", {"sum": [3, b"\xff"]}, ["half way", "there"])
    assert done["runtime"]["attempts_so_far"] == 2
    assert done["created_at"] == record["created_at"]
    assert datetime.fromisoformat(done["finished_at"]) >= created
    assert (done["jid"], done["uuid"], done["key"]) == (jid, record["uuid"], "k")


def test_a_job_of_another_id_is_not_there(worker: Peer, store: Database, queue: str) -> None:
    jid = worker.enqueue(queue, 1)
    name, uuid = jid.split(":")
    somewhere = make_queue(worker, store)
    for missing in (f"{name}:{SID}", f"{somewhere}:{uuid}", f"nowhere:{uuid}", f"{name}:{SID[:8]}{uuid[8:]}"):
        assert worker.ask(Type.JOB, jid=missing) == {}
        assert worker.refused(Type.RMJOB, jid=missing) is Code.JOB_NOT_FOUND
    assert worker.record(f"{name}:{uuid.upper()}") == worker.record(f"{name}:{uuid.replace('-', '')}") == worker.record(jid)


def test_what_a_queue_does_not_keep_is_gone_when_done(worker: Peer, store: Database) -> None:
    for retention, kept in (("none", None), ("metadata", {"payload": None}), ("full", {"payload": "body"})):
        queue = make_queue(worker, store, retention=retention)
        jid = worker.enqueue(queue, "body")
        worker.do(queue, 1)
        record = worker.record(jid)
        assert record == {} if kept is None else (record["status"], record["payload"]) == ("completed", kept["payload"])


# Listing.


def test_lsjob_lists_each_status_and_pages_oldest_first(worker: Peer, other: Peer, queue: str) -> None:
    jids = other.enqueue_many(queue, list(range(8)), max_attempts=1)
    worker.subscribe(queue, 6)
    quests = worker.quests(6)
    for quest in quests[:2]:
        worker.ask(Type.DONE, jid=quest["jid"])
    for quest in quests[2:4]:
        worker.ask(Type.FAIL, jid=quest["jid"])
    for n in (10, 11):
        other.enqueue(queue, n, scheduled_at=LATER)
    found = {status: other.ask(Type.LSJOB, q=queue, status=status)["jobs"] for status in STATUSES}
    assert [job["jid"] for job in found["completed"]] == jids[:2]
    assert listed(other, queue, "failed") == [2, 3]
    assert listed(other, queue, "active") == [4, 5]
    assert listed(other, queue, "delayed") == [10, 11]
    assert found["waiting"] == []
    assert {job["runtime"]["attempts_so_far"] for job in found["failed"]} == {1}


def test_lsjob_pages(worker: Peer, queue: str) -> None:
    worker.enqueue_many(queue, list(range(40)))
    assert listed(worker, queue, "new") == list(range(15))
    assert listed(worker, queue, "new", page=2) == list(range(15, 30))
    assert listed(worker, queue, "new", page=3) == list(range(30, 40))
    assert listed(worker, queue, "new", page=4) == []
    assert listed(worker, queue, "new", page_size=100) == list(range(40))
    assert listed(worker, queue, "new", page_size=1, page=40) == [39]
    answer = worker.ask(Type.LSJOB, q=queue, status="new", page=7, page_size=9)
    assert (answer["page"], answer["page_size"]) == (7, 9)
    assert worker.refused(Type.LSJOB, q=queue, status="new", page=2**31 - 1) is Code.INVALID_PAGE


def test_a_page_too_large_for_an_envelope_is_refused_and_smaller_ones_are_not(worker: Peer, queue: str) -> None:
    payload = b"x" * (3 << 20)
    for _ in range(4):
        worker.enqueue(queue, payload)
    assert worker.refused(Type.LSJOB, q=queue, status="new") is Code.INVALID_PAGE_SIZE
    assert len(worker.ask(Type.LSJOB, q=queue, status="new", page_size=2)["jobs"]) == 2


# Removing.


def test_rmjob_removes_what_no_worker_has(worker: Peer, queue: str) -> None:
    jids = {
        "new": worker.enqueue(queue, max_attempts=1),
        "delayed": worker.enqueue(queue, scheduled_at=LATER),
        "urgent": worker.enqueue(queue, priority=3, scheduled_at=LATER),
    }
    sid = worker.subscribe(queue, 1)
    jids["failed"] = worker.quest()["jid"]
    worker.ask(Type.FAIL, jid=jids["failed"])
    jids["completed"] = worker.enqueue(queue)
    worker.ask(Type.CREDIT, sid=sid, credits=1)
    worker.quest()
    worker.ask(Type.LOG, jid=jids["completed"], line="gone soon")
    assert worker.refused(Type.RMJOB, jid=jids["completed"]) is Code.JOB_STATUS_NOT_REMOVABLE
    worker.ask(Type.DONE, jid=jids["completed"])
    worker.ask(Type.UNSUBSCRIBE, sid=sid)
    jids["new"] = worker.enqueue(queue)
    for status, jid in jids.items():
        assert worker.record(jid)["status"] == ("delayed" if status == "urgent" else status)
        assert worker.ask(Type.RMJOB, jid=jid) == {}
        assert worker.record(jid) == {}
        assert worker.refused(Type.RMJOB, jid=jid) is Code.JOB_NOT_FOUND
    assert {key: count for key, count in worker.stats(queue).items() if key != "completed"} == {}
    assert worker.ask(Type.RMQUEUE, q=queue) == {}


def test_a_removed_job_is_not_pushed(worker: Peer, other: Peer, queue: str) -> None:
    jids = other.enqueue_many(queue, [1, 2, 3])
    other.ask(Type.RMJOB, jid=jids[1])
    worker.subscribe(queue, 9)
    assert [quest["job_payload"] for quest in worker.quests(2)] == [1, 3]
    assert worker.no_quest()


def test_an_operator_may_put_back_a_job_that_failed(worker: Peer, store: Database, queue: str, django_alias: str) -> None:
    worker.subscribe(queue, 9)
    jid = worker.enqueue(queue, "again", max_attempts=1)
    worker.quest()
    worker.ask(Type.FAIL, jid=jid, error="broken")
    assert worker.record(jid)["status"] == "failed"
    assert put_back(queue, using=django_alias) == 1
    quest = worker.quest()
    assert (quest["jid"], quest["attempt"], quest["max_attempts"]) == (jid, 1, 1)
    worker.ask(Type.DONE, jid=jid)
    wait_until(lambda: worker.record(jid)["status"] == "completed")
