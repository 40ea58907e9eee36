"""Overhop against a running broker: a database that hesitates, is away or refuses, and brokers that end."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from brokersite.rigs.torture.database import TortureDatabase
from tests.waiting import wait_until
from tests.wire.broker import LEASED, Broker, Database, make_url
from tests.wire.overhop.peer import Peer, error_code, make_queue
from wire.overhop.codec.names import Code, Type

SID = "8c7ac1b6-2a3c-4d5e-8f90-a1b2c3d4e5f6"


def hang_up_all(store: Database) -> None:
    """End every connection to the database but the test's own."""
    store.rows(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
        " and pid <> pg_backend_pid() and backend_type = 'client backend'"
    )


def wait_for_engine(peer: Peer) -> None:
    """Wait until the broker's engine has come back: SUBSCRIBE asks it, LQUEUES and GQUEUE ask Django's connection."""
    wait_until(lambda: peer.reply(peer.request(Type.SUBSCRIBE, q="any")).p["code"] == Code.QUEUE_NOT_FOUND)


# A commit that takes its time.


@pytest.fixture(scope="module")
def frozen_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TortureDatabase]:
    """A PostgreSQL that may be frozen."""
    database = TortureDatabase(tmp_path_factory.mktemp("frozen"))
    try:
        database.start()
        yield database
    finally:
        database.remove()


def test_nothing_is_answered_while_postgresql_is_frozen(frozen_database: TortureDatabase) -> None:
    assert frozen_database.server is not None
    with frozen_database.connect() as connection:
        parameters = connection.info.get_parameters() | {"password": frozen_database.server.password}
    with Broker(make_url(parameters)) as broker, Peer(broker.overhop) as worker, Peer(broker.overhop) as idle:
        worker.ask(Type.ADDQUEUE, name="frozen")
        worker.subscribe("frozen", 2)
        jids = worker.enqueue_many("frozen", [1, 2])
        worker.quests(2)
        with frozen_database.frozen():
            rids = [
                worker.request(Type.DONE, jid=jids[0]),
                worker.request(Type.ENQUEUE, q="frozen", job_payload=3),
                worker.request(Type.FAIL, jid=jids[1], retry_in_ms=3_600_000),
                worker.request(Type.PING),
            ]
            assert worker.is_silent(1.0)
            idle.ask(Type.PING)
        assert [worker.reply(rid).t for rid in rids] == [Type.OK, Type.OK, Type.OK, Type.PONG]
        worker.wait_for_stats("frozen", completed=1, delayed=1, new=1)


