"""A small load on one broker over BlipMQ and Overhop, and whether nothing that was confirmed got lost."""

from __future__ import annotations

import threading
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Self, cast

from brokersite.rigs.torture.database import KEY
from brokersite.rigs.torture.listeners import ListenerProcess
from brokersite.rigs.torture.workload import SharedLoad, SubscriptionConsumer, TopicProducer
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker
from wire.blipmq.client import Client
from wire.overhop.client import Client as Overhop
from wire.overhop.errors import Unavailable
from wire.overhop.job_context import JobContext
from wire.overhop.worker import Worker

TOPIC = QUEUE = "failover"
#: Messages a second, and jobs at a time.
RATE, JOBS = 200.0, 5
#: Seconds between jobs.
PAUSE = 0.2


class Load:
    """A producer and a consumer of a topic; within the block they run, and so do a giver of jobs and a worker."""

    def __init__(self, broker: Broker) -> None:
        host, self._overhop = broker.overhop
        self._host = host
        self._stage = SharedLoad([cast(ListenerProcess, SimpleNamespace(number=0, blipmq=broker.blipmq[1]))])
        with Client(host, broker.blipmq[1], KEY) as client:
            subscription = client.subscribe(TOPIC)
        self._producer = TopicProducer("p", self._stage, 1, TOPIC, RATE)
        self._consumer = SubscriptionConsumer("c", self._stage, 1, TOPIC, subscription)
        with Overhop(host, self._overhop) as given:
            given.create_queue(QUEUE)
        self._worker = Worker(host, self._overhop, queue=QUEUE, handler=self._do, timeout=PATIENCE)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._give, self._worker.run)]
        self._given: dict[str, int] = {}
        self._done: set[int] = set()

    def __enter__(self) -> Self:
        self._stage.publishing.set()
        self._producer.start()
        self._consumer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._stage.publishing.clear()
        self._stage.closed.set()
        self._worker.stop()

    def _do(self, job: JobContext) -> int:
        number: int = job.payload
        self._done.add(number)
        return number

    def _give(self) -> None:
        count = 0
        with Overhop(self._host, self._overhop, timeout=PATIENCE) as client:
            while self._stage.publishing.is_set():
                numbers = range(count, count + JOBS)
                count += JOBS
                self._given |= zip(client.enqueue_many(QUEUE, numbers), numbers, strict=True)
                self._stage.closed.wait(PAUSE)

    def wait_for_more(self, count: int = 100) -> None:
        """Wait until so many more messages and some jobs are confirmed and done."""
        messages, jobs = self._producer.confirmed + count, len(self._given) + 3 * JOBS
        done = len(self._done) + 3 * JOBS
        wait_until(
            lambda: self._producer.confirmed >= messages and len(self._given) >= jobs and len(self._done) >= done,
            lambda: f"work (now {self._producer.confirmed} of {messages}, jobs {len(self._given)}, {len(self._done)})",
        )

    def check_nothing_is_lost(self) -> None:
        """Stop publishing; then every confirmed message is consumed, and every confirmed job done by the worker."""
        self._stage.publishing.clear()
        self._producer.join(PATIENCE)
        self._threads[0].join(PATIENCE)
        confirmed = {str(each.message) for each in self._producer.publishes if each.confirmed is not None}
        wait_until(lambda: confirmed <= self._acknowledged(), lambda: f"{confirmed - self._acknowledged()} consumed")
        with Overhop(self._host, self._overhop) as client:
            for jid, number in self._given.items():
                job = wait_until(partial(_completed, client, jid), f"the end of job {number}")
                assert job.result in (None, number), "another job's DONE has settled it"
        assert set(self._given.values()) <= self._done
        self._end()
        self._consumer.join(PATIENCE)
        self._threads[1].join(PATIENCE)
        assert self._producer.troubles + self._consumer.troubles == []

    def _acknowledged(self) -> set[str]:
        return {str(each.message) for each in tuple(self._consumer.deliveries) if each.acked}


def _completed(client: Overhop, jid: str) -> object:
    try:
        job = client.job(jid)
    except Unavailable:  # a limit of the role's, on a busy machine
        return None
    return job if job is not None and job.status == "completed" else None


