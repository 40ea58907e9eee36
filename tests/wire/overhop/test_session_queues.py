"""Overhop against a running broker: queues - made, shown, paused, removed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec.names import Code, Type

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"
STATUSES = {"new", "waiting", "delayed", "completed", "failed", "active"}


def test_addqueue_makes_a_queue_that_gqueue_shows(worker: Peer, other: Peer) -> None:
    answer = worker.ask(Type.ADDQUEUE, name="Orders_2-x")
    assert set(answer) == {"qid"}
    assert str(UUID(answer["qid"])) == answer["qid"]
    assert other.ask(Type.GQUEUE, q="Orders_2-x") == {
        "id": answer["qid"],
        "name": "Orders_2-x",
        "state": "running",
        "config": {"concurrency_limit": None, "allow_job_overrides": True},
    }


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({}, (None, True)),
        ({"concurrency_limit": None}, (None, True)),
        ({"concurrency_limit": 1}, (1, True)),
        ({"concurrency_limit": 2**31 - 1, "allow_job_overrides": False}, (2**31 - 1, False)),
    ],
)
def test_a_queue_has_the_configuration_it_was_made_with(
    worker: Peer, store: Database, config: dict[str, Any], shown: tuple[int | None, bool]
) -> None:
    name = make_queue(worker, store, config)
    limit, overrides = shown
    assert worker.ask(Type.GQUEUE, q=name)["config"] == {
        "concurrency_limit": limit,
        "allow_job_overrides": overrides,
    }


@pytest.mark.parametrize("name", ["a", "7", "A" * 255])
def test_a_queue_may_be_called(worker: Peer, name: str) -> None:
    worker.ask(Type.ADDQUEUE, name=name)
    assert worker.ask(Type.GQUEUE, q=name)["name"] == name


def test_a_name_is_taken_once(worker: Peer, other: Peer, queue: str) -> None:
    before = worker.ask(Type.GQUEUE, q=queue)
    assert other.refused(Type.ADDQUEUE, {"name": queue, "config": {"concurrency_limit": 3}}) is Code.DUPLICATE_QUEUE
    assert worker.ask(Type.GQUEUE, q=queue) == before


@pytest.mark.parametrize("name", ["nowhere", "", "a\0b", "x" * 1000, "any: näme"])
def test_gqueue_of_a_queue_that_is_not_there_is_empty(worker: Peer, name: str) -> None:
    assert worker.ask(Type.GQUEUE, q=name) == {}


def test_lqueues_shows_all_queues_by_name_and_the_systems_too(worker: Peer, queue: str) -> None:
    for name in ("zebra", "Zebra", "_not mine"[1:].replace(" ", "-"), "0first"):
        worker.ask(Type.ADDQUEUE, name=name)
    answer = worker.ask(Type.LQUEUES)
    assert set(answer) == {"queues"}
    names = [shown["name"] for shown in answer["queues"]]
    assert names == sorted(names)
    assert {"_system", "0first", "Zebra", "not-mine", "zebra", queue} <= set(names)
    assert names.index("0first") < names.index("Zebra") < names.index("_system") < names.index("not-mine")
    for shown in answer["queues"]:
        assert worker.ask(Type.GQUEUE, q=shown["name"]) == shown


def test_lqueues_knows_no_limit(worker: Peer, store: Database) -> None:
    before = len(worker.ask(Type.LQUEUES)["queues"])
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff)"
        " select 'many-' || n, gen_random_uuid(), 5, '1 s' from generate_series(1, 3000) n"
    )
    assert len(worker.ask(Type.LQUEUES)["queues"]) == before + 3000
    store.execute("delete from queues_queue where name like 'many-%%'")


# Removing.


def test_rmqueue_removes_an_empty_queue_and_its_name_is_free_again(worker: Peer, other: Peer, queue: str) -> None:
    first = worker.ask(Type.GQUEUE, q=queue)["id"]
    worker.enqueue(queue, "done")
    worker.do(queue, 1)
    assert worker.ask(Type.RMQUEUE, q=queue) == {}
    assert worker.ask(Type.GQUEUE, q=queue) == {}
    assert worker.refused(Type.RMQUEUE, q=queue) is Code.QUEUE_NOT_FOUND
    assert worker.refused(Type.ENQUEUE, q=queue) is Code.QUEUE_NOT_FOUND
    assert other.refused(Type.ENQUEUE, q=queue) is Code.QUEUE_NOT_FOUND
    assert worker.ask(Type.ADDQUEUE, name=queue)["qid"] != first
    jid = worker.enqueue(queue, "new life")
    assert worker.record(jid)["payload"] == "new life"
    assert worker.do(queue, 1) == ["new life"]


def test_a_subscriber_of_a_removed_queue_may_subscribe_to_its_successor(worker: Peer, queue: str) -> None:
    before = worker.subscribe(queue, 10)
    worker.ask(Type.RMQUEUE, q=queue)
    worker.ask(Type.ADDQUEUE, name=queue)
    after = worker.subscribe(queue, 1)
    assert after != before
    worker.enqueue(queue, 1)
    assert worker.quest()["sid"] == after


@pytest.mark.parametrize("options", [{}, {"scheduled_at": "2999-01-01T00:00:00Z"}])
def test_rmqueue_of_a_queue_with_a_job_is_refused(worker: Peer, queue: str, options: dict[str, Any]) -> None:
    jid = worker.enqueue(queue, 1, **options)
    assert worker.refused(Type.RMQUEUE, q=queue) is Code.QUEUE_NOT_EMPTY
    assert worker.record(jid)["payload"] == 1
    worker.ask(Type.RMJOB, jid=jid)
    worker.ask(Type.RMQUEUE, q=queue)


def test_rmqueue_of_a_queue_with_a_job_at_work_or_failed_is_refused(worker: Peer, queue: str) -> None:
    jid = worker.enqueue(queue, 1, max_attempts=1)
    worker.subscribe(queue, 1)
    worker.quest()
    assert worker.refused(Type.RMQUEUE, q=queue) is Code.QUEUE_NOT_EMPTY
    worker.ask(Type.FAIL, jid=jid)
    assert worker.refused(Type.RMQUEUE, q=queue) is Code.QUEUE_NOT_EMPTY
    worker.ask(Type.RMJOB, jid=jid)
    worker.ask(Type.RMQUEUE, q=queue)


# Pausing.


def test_a_paused_queue_takes_jobs_and_pushes_none(worker: Peer, other: Peer, queue: str) -> None:
    worker.subscribe(queue, 10)
    assert other.ask(Type.PAUSE, q=queue) == {}
    assert other.ask(Type.GQUEUE, q=queue)["state"] == "paused"
    other.enqueue(queue, 1)
    assert worker.no_quest()
    assert other.ask(Type.RESUME, q=queue) == {}
    assert other.ask(Type.GQUEUE, q=queue)["state"] == "running"
    assert worker.quest()["job_payload"] == 1


@pytest.mark.parametrize("round", range(5))
def test_nothing_is_pushed_once_pause_is_answered(worker: Peer, other: Peer, queue: str, round: int) -> None:
    worker.subscribe(queue, 1000)
    other.ask(Type.PAUSE, q=queue)
    other.enqueue_many(queue, list(range(50)))
    assert worker.no_quest()
    other.ask(Type.RESUME, q=queue)
    assert [quest["job_payload"] for quest in worker.quests(50)] == list(range(50))


def test_jobs_at_work_when_a_queue_is_paused_may_be_finished(worker: Peer, queue: str) -> None:
    jid = worker.enqueue(queue, 1)
    worker.subscribe(queue, 1)
    worker.quest()
    worker.ask(Type.PAUSE, q=queue)
    worker.ask(Type.DONE, jid=jid)
    assert worker.record(jid)["status"] == "completed"


def test_pausing_twice_and_resuming_twice_are_refused(worker: Peer, queue: str) -> None:
    assert worker.refused(Type.RESUME, q=queue) is Code.QUEUE_ALREADY_RUNNING
    worker.ask(Type.PAUSE, q=queue)
    assert worker.refused(Type.PAUSE, q=queue) is Code.QUEUE_ALREADY_PAUSED
    worker.ask(Type.RESUME, q=queue)
    assert worker.refused(Type.RESUME, q=queue) is Code.QUEUE_ALREADY_RUNNING


# Numbers.


def test_qstats_counts_the_jobs_of_each_status(worker: Peer, queue: str) -> None:
    assert worker.ask(Type.QSTATS, q=queue) == {"q": queue, "stats": dict.fromkeys(STATUSES, 0)}
    worker.enqueue(queue, 1)
    worker.enqueue(queue, 2, scheduled_at="2999-01-01T00:00:00Z")
    worker.enqueue(queue, 3, scheduled_at="2999-01-01T00:00:00Z")
    assert worker.stats(queue) == {"new": 1, "delayed": 2}
    worker.do(queue, 1)
    assert worker.stats(queue) == {"completed": 1, "delayed": 2}
    jid = worker.enqueue(queue, 4, max_attempts=1)
    worker.subscribe(queue, 1)
    worker.quest()
    assert worker.stats(queue) == {"completed": 1, "delayed": 2, "active": 1}
    worker.ask(Type.FAIL, jid=jid)
    assert worker.stats(queue) == {"completed": 1, "delayed": 2, "failed": 1}


def test_only_what_a_worker_has_is_active(worker: Peer, other: Peer, queue: str) -> None:
    jids = other.enqueue_many(queue, [1, 2, 3])
    worker.subscribe(queue, 1)
    worker.quest()
    later = other.enqueue(queue, 4)
    assert other.stats(queue)["active"] == 1
    other.wait_for_stats(queue, active=1, new=3)
    assert [other.record(jid)["status"] for jid in (*jids, later)] == ["active", "new", "new", "new"]
    for status, found in (("active", jids[:1]), ("new", [*jids[1:], later])):
        assert [job["jid"] for job in other.ask(Type.LSJOB, q=queue, status=status)["jobs"]] == found
    other.ask(Type.RMJOB, jid=jids[1])
    assert other.refused(Type.RMJOB, jid=jids[0]) is Code.JOB_STATUS_NOT_REMOVABLE


def test_status_shows_the_server(broker: Broker, worker: Peer, other: Peer, queue: str) -> None:
    worker.ask(Type.PAUSE, q=queue)
    answer = worker.ask(Type.STATUS)
    assert set(answer) == {"application", "memory", "pools", "storage", "queues"}
    assert answer["application"]["pid"] == broker.process.pid
    assert answer["application"]["uptime_seconds"] >= 0
    assert answer["memory"]["peak_rss_bytes"] > 1 << 20
    wait_until(lambda: worker.ask(Type.STATUS)["pools"] == {"anonymous": 0, "worker": 2})
    assert answer["storage"]["available"] is True
    shown = worker.ask(Type.LQUEUES)["queues"]
    paused = sum(queue["state"] == "paused" for queue in shown)
    assert answer["queues"] == {"total": len(shown), "paused": paused, "running": len(shown) - paused}