REQUESTS: dict[str, Callable[[str, str], tuple[Type, dict[str, Any]]]] = {
    "ENQUEUE": lambda queue, jid: (Type.ENQUEUE, {"q": queue, "job_payload": "late"}),
    "ENQUEUE with a key": lambda queue, jid: (Type.ENQUEUE, {"q": queue, "key": "k"}),
    "DONE": lambda queue, jid: (Type.DONE, {"jid": jid}),
    "DONE with a result": lambda queue, jid: (Type.DONE, {"jid": jid, "result": 1}),
    "FAIL": lambda queue, jid: (Type.FAIL, {"jid": jid}),
    "the last FAIL": lambda queue, jid: (Type.FAIL, {"jid": jid}),
    "GOODBYE": lambda queue, jid: (Type.GOODBYE, {}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_changes_of_a_job_are_answered_after_their_commit(
    broker: Broker, other: Peer, store: Database, queue: str, name: str
) -> None:
    with Peer(broker.overhop) as worker:
        worker.subscribe(queue, 1)
        jid = worker.enqueue(queue, max_attempts=1 if name == "the last FAIL" else 5)
        worker.quest()
        with store.unwritable_messages():
            t, p = REQUESTS[name](queue, jid)
            first, then = worker.request(t, p), worker.request(Type.GQUEUE, q=queue)
            store.wait_for_blocked("queues_message")
            assert worker.is_silent()
            other.ask(Type.PING)
        assert worker.reply(first).t == Type.OK
        if t == Type.GOODBYE:
            worker.ended()
        else:
            assert worker.reply(then).p["name"] == queue


def test_a_request_sees_what_came_before_it_although_that_is_not_committed_yet(
    worker: Peer, store: Database, queue: str
) -> None:
    worker.enqueue(queue, 1)
    with store.unwritable_messages():
        asked: list[tuple[Type, dict[str, Any]]] = [
            (Type.ENQUEUE, {"q": queue, "job_payload": 2}),
            (Type.QSTATS, {"q": queue}),
            (Type.LSJOB, {"q": queue, "status": "new"}),
            (Type.RMQUEUE, {"q": queue}),
        ]
        rids = [worker.request(t, p) for t, p in asked]
        store.wait_for_blocked("queues_message")
        assert worker.is_silent()
    replies = [worker.reply(rid) for rid in rids]
    assert replies[1].p["stats"]["new"] == 2
    assert [job["payload"] for job in replies[2].p["jobs"]] == [1, 2]
    assert error_code(replies[3]) is Code.QUEUE_NOT_EMPTY


def test_a_job_is_pushed_after_its_commit(worker: Peer, other: Peer, store: Database, queue: str) -> None:
    worker.subscribe(queue, 1)
    with store.unwritable_messages():
        rid = other.request(Type.ENQUEUE, q=queue)
        store.wait_for_blocked("queues_message")
        assert worker.no_quest()
    assert other.reply(rid).p["jid"] == worker.quest()["jid"]


# Jobs that cannot be stored.


def test_a_job_that_postgresql_refuses_is_refused_and_no_other(worker: Peer, store: Database, queue: str) -> None:
    with store.refusing(b"x"):  # as MessagePack: 120
        rids = [worker.request(Type.ENQUEUE, q=queue, job_payload=payload) for payload in (1, 120, 2, 120, 3)]
        replies = [worker.reply(rid) for rid in rids]
    assert [reply.t == Type.OK for reply in replies] == [True, False, True, False, True]
    assert error_code(replies[1]) is error_code(replies[3]) is Code.INVALID_JOB_PAYLOAD
    assert worker.do(queue, 3) == [1, 2, 3]


# A database that is away.

LOOKS: list[tuple[Type, dict[str, Any]]] = [
    (Type.GQUEUE, {"q": "any"}), (Type.LQUEUES, {}), (Type.SUBSCRIBE, {"q": "any"}), (Type.ADDQUEUE, {"name": "any"}),
    (Type.STATUS, {}), (Type.RMQUEUE, {"q": "any"}), (Type.PAUSE, {"q": "any"}), (Type.RESUME, {"q": "any"}),
    (Type.JOB, {"jid": f"any:{SID}"}), (Type.RMJOB, {"jid": f"any:{SID}"}),
    (Type.LSJOB, {"q": "any", "status": "new"}), (Type.QSTATS, {"q": "any"}),
]  # fmt: skip


def test_requests_that_need_the_database_are_unavailable_without_it_and_work_again_with_it(
    worker: Peer, store: Database, queue: str
) -> None:
    worker.subscribe(queue, 1)
    jid = worker.enqueue(queue)
    worker.quest()
    with store.unreachable():
        hang_up_all(store)
        wait_until(lambda: worker.reply(worker.request(Type.SUBSCRIBE, q="any")).p["code"] == Code.UNAVAILABLE)
        for t, p in LOOKS:
            assert worker.refused(t, p) is Code.UNAVAILABLE, t
        assert worker.refused(Type.LOG, jid=jid, line="x") is Code.UNAVAILABLE
    wait_until(lambda: worker.reply(worker.request(Type.GQUEUE, q=queue)).p.get("name") == queue)
    wait_for_engine(worker)


def test_jobs_given_while_the_database_is_away_are_kept_when_it_is_back(
    worker: Peer, store: Database, queue: str
) -> None:
    worker.enqueue(queue, 0)
    with store.unreachable():
        hang_up_all(store)
        rids = [worker.request(Type.ENQUEUE, q=queue, job_payload=n) for n in (1, 2)]
        rids.append(worker.request(Type.ENQUEUE, q=queue, job_payload=3, key="k"))
        unknown = worker.request(Type.ENQUEUE, q="unknown", job_payload=4)  # the store has to say
        ping = worker.request(Type.PING)
        assert worker.is_silent(0.5)
    assert [worker.reply(rid).t for rid in rids] == [Type.OK] * 3
    assert error_code(worker.reply(unknown)) is Code.QUEUE_NOT_FOUND
    assert worker.reply(ping).t == Type.PONG
    assert worker.do(queue, 4) == [0, 1, 2, 3]


def test_a_job_given_while_the_database_is_away_for_too_long_is_refused(broker: Broker, store: Database) -> None:
    with Broker(store, BROKER_PUBLISH_TIMEOUT=0.5) as impatient, Peer(impatient.overhop) as worker:
        queue = make_queue(worker, store)
        worker.enqueue(queue, "before")
        with store.unreachable():
            hang_up_all(store)
            rids = [worker.request(Type.ENQUEUE, q=queue), worker.request(Type.ENQUEUE, q=queue, key="k")]
            rids.append(worker.request(Type.ENQUEUE, q=queue, priority=1))
            replies = [worker.reply(rid) for rid in rids]
            assert {error_code(reply) for reply in replies} == {Code.UNAVAILABLE}
            worker.ask(Type.PING)
        wait_until(lambda: worker.reply(worker.request(Type.ENQUEUE, q=queue, job_payload="after")).t == Type.OK)
        assert worker.do(queue, 2) == ["before", "after"]
    with Peer(broker.overhop) as peer:  # it was cut off, too, and other tests use it
        wait_for_engine(peer)


def test_jobs_at_work_when_the_database_goes_away_come_again_and_cost_no_attempt(
    worker: Peer, other: Peer, store: Database, queue: str
) -> None:
    worker.subscribe(queue, 2)
    jids = other.enqueue_many(queue, [1, 2])
    worker.quests(2)
    hang_up_all(store)
    wait_until(lambda: store.states(store.queue(queue))[LEASED] == 0)
    assert worker.refused(Type.BEAT, jid=jids[0]) is Code.JOB_NOT_FOUND
    assert worker.ask(Type.DONE, jid=jids[0]) == {}  # late, and still taken
    wait_until(lambda: other.reply(other.request(Type.GQUEUE, q=queue)).p.get("name") == queue)
    wait_until(lambda: other.reply(other.request(Type.SUBSCRIBE, q=queue, credits=2)).t == Type.OK)
    quest = other.quest()
    assert (quest["jid"], quest["attempt"]) == (jids[1], 1)
    assert other.no_quest()
    assert other.record(jids[0])["status"] == "completed"


@pytest.mark.parametrize("audited", [False, True], ids=["", "audited"])
@pytest.mark.parametrize("attempts", [1, 5], ids=["the last attempt", "one of several"])
def test_a_fail_that_is_not_stored_is_not_answered_ok(
    broker: Broker, store: Database, queue: str, audited: bool, attempts: int
) -> None:
    store.change_queue(store.queue(queue), audited=audited)
    with Peer(broker.overhop) as worker:
        worker.subscribe(queue, 1)
        jid = worker.enqueue(queue, max_attempts=attempts)
        worker.quest()
        with store.unwritable_messages():
            rid, then = worker.request(Type.FAIL, jid=jid, error="lost"), worker.request(Type.PING)
            store.wait_for_blocked("queues_message")
            store.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and application_name like 'fivewire%%'"
            )
        assert error_code(worker.reply(rid)) is Code.UNAVAILABLE
        assert worker.reply(then).t == Type.PONG
    with Peer(broker.overhop) as other:
        wait_until(lambda: other.reply(other.request(Type.SUBSCRIBE, q=queue, credits=1)).t == Type.OK)
        quest = other.quest()
        assert (quest["jid"], quest["attempt"]) == (jid, 1)
        other.ask(Type.DONE, jid=jid)


# Brokers that come and go.


def test_everything_answered_survives_a_kill_and_what_was_at_work_comes_again(store: Database) -> None:
    with Broker(store) as first, Peer(first.overhop) as worker:
        queue = make_queue(worker, store)
        worker.subscribe(queue, 3)
        jids = worker.enqueue_many(queue, [0, 1, 2, 3, 4])
        later = worker.enqueue(queue, 5, scheduled_at="2999-01-01T00:00:00Z")
        worker.quests(3)
        worker.ask(Type.DONE, jid=jids[0], result="kept")
        first.stop(signal.SIGKILL)
    with Broker(store) as second, Peer(second.overhop) as worker:
        sid = worker.subscribe(queue)
        wait_until(lambda: worker.stats(queue) == {"completed": 1, "new": 4, "delayed": 1})
        worker.ask(Type.CREDIT, sid=sid, credits=4)
        assert [(quest["jid"], quest["attempt"]) for quest in worker.quests(4)] == [(jid, 1) for jid in jids[1:]]
        assert worker.record(jids[0])["result"] == "kept"
        assert worker.record(later)["status"] == "delayed"


def test_an_orderly_stop_lets_workers_finish_pushes_nothing_more_and_hands_back_the_rest(store: Database) -> None:
    with Broker(store, BROKER_DRAIN_TIMEOUT=4) as first, Peer(first.overhop) as worker, Peer(first.overhop) as slow:
        queue = make_queue(worker, store, retry_backoff=timedelta(hours=1))
        worker.subscribe(queue, 1)
        jids = worker.enqueue_many(queue, [1, 2, 3])
        worker.quest()
        slow.subscribe(queue, 1)
        slow.quest()
        with Peer(first.overhop) as idle:
            first.process.send_signal(signal.SIGTERM)
            idle.ended()
        assert worker.ask(Type.DONE, jid=jids[0]) == {}
        worker.ended()
        slow.ended()
        assert first.wait() == 0, first.log
    assert "Traceback" not in first.log
    with Broker(store) as second, Peer(second.overhop) as worker:
        worker.subscribe(queue, 9)
        assert [(quest["jid"], quest["attempt"]) for quest in worker.quests(2)] == [(jid, 1) for jid in jids[1:]]


def test_a_concurrency_limit_holds_over_all_brokers(broker: Broker, worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store, {"concurrency_limit": 1})
    with Broker(store) as second, Peer(second.overhop) as far:
        other.enqueue_many(queue, [1, 2, 3])
        for peer in (worker, far):
            peer.subscribe(queue, 9)
        for done in range(3):
            wait_until(lambda: worker.ask(Type.PING) and far.ask(Type.PING) and (worker.pushed or far.pushed))
            busy, free = (worker, far) if worker.pushed else (far, worker)
            quest = busy.quest()
            assert quest["job_payload"] == done + 1
            assert free.no_quest()
            assert busy.no_quest()
            busy.ask(Type.DONE, jid=quest["jid"])
        other.wait_for_stats(queue, completed=3)


def test_two_brokers_serve_one_queue(broker: Broker, worker: Peer, store: Database, queue: str) -> None:
    with Broker(store) as second, Peer(second.overhop) as far:
        far.subscribe(queue, 1)
        jid = worker.enqueue(queue, "far")
        assert far.quest()["jid"] == jid
        assert worker.refused(Type.DONE, jid=jid) is Code.JOB_NOT_FOUND
        far.ask(Type.DONE, jid=jid, result=1)
        assert worker.record(jid)["result"] == 1
        worker.ask(Type.PAUSE, q=queue)
        wait_until(lambda: far.ask(Type.GQUEUE, q=queue)["state"] == "paused")
        worker.enqueue(queue, "later", key="k")
        assert far.enqueue(queue, "again", key="k") == worker.enqueue(queue, key="k")
