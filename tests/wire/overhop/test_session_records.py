"""Overhop against a running broker: jobs - shown, listed, removed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.queues.moving import put_back
from tests.waiting import wait_until
from tests.wire.broker import Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec.names import Code, Type

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
    assert (
        worker.record(f"{name}:{uuid.upper()}")
        == worker.record(f"{name}:{uuid.replace('-', '')}")
        == worker.record(jid)
    )


def test_fields_that_a_queue_does_not_keep_are_gone_when_done(worker: Peer, store: Database) -> None:
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
    other.wait_for_stats(queue, new=2, active=2, completed=2, failed=2, delayed=2)
    found = {status: other.ask(Type.LSJOB, q=queue, status=status)["jobs"] for status in STATUSES}
    assert [job["jid"] for job in found["completed"]] == jids[:2]
    assert listed(other, queue, "failed") == [2, 3]
    assert listed(other, queue, "new") == [6, 7]
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


def test_a_page_of_results_too_large_for_an_envelope_is_refused(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 3)
    for jid in worker.enqueue_many(queue, [1, 2, 3]):
        worker.quest()
        worker.ask(Type.DONE, jid=jid, result=b"x" * (3 << 20))
    assert worker.refused(Type.LSJOB, q=queue, status="completed") is Code.INVALID_PAGE_SIZE
    assert len(worker.ask(Type.LSJOB, q=queue, status="completed", page_size=2)["jobs"]) == 2


def test_errors_of_jobs_count_towards_the_size_of_a_page(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 50)
    payload = b"x" * ((8 * 1024 * 1024 - 10_000) // 50)
    for jid in worker.enqueue_many(queue, [payload] * 50, max_attempts=1):
        worker.quest()
        worker.ask(Type.FAIL, jid=jid, error="\U0001f600" * 2000)
    assert worker.refused(Type.LSJOB, q=queue, status="failed", page_size=50) is Code.INVALID_PAGE_SIZE
    assert len(worker.ask(Type.LSJOB, q=queue, status="failed", page_size=40)["jobs"]) == 40


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
    worker.wait_for_stats(queue, new=1, delayed=2, failed=1, completed=1)
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


def test_an_operator_may_put_back_a_job_that_failed(
    worker: Peer, store: Database, queue: str, django_alias: str
) -> None:
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
