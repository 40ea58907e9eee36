"""Overhop against a running broker: workers that go, what becomes of their jobs, and how many may be at work."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec.names import Type

SOON = timedelta(seconds=0.3)


# A worker that goes.


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_a_worker_that_disconnects_leaves_its_jobs_to_others(
    broker: Broker, other: Peer, store: Database, how: str
) -> None:
    queue = make_queue(other, store, retry_backoff=timedelta(seconds=0.2))
    leaver = Peer(broker.overhop)
    leaver.subscribe(queue, 2)
    jids = other.enqueue_many(queue, [1, 2, 3])
    leaver.quests(2)
    leaver.ask(Type.ACK, jid=jids[0])
    other.subscribe(queue, 9)
    assert other.quest()["job_payload"] == 3
    gone = time.monotonic()
    if how == "reset":
        leaver.reset()
    elif how == "half-close":
        leaver.end_of_input()
        leaver.ended()
    leaver.close()
    quests = other.quests(2)
    assert time.monotonic() - gone >= 0.2
    assert [(quest["jid"], quest["attempt"]) for quest in quests] == [(jids[0], 2), (jids[1], 2)]
    assert other.record(jids[0])["error"] == "the worker disconnected"


def test_a_worker_that_disconnects_at_the_last_attempt_fails_its_job(broker: Broker, other: Peer, queue: str) -> None:
    with Peer(broker.overhop) as leaver:
        leaver.subscribe(queue, 1)
        jid = other.enqueue(queue, max_attempts=1)
        leaver.quest()
    wait_until(lambda: other.record(jid)["status"] == "failed")


def test_goodbye_hands_everything_back_at_once_and_costs_no_attempt(
    broker: Broker, other: Peer, store: Database
) -> None:
    queue = make_queue(other, store, retry_backoff=timedelta(hours=1))
    with Peer(broker.overhop) as leaver:
        leaver.subscribe(queue, 2)
        other.enqueue_many(queue, [1, 2, 3])
        jids = [quest["jid"] for quest in leaver.quests(2)]
        assert leaver.ask(Type.GOODBYE, reason="closing time") == {}
        leaver.ended()
    other.subscribe(queue, 9)
    quests = other.quests(3)
    assert [quest["job_payload"] for quest in quests] == [1, 2, 3]
    assert [(quest["jid"], quest["attempt"]) for quest in quests[:2]] == [(jid, 1) for jid in jids]


def test_jobs_finished_before_goodbye_are_finished(worker: Peer, other: Peer, queue: str) -> None:
    worker.subscribe(queue, 3)
    jids = other.enqueue_many(queue, [1, 2, 3])
    worker.quests(3)
    rids = [worker.request(Type.DONE, jid=jids[0]), worker.request(Type.FAIL, jid=jids[1], retry_in_ms=3_600_000)]
    rids.append(worker.request(Type.GOODBYE))
    worker.request(Type.PING)
    assert [worker.read().rid for _ in rids] == rids
    worker.ended()
    assert [other.record(jid)["status"] for jid in jids[:2]] == ["completed", "delayed"]
    other.wait_for_stats(queue, completed=1, delayed=1, new=1)


def test_after_the_end_of_its_input_a_client_is_answered_and_what_it_was_given_goes_to_others(
    worker: Peer, other: Peer, queue: str
) -> None:
    worker.subscribe(queue, 5)
    rids = [
        worker.request(Type.PAUSE, q=queue),
        worker.request(Type.ENQUEUE, q=queue),
        worker.request(Type.RESUME, q=queue),
    ]
    rids += [worker.request(Type.GQUEUE, q=queue), worker.request(Type.PING)]
    worker.end_of_input()
    for rid in rids:
        worker.reply(rid)
    worker.rest()
    other.subscribe(queue, 1)
    assert other.quest()["attempt"] in (1, 2)


# Limits.


def test_a_concurrency_limit_holds_over_all_workers(broker: Broker, worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store, {"concurrency_limit": 2})
    with Peer(broker.overhop) as producer:
        producer.enqueue_many(queue, list(range(6)))
        for peer in (worker, other):
            peer.subscribe(queue, 9)
        done: list[int] = []
        while len(done) < 6:
            wait_until(lambda: producer.stats(queue).get("active") == min(2, 6 - len(done)))
            for peer in (worker, other):
                peer.ask(Type.PING)
            assert len(worker.pushed) + len(other.pushed) == min(2, 6 - len(done))
            peer = worker if worker.pushed else other
            quest = peer.quest()
            peer.ask(Type.DONE, jid=quest["jid"])
            done.append(quest["job_payload"])
        assert sorted(done) == list(range(6))


@pytest.mark.parametrize("how", ["DONE", "FAIL", "its deadline", "GOODBYE", "the connection's end"])
def test_a_place_under_a_concurrency_limit_is_free_again_after(
    broker: Broker, worker: Peer, other: Peer, store: Database, how: str
) -> None:
    timeout = SOON if how == "its deadline" else None
    queue = make_queue(worker, store, {"concurrency_limit": 1}, retry_backoff=timedelta(hours=1), ack_timeout=timeout)
    worker.enqueue_many(queue, ["first", "second"])
    with Peer(broker.overhop) as first:
        first.subscribe(queue, 1)
        jid = first.quest()["jid"]
        other.subscribe(queue, 1)
        assert how == "its deadline" or other.no_quest()
        if how == "DONE":
            first.ask(Type.DONE, jid=jid)
        elif how == "FAIL":
            first.ask(Type.FAIL, jid=jid)
        elif how == "GOODBYE":
            first.ask(Type.GOODBYE)
        elif how == "the connection's end":
            first.close()
        assert other.quest()["job_payload"] == ("first" if how == "GOODBYE" else "second")
