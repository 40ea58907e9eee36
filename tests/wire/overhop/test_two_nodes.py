"""Two nodes on one database, with workers on both: deaths, take-overs, and limits over both."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, make_queue
from wire.overhop.codec.names import Type
from wire.overhop.codec.timestamps import format_timestamp, parse_timestamp

JOBS = 120
WORKERS = 10
LIMIT = 3
ROUNDS = 10
"""The times that so many jobs are given, until both nodes have done some: one may have been held up."""


@pytest.fixture
def nodes(store: Database) -> Iterator[tuple[Broker, Broker]]:
    with ExitStack() as stack:
        both = [stack.enter_context(Broker(store, BROKER_DEFAULT_RETRY_BACKOFF=0.2)) for _ in range(2)]
        yield both[0], both[1]


class LoggingWorker(threading.Thread):
    """Works on jobs one after the other for a while each, and logs when it began and ended each."""

    def __init__(self, broker: Broker, queue: str, work: float, done: threading.Semaphore) -> None:
        super().__init__()
        self.log: list[tuple[str, float, float]] = []
        self._done = done
        self._peer = Peer(broker.overhop)
        self._sid = self._peer.subscribe(queue, 1)
        self._work = work
        self.enough = threading.Event()

    def run(self) -> None:
        with self._peer as peer:
            while not self.enough.is_set():
                if peer.no_quest():
                    continue
                quest = peer.quest()
                began = time.monotonic()
                self.enough.wait(self._work)
                self.log.append((quest["jid"], began, time.monotonic()))
                peer.ask(Type.DONE, jid=quest["jid"])
                self._done.release()
                peer.ask(Type.CREDIT, sid=self._sid, credits=1)


def test_a_concurrency_limit_holds_over_two_nodes_and_ten_workers(
    nodes: tuple[Broker, Broker], store: Database
) -> None:
    with Peer(nodes[0].overhop) as boss:
        queue = f"limited-{time.monotonic_ns()}"
        boss.ask(Type.ADDQUEUE, name=queue, config={"concurrency_limit": LIMIT})
        done = threading.Semaphore(0)
        workers = [LoggingWorker(nodes[n % 2], queue, 0.02, done) for n in range(WORKERS)]
        for worker in workers:
            worker.start()
        jids: list[str] = []
        try:
            for _ in range(ROUNDS):
                jids += boss.enqueue_many(queue, list(range(JOBS)))
                assert all(done.acquire(timeout=PATIENCE) for _ in range(JOBS))
                if all(sum(len(worker.log) for worker in workers[node::2]) > 5 for node in (0, 1)):
                    break
        finally:
            for worker in workers:
                worker.enough.set()
            for worker in workers:
                worker.join()
    entries = [entry for worker in workers for entry in worker.log]
    assert sorted(jid for jid, _, _ in entries) == sorted(jids)
    moments = sorted([(began, 1) for _, began, _ in entries] + [(ended, -1) for _, _, ended in entries])
    at_once, most = 0, 0
    for _, change in moments:
        at_once += change
        most = max(most, at_once)
    assert 2 <= most <= LIMIT
    for node in (0, 1):
        assert sum(len(worker.log) for worker in workers[node::2]) > 5, "both nodes worked"


def test_a_killed_workers_job_is_with_another_within_the_backoff(
    nodes: tuple[Broker, Broker], store: Database
) -> None:
    with Peer(nodes[0].overhop) as boss, Peer(nodes[1].overhop) as other:
        queue = make_queue(boss, store)
        sid = other.subscribe(queue)
        victim = Peer(nodes[0].overhop)
        victim.subscribe(queue, 1)
        jid = boss.enqueue(queue, "work")
        assert victim.quest()["jid"] == jid
        other.ask(Type.CREDIT, sid=sid, credits=1)
        ended = time.monotonic()
        victim.close()
        quest = other.quest()
        assert (quest["jid"], quest["attempt"], quest["job_payload"]) == (jid, 2, "work")
        assert time.monotonic() - ended >= 0.2
        other.ask(Type.DONE, jid=jid)
        assert boss.record(jid)["status"] == "completed"


def test_a_killed_nodes_jobs_are_with_a_surviving_node_at_once(
    nodes: tuple[Broker, Broker], store: Database
) -> None:
    dying, surviving = nodes
    with Peer(surviving.overhop) as other:
        queue = make_queue(other, store)
        victim = Peer(dying.overhop)
        victim.subscribe(queue, 5)
        jids = other.enqueue_many(queue, list(range(8)))
        held = [quest["jid"] for quest in victim.quests(5)]
        assert held == jids[:5]
        other.subscribe(queue, 100)
        dying.stop(signal.SIGKILL)
        victim.close()
        quests = other.quests(8)
        assert sorted(quest["jid"] for quest in quests) == sorted(jids)
        assert {quest["attempt"] for quest in quests} == {1}, "the broker's death is not the jobs' fault"
        for quest in quests:
            other.ask(Type.DONE, jid=quest["jid"])
        assert other.stats(queue) == {"completed": 8}


def test_a_job_is_never_with_two_workers_before_its_deadline(nodes: tuple[Broker, Broker], store: Database) -> None:
    with Peer(nodes[0].overhop) as slow, Peer(nodes[1].overhop) as eager:
        queue = make_queue(slow, store, ack_timeout=timedelta(seconds=4))
        slow.subscribe(queue, 1)
        eager.subscribe(queue, 1)
        jid = slow.enqueue(queue, 1)
        wait_until(lambda: slow.ask(Type.PING) and eager.ask(Type.PING) and (slow.pushed or eager.pushed), "a push")
        holder, waiting = (slow, eager) if slow.pushed else (eager, slow)
        first = holder.quest()
        assert first["attempt"] == 1
        deadline = parse_timestamp(first["deadline"])
        second = waiting.quest()
        assert (second["jid"], second["attempt"]) == (jid, 2)
        assert datetime.now(UTC) >= deadline
        assert holder.refused(Type.DONE, jid=jid) == "JOB_NOT_FOUND"
        waiting.ask(Type.DONE, jid=jid)


def test_jobs_come_within_100_ms_of_their_time_while_100_000_wait_for_later_ones(
    nodes: tuple[Broker, Broker], store: Database
) -> None:
    with Peer(nodes[0].overhop) as boss, Peer(nodes[1].overhop) as worker:
        queue = make_queue(boss, store)
        boss.ask(Type.GQUEUE, q=queue)
        store.execute(
            "with stored as (insert into queues_message (id, queue_id, state, due_at, content, payload)"
            " select nextval('queues_message_id'), q.id, 2, now() + interval '1 hour' + n * interval '1 ms', 1, '\\xc0'"
            " from queues_queue q, generate_series(1, 100000) n where q.name = %s returning queue_id)"
            " insert into queues_queuetally (queue_id, delayed, published) select queue_id, count(*), count(*)"
            " from stored group by queue_id",
            queue,
        )
        worker.subscribe(queue, 100)
        begin = datetime.now(UTC) + timedelta(seconds=0.5)
        times = [begin + timedelta(milliseconds=170 * n) for n in range(40)]  # a pause does not spoil most of them
        for n, moment in enumerate(times):
            boss.enqueue(queue, n, scheduled_at=format_timestamp(moment))
        late = []
        for _ in times:
            quest = worker.quest()
            late.append((datetime.now(UTC) - times[quest["job_payload"]]).total_seconds())
        assert min(late) >= 0
        assert sorted(late)[len(late) // 2] < 0.1
        assert boss.stats(queue)["delayed"] == 100_000


def test_a_stop_hands_back_what_its_workers_could_not_finish(nodes: tuple[Broker, Broker], store: Database) -> None:
    with Peer(nodes[0].overhop) as leaving, Peer(nodes[1].overhop) as staying:
        queue = make_queue(staying, store)
        leaving.subscribe(queue, 2)
        jids = staying.enqueue_many(queue, ["a", "b"])
        first, second = leaving.quests(2)
        staying.subscribe(queue, 2)
        stopping = threading.Thread(target=nodes[0].stop)
        stopping.start()
        leaving.ask(Type.DONE, jid=first["jid"])  # a stop waits for jobs at work
        quest = staying.quest()
        stopping.join()
        assert (quest["jid"], quest["attempt"]) == (second["jid"], 1)
        assert staying.record(jids[0])["status"] == "completed"
