"""Overhop against a running broker: subscriptions, credits, and the order in which jobs are pushed."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.waiting import wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type

MOST = 2**32 - 1


def test_subscribe_is_answered_with_an_id(worker: Peer, queue: str) -> None:
    answer = worker.ask(Type.SUBSCRIBE, q=queue)
    assert set(answer) == {"sid"}
    assert str(UUID(answer["sid"])) == answer["sid"]


def test_a_worker_subscribes_once_to_a_queue_and_to_any_number_of_queues(
    worker: Peer, other: Peer, store: Database, queue: str
) -> None:
    sids = {worker.subscribe(queue), worker.subscribe(make_queue(worker, store))}
    assert worker.refused(Type.SUBSCRIBE, q=queue, credits=5) is Code.DUPLICATE_SUBSCRIPTION
    sids.add(other.subscribe(queue))
    assert len(sids) == 3
    worker.enqueue(queue)
    assert worker.no_quest()


def test_after_unsubscribe_nothing_is_pushed_and_the_queue_may_be_subscribed_to_again(worker: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 10)
    assert worker.ask(Type.UNSUBSCRIBE, sid=sid) == {}
    worker.enqueue(queue, 1)
    assert worker.no_quest()
    assert worker.refused(Type.UNSUBSCRIBE, sid=sid) is Code.SUBSCRIPTION_NOT_FOUND
    assert worker.refused(Type.CREDIT, sid=sid, credits=1) is Code.SUBSCRIPTION_NOT_FOUND
    again = worker.subscribe(queue, 1)
    assert again != sid
    assert worker.quest()["sid"] == again


def test_jobs_pushed_before_unsubscribe_may_be_finished_after(worker: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 1)
    jid = worker.enqueue(queue)
    worker.quest()
    worker.ask(Type.UNSUBSCRIBE, sid=sid)
    for t in (Type.ACK, Type.BEAT, Type.DONE):
        assert worker.ask(t, jid=jid) == {}


def test_another_workers_subscription_is_not_found(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue)
    assert other.refused(Type.UNSUBSCRIBE, sid=sid) is Code.SUBSCRIPTION_NOT_FOUND
    assert other.refused(Type.CREDIT, sid=sid, credits=1) is Code.SUBSCRIPTION_NOT_FOUND
    worker.ask(Type.CREDIT, sid=sid, credits=1)


def test_a_subscription_id_may_be_written_otherwise(worker: Peer, queue: str) -> None:
    sid = worker.subscribe(queue)
    worker.ask(Type.CREDIT, sid=sid.upper(), credits=1)
    worker.ask(Type.UNSUBSCRIBE, sid=sid.replace("-", ""))
    assert worker.refused(Type.UNSUBSCRIBE, sid=sid) is Code.SUBSCRIPTION_NOT_FOUND


# Pushes.


def test_a_quest_says_what_is_to_be_done(worker: Peer, other: Peer, store: Database) -> None:
    queue = make_queue(worker, store, ack_timeout=timedelta(seconds=60), max_attempts=7)
    sid = worker.subscribe(queue, 1)
    before = datetime.now().astimezone()
    jid = other.enqueue(queue, {"n": [1, b"\xff", None]})
    quest = worker.quest()
    deadline = datetime.fromisoformat(quest.pop("deadline"))
    assert deadline.utcoffset() == timedelta(0)
    assert timedelta(seconds=60) <= deadline - before < timedelta(seconds=70)
    assert quest == {
        "sid": sid,
        "jid": jid,
        "q": queue,
        "job_payload": {"n": [1, b"\xff", None]},
        "attempt": 1,
        "max_attempts": 7,
    }
    name, uuid = jid.rsplit(":", 1)
    assert (name, str(UUID(uuid))) == (queue, uuid)


def test_a_queue_without_an_ack_timeout_gives_no_deadline(worker: Peer, store: Database) -> None:
    queue = make_queue(worker, store, ack_timeout=None)
    worker.subscribe(queue, 1)
    jid = worker.enqueue(queue)
    assert worker.quest()["deadline"] is None
    assert worker.ask(Type.BEAT, jid=jid) == {}
    assert worker.ask(Type.DONE, jid=jid) == {}


def test_without_credits_nothing_is_pushed(worker: Peer, other: Peer, queue: str) -> None:
    other.enqueue(queue, "before")
    worker.ask(Type.SUBSCRIBE, q=queue)
    other.enqueue(queue, "after")
    assert worker.no_quest()


def test_each_push_takes_a_credit_and_credit_adds(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 2)
    other.enqueue_many(queue, list(range(10)))
    assert [quest["job_payload"] for quest in worker.quests(2)] == [0, 1]
    assert worker.no_quest()
    assert worker.ask(Type.CREDIT, sid=sid, credits=1) == {}
    assert worker.quest()["job_payload"] == 2
    assert worker.no_quest()
    worker.ask(Type.CREDIT, sid=sid, credits=2)
    worker.ask(Type.CREDIT, sid=sid, credits=3)
    assert [quest["job_payload"] for quest in worker.quests(5)] == [3, 4, 5, 6, 7]
    assert worker.no_quest()


def test_finishing_a_job_gives_no_credit(worker: Peer, queue: str) -> None:
    worker.subscribe(queue, 1)
    worker.enqueue_many(queue, [1, 2])
    worker.ask(Type.DONE, jid=worker.quest()["jid"])
    assert worker.no_quest()


def test_credits_that_wait_are_used_by_what_comes(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue)
    worker.ask(Type.CREDIT, sid=sid, credits=2)
    assert worker.no_quest()
    other.enqueue_many(queue, [1, 2, 3])
    assert [quest["job_payload"] for quest in worker.quests(2)] == [1, 2]
    assert worker.no_quest()


def test_credits_stop_at_the_most_there_can_be(worker: Peer, other: Peer, queue: str, store: Database) -> None:
    sid = worker.subscribe(queue, MOST)
    assert worker.ask(Type.CREDIT, sid=sid, credits=MOST) == {}
    assert worker.ask(Type.CREDIT, sid=sid, credits=1) == {}
    other.enqueue_many(queue, list(range(300)))
    assert [quest["job_payload"] for quest in worker.quests(300)] == list(range(300))
    wait_until(lambda: store.rows("select 1 from queues_worker where subscriptions::text like %s", f"%{MOST - 300}%"))


def test_no_quest_comes_before_the_answer_that_tells_its_subscription(worker: Peer, other: Peer, queue: str) -> None:
    other.enqueue_many(queue, list(range(100)))
    rids = [worker.request(Type.ENQUEUE, q=queue, job_payload="x") for _ in range(20)]
    rids.append(worker.request(Type.SUBSCRIBE, q=queue, credits=100))
    messages = [worker.read() for _ in range(21)]
    assert [message.rid for message in messages] == rids
    for quest in worker.quests(100):
        assert quest["sid"] == messages[-1].p["sid"]


def test_a_client_of_the_seeds_messages_alone_never_sees_a_push(worker: Peer, other: Peer, queue: str) -> None:
    other.enqueue_many(queue, list(range(50)))
    sid = worker.ask(Type.SUBSCRIBE, q=queue)["sid"]
    worker.ask(Type.PING)
    worker.ask(Type.GQUEUE, q=queue)
    worker.ask(Type.LQUEUES)
    other.enqueue_many(queue, list(range(50)))
    assert worker.no_quest()
    worker.ask(Type.UNSUBSCRIBE, sid=sid)


def test_workers_of_a_queue_share_its_jobs(broker: Broker, worker: Peer, other: Peer, queue: str) -> None:
    worker.subscribe(queue, 1000)
    other.subscribe(queue, 1000)
    with Peer(broker.overhop) as producer:
        jids = producer.enqueue_many(queue, list(range(1000)))
        while producer.stats(queue) != {"active": 1000}:
            pass
    got = []
    for peer in (worker, other):
        peer.ask(Type.PING)
        got.append([quest["jid"] for quest in peer.quests(len(peer.pushed))])
    assert sorted(got[0] + got[1]) == sorted(jids)
    assert min(len(got[0]), len(got[1])) > 100


# The order.


def test_first_in_is_first_out(worker: Peer, other: Peer, queue: str) -> None:
    other.enqueue_many(queue, list(range(500)))
    sid = worker.subscribe(queue, 250)
    assert [quest["job_payload"] for quest in worker.quests(250)] == list(range(250))
    other.enqueue_many(queue, list(range(500, 1000)))
    other.wait_for_stats(queue, active=250, new=750)  # none is in memory, or on its way back from there
    worker.ask(Type.CREDIT, sid=sid, credits=750)
    assert [quest["job_payload"] for quest in worker.quests(750)] == list(range(250, 1000))


@pytest.mark.parametrize("subscribed", [False, True], ids=["from the store", "from memory"])
def test_higher_priorities_come_first_and_each_in_its_order(
    worker: Peer, other: Peer, queue: str, subscribed: bool
) -> None:
    if subscribed:
        sid = worker.subscribe(queue, 1)
        other.enqueue(queue)
        worker.quest()
    priorities = [0, 5, -5, 100, 0, -100, 5, 1, -5, 100]
    for number, priority in enumerate(priorities):
        other.enqueue(queue, [priority, number], priority=priority)
    if subscribed:
        other.wait_for_stats(queue, active=1, new=10)  # none is in memory any more, or on its way back from there
        worker.ask(Type.CREDIT, sid=sid, credits=1)  # and now all but one are again
        worker.ask(Type.CREDIT, sid=sid, credits=9)
    else:
        worker.subscribe(queue, 10)
    expected = sorted(([p, n] for n, p in enumerate(priorities)), key=lambda job: (-job[0], job[1]))
    assert [quest["job_payload"] for quest in worker.quests(10)] == expected


def test_a_higher_priority_overtakes_thousands_in_memory(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 1000)
    other.enqueue_many(queue, list(range(4000)))
    assert [quest["job_payload"] for quest in worker.quests(1000)] == list(range(1000))
    other.wait_for_stats(queue, active=1000, new=3000)  # none is on its way back from memory
    worker.ask(Type.CREDIT, sid=sid, credits=1)
    assert worker.quest()["job_payload"] == 1000  # twice as many as the worker has are in memory now
    other.enqueue(queue, "urgent", priority=1)
    worker.ask(Type.CREDIT, sid=sid, credits=2999)
    jobs = [quest["job_payload"] for quest in worker.quests(2999)]
    assert jobs[0] == "urgent"
    assert jobs[1:] == list(range(1001, 3999))


def test_a_higher_priority_overtakes_a_memory_that_is_full(store: Database) -> None:
    with Broker(store, BROKER_PREFETCH=200) as small, Peer(small.overhop) as worker, Peer(small.overhop) as other:
        queue = make_queue(worker, store)
        sid = worker.subscribe(queue, 100)
        other.enqueue_many(queue, list(range(1100)))
        assert [quest["job_payload"] for quest in worker.quests(100)] == list(range(100))
        other.wait_for_stats(queue, active=100, new=1000)  # none is on its way back from memory
        worker.ask(Type.CREDIT, sid=sid, credits=1)
        assert worker.quest()["job_payload"] == 100  # twice as many as the worker has would be in memory, with room
        other.enqueue(queue, "urgent", priority=7)
        other.enqueue(queue, "more urgent", priority=8)
        other.enqueue(queue, "less urgent", priority=-1)
        jobs = []
        for _ in range(1002):
            worker.send(encoder.encode(Type.CREDIT, "c", {"sid": sid, "credits": 1}))
            worker.reply("c")
            quest = worker.quest()
            jobs.append(quest["job_payload"])
            worker.ask(Type.DONE, jid=quest["jid"])
        assert {"urgent", "more urgent"} <= set(jobs[:3])  # a claim or two may be under way when they come
        assert jobs.index("more urgent") < jobs.index("urgent")
        assert jobs[-1] == "less urgent"
        assert [job for job in jobs if isinstance(job, int)] == list(range(101, 1100))


def test_a_higher_priority_comes_first_after_a_delay_and_after_a_failure(worker: Peer, other: Peer, queue: str) -> None:
    sid = worker.subscribe(queue, 2)
    failing = [other.enqueue(queue, name, priority=priority) for name, priority in (("low", 0), ("high", 1))]
    worker.quests(2)
    other.enqueue(queue, "behind")
    for jid in failing:
        worker.ask(Type.FAIL, jid=jid, retry_in_ms=0)
    other.wait_for_stats(queue, new=3)  # none is in memory, or on its way back from there
    worker.ask(Type.CREDIT, sid=sid, credits=3)
    assert [quest["job_payload"] for quest in worker.quests(3)] == ["high", "behind", "low"]
