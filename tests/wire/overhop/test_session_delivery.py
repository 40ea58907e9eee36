"""Overhop against a running broker: what workers say about their jobs, and deadlines."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from tests.queues.moving import put_back
from tests.waiting import wait_until
from tests.wire.broker import Database
from tests.wire.overhop.peer import Peer, change_policy, error_code, make_queue
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type

SOON = timedelta(seconds=0.3)
LATE_ENOUGH = timedelta(seconds=4)
"""A deadline for what has to be done before: a process may be held up for a while."""
OF_A_JOB = (Type.ACK, Type.BEAT, Type.DONE, Type.FAIL)


def given(worker: Peer, producer: Peer, queue: str, **options: object) -> str:
    """A job that this worker, who has subscribed, is given; its jid."""
    jid = producer.enqueue(queue, **options)
    quest = worker.quest()
    assert (quest["jid"], quest["attempt"]) == (jid, 1)
    return jid


# Workers' messages.


def test_ack_done(worker: Peer, other: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    jid = given(worker, other, queue)
    assert worker.ask(Type.ACK, jid=jid) == {}
    assert other.record(jid)["status"] == "active"
    assert worker.ask(Type.DONE, jid=jid) == {}
    assert other.record(jid)["status"] == "completed"
    for t in OF_A_JOB:
        assert worker.refused(t, jid=jid) is Code.JOB_NOT_FOUND
    assert worker.refused(Type.LOG, jid=jid, line="late") is Code.JOB_NOT_FOUND


def test_done_needs_no_ack_and_may_have_any_result(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 9)
    results: list[Any] = [0, False, "ü", b"\xff", [None], {"a": {"b": []}}]
    for result in results:
        jid = given(worker, worker, queue)
        worker.ask(Type.DONE, jid=jid, result=result)
        kept = worker.record(jid)["result"]
        assert (kept, type(kept)) == (result, type(result))


def test_a_job_is_settled_by_its_worker_alone(worker: Peer, other: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    jid = given(worker, other, queue)
    for t in OF_A_JOB:
        assert other.refused(t, jid=jid) is Code.JOB_NOT_FOUND
    assert other.refused(Type.LOG, jid=jid, line="x") is Code.JOB_NOT_FOUND
    worker.ask(Type.DONE, jid=jid)


def test_fail_gives_another_attempt_after_the_backoff_which_doubles(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, retry_backoff=timedelta(minutes=10), max_attempts=3)
    worker.subscribe(queue, 9)
    jid = given(worker, worker, queue)
    for attempt, pause in ((2, timedelta(minutes=10)), (3, timedelta(minutes=20))):
        before = datetime.now(UTC)
        worker.ask(Type.FAIL, jid=jid, error=f"failure {attempt - 1}")
        after = datetime.now(UTC)
        record = worker.record(jid)
        assert (record["status"], record["error"]) == ("delayed", f"failure {attempt - 1}")
        assert before + pause <= datetime.fromisoformat(record["execution_start_at"]) <= after + pause
        store.execute("update queues_message set due_at = now() where queue_id = %s", store.queue(queue))
        quest = worker.quest()
        assert (quest["jid"], quest["attempt"]) == (jid, attempt)
    worker.ask(Type.FAIL, jid=jid, error="the last")
    record = worker.record(jid)
    assert (record["status"], record["error"], record["runtime"]["attempts_so_far"]) == ("failed", "the last", 3)
    assert worker.no_quest()


def test_fail_may_say_when_to_try_again(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, retry_backoff=timedelta(hours=1))
    worker.subscribe(queue, 9)
    jid = given(worker, worker, queue)
    worker.ask(Type.FAIL, jid=jid, retry_in_ms=0)
    assert worker.quest()["attempt"] == 2
    before = time.monotonic()
    worker.ask(Type.FAIL, jid=jid, retry_in_ms=300)
    assert worker.quest()["attempt"] == 3  # and not after an hour
    assert time.monotonic() - before >= 0.3
    worker.ask(Type.FAIL, jid=jid)
    assert worker.record(jid)["status"] == "delayed"
    due = datetime.fromisoformat(worker.record(jid)["execution_start_at"])
    assert timedelta(minutes=50) < due - datetime.now(UTC) < timedelta(hours=9)


def test_a_failed_job_goes_behind_those_that_wait(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 1)
    jid = given(worker, other, queue)
    other.enqueue_many(queue, ["a", "b"])
    worker.ask(Type.FAIL, jid=jid, retry_in_ms=0)
    other.wait_for_stats(queue, new=3)  # none is in memory, or on its way back from there
    worker.ask(Type.CREDIT, sid=sid, credits=3)
    assert [quest["job_payload"] for quest in worker.quests(3)] == ["a", "b", None]


def test_a_log_is_kept_with_its_job_and_bounded(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 9)
    jid = given(worker, worker, queue)
    for line in ("first", "", "ü\0", "x" * 5000):
        assert worker.ask(Type.LOG, jid=jid, line=line) == {}
    assert worker.record(jid)["log"] == ["first", "", "ü\ufffd", "x" * 2000]
    worker.ask(Type.FAIL, jid=jid, retry_in_ms=0)
    worker.quest()
    worker.ask(Type.LOG, jid=jid, line="second attempt")
    assert worker.record(jid)["log"][-1] == "second attempt"
    rids = [worker.request(Type.LOG, jid=jid, line=str(n)) for n in range(210)]
    assert all(worker.reply(rid).t == Type.OK for rid in rids)
    worker.ask(Type.DONE, jid=jid)
    assert worker.record(jid)["log"] == [str(n) for n in range(10, 210)]


def test_an_error_text_is_kept_and_bounded(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    jid = given(worker, worker, queue)
    worker.ask(Type.FAIL, jid=jid, error="\0" + "é" * 5000, retry_in_ms=2**31 - 1)
    assert worker.record(jid)["error"] == "\ufffd" + "é" * 1999


def test_a_job_is_finished_once_also_in_one_go(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    jid = given(worker, worker, queue)
    rids = [worker.request(t, jid=jid) for t in (Type.DONE, Type.DONE, Type.FAIL, Type.BEAT)]
    replies = [worker.reply(rid) for rid in rids]
    assert replies[0].t == Type.OK
    assert [error_code(reply) for reply in replies[1:]] == [Code.JOB_NOT_FOUND] * 3
    assert worker.stats(queue) == {"completed": 1}


def test_jobs_of_several_queues_finished_in_one_packet_are_answered_each_in_its_turn(
    worker: Peer, other: Peer, store: Database, queue: str
) -> None:
    queues = [queue, make_queue(worker, store)]
    jids = []
    for name in queues:
        worker.subscribe(name, 10)
        jids += other.enqueue_many(name, list(range(10)))
    worker.quests(20)
    random.Random(3).shuffle(jids)
    wrong = [f"{queue}:{UUID(int=0)}", jids[0].upper(), jids[4]]  # unknown, of another queue, done already
    order = [*jids[:5], wrong[0], *jids[5:12], wrong[1], wrong[2], *jids[12:]]
    frames = [encoder.encode(Type.DONE, jid, {"jid": jid}) for jid in order]
    frames[3] = encoder.encode(Type.DONE, order[3], {"jid": order[3], "result": "with"})
    worker.send(*frames)
    replies = [worker.reply(jid) for jid in order]
    assert [reply.rid for reply in replies if reply.t == Type.ERR] == wrong
    assert {error_code(reply) for reply in replies if reply.t == Type.ERR} == {Code.JOB_NOT_FOUND}
    assert [worker.stats(name) for name in queues] == [{"completed": 10}] * 2
    assert worker.record(order[3])["result"] == "with"


def test_a_queue_may_have_another_for_its_dead_letters(worker: Peer, store: Database, queue: str) -> None:
    source = make_queue(worker, store, dead_letter_queue_id=store.queue(queue))
    worker.subscribe(source, 1)
    jid = given(worker, worker, source, job_payload={"n": 1}, max_attempts=1)
    worker.subscribe(queue, 1)
    worker.ask(Type.FAIL, jid=jid)
    quest = worker.quest()
    assert (quest["q"], quest["attempt"]) == (queue, 1)
    assert quest["jid"].startswith(queue + ":")
    worker.ask(Type.DONE, jid=quest["jid"])
    assert worker.stats(source) == {}
    assert quest["job_payload"] == {"n": 1}


# Deadlines.


def test_a_job_not_done_by_its_deadline_comes_again_after_the_backoff(
    worker: Peer, other: Peer, store: Database
) -> None:
    queue = make_queue(worker, store, ack_timeout=SOON, retry_backoff=timedelta(seconds=0.2))
    worker.subscribe(queue, 1)
    jid = other.enqueue(queue)
    deadline = datetime.fromisoformat(worker.quest()["deadline"])
    worker.reply(worker.request(Type.ACK, jid=jid))  # which moves nothing, even if it comes in time
    change_policy(other, store, queue, ack_timeout=timedelta(hours=1))  # for who has it next
    other.subscribe(queue, 1)
    quest = other.quest()
    assert datetime.now(UTC) >= deadline + timedelta(seconds=0.2)
    assert (quest["jid"], quest["attempt"]) == (jid, 2)
    assert other.record(jid)["error"] == "not finished by its deadline"
    for t in OF_A_JOB:
        assert worker.refused(t, jid=jid) is Code.JOB_NOT_FOUND
    other.ask(Type.DONE, jid=jid)
    assert other.record(jid)["status"] == "completed"


def test_beat_moves_the_deadline(worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store, ack_timeout=LATE_ENOUGH)
    worker.subscribe(queue, 2)
    beaten, silent = other.enqueue_many(queue, ["beaten", "silent"])
    worker.quests(2)
    change_policy(other, store, queue, ack_timeout=timedelta(hours=1))
    worker.ask(Type.BEAT, jid=beaten)
    wait_until(lambda: other.record(silent).get("error"), "a deadline")
    assert worker.refused(Type.BEAT, jid=silent) is Code.JOB_NOT_FOUND
    record = other.record(beaten)
    assert (record["status"], record["runtime"]["attempts_so_far"]) == ("active", 1)
    worker.ask(Type.DONE, jid=beaten)


def test_a_deadline_that_was_moved_passes_too(worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store, ack_timeout=SOON)
    worker.subscribe(queue, 1)
    jid = other.enqueue(queue)
    worker.quest()
    worker.reply(worker.request(Type.BEAT, jid=jid))  # in time, unless something was held up
    wait_until(lambda: other.record(jid).get("error"), "its deadline")
    assert worker.refused(Type.DONE, jid=jid) is Code.JOB_NOT_FOUND


def test_attempts_used_up_by_deadlines_make_a_dead_letter_that_can_be_put_back(
    worker: Peer, other: Peer, store: Database, django_alias: str
) -> None:
    queue = make_queue(worker, store, ack_timeout=timedelta(seconds=0.1), retry_backoff=timedelta(0), max_attempts=3)
    worker.subscribe(queue, 9)
    jid = other.enqueue(queue)
    assert [quest["attempt"] for quest in worker.quests(3)] == [1, 2, 3]
    wait_until(lambda: other.record(jid)["status"] == "failed")
    assert other.record(jid)["runtime"]["attempts_so_far"] == 3
    assert worker.no_quest()
    store.change_queue(store.queue(queue), ack_timeout=timedelta(hours=1))
    assert put_back(queue, using=django_alias) == 1
    quest = worker.quest()
    assert (quest["jid"], quest["attempt"]) == (jid, 1)


def test_a_job_done_just_before_its_deadline_does_not_come_again(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, ack_timeout=LATE_ENOUGH, retry_backoff=timedelta(0))
    worker.subscribe(queue, 500)
    jids = worker.enqueue_many(queue, list(range(200)))
    deadline = max(datetime.fromisoformat(quest["deadline"]) for quest in worker.quests(200))
    for rid in [worker.request(Type.DONE, jid=jid) for jid in jids]:
        assert worker.reply(rid).t == Type.OK
    wait_until(lambda: datetime.now(UTC) > deadline + SOON, "the deadline")
    assert worker.no_quest()
    assert worker.stats(queue) == {"completed": 200}
