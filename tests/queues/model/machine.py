"""Random work on live brokers, compared with the model after each step.

One queue, `main`, is used over every protocol: Overhop and SSPQ clients, Django's transactions, and a BlipMQ topic that
a route leads to it. The topic has a subscription too, `copies`, and leads to a peer, whose mailbox is `letters`;
`graves` is the queue that dead letters of `main` may go to. In some examples `main` has a single active consumer, or
two brokers are on the database. Messages come a few at a time or in bursts of up to hundreds, and from how many on they
are stored as segments differs by example; the model knows nothing of that. The steps come one after the other, but for
transactions that stay open and credits that wait for messages. After each step all deliveries that must come are
awaited, and then the store has what the model has.
"""

from __future__ import annotations

import itertools
from functools import partial

from django.db import connections
from hypothesis import strategies as st
from hypothesis.stateful import initialize

from queues.models import ApiKey, Queue, Subscription
from queues.operations.queues import create_queue
from queues.operations.routes import add_route
from tests.queues.model.comparison import LINGERS, MAX_ATTEMPTS
from tests.queues.model.consumers import Recipient, Worker
from tests.queues.model.operating import OperatingMachine
from tests.queues.model.reference import HELD, READY
from tests.queues.model.reference import Queue as Model

#: Messages from which on those published together are a segment.
SEGMENTS = (1, 2, 7, 32)
_numbers = itertools.count(1)


class BrokerMachine(OperatingMachine):
    """The whole, with its beginning and its end."""

    @initialize(
        single=st.booleans(), nodes=st.integers(1, 2), segment_messages=st.sampled_from(SEGMENTS),
        linger=st.sampled_from(LINGERS), celery=st.booleans(),
    )  # fmt: skip
    def begin(
        self, single: bool = False, nodes: int = 1, segment_messages: int = 32, linger: float = LINGERS[0],
        celery: bool = False,
    ) -> None:  # fmt: skip
        """With `single` only one consumer of `main` is active."""
        self.linger, self.celery = linger, celery
        self.brokers.begin(nodes, segment_messages, linger)
        n = next(_numbers)
        self.topic = f"topic{n}"
        make = partial(create_queue, max_attempts=MAX_ATTEMPTS, retry_backoff=0, ack_timeout=3600)
        rows = [make(f"{name}{n}") for name in ("main", "graves")]
        with self._blipmq(0) as client:
            self.subscription = client.subscribe(self.topic)
        rows.append(Subscription.objects.get(pk=self.subscription).queue)
        self.key = ApiKey.objects.get(name="dev").pk
        self.peer = f"alice{n}"
        Recipient(self.brokers.at(0), self.peer, "", self.key).close()
        rows.append(Queue.objects.get(name=f"_peer/{self.peer}"))
        add_route(f"topic:{self.topic}", f"peer:{self.peer}")
        Queue.objects.filter(pk=rows[2].pk).update(retry_backoff="1 hour", max_attempts=MAX_ATTEMPTS)
        self.rows = {row.name: row for row in rows}
        self.queues = {row.name: Model(row.name, MAX_ATTEMPTS) for row in rows}
        self.main, self.graves, self.copies, self.letters = self.queues.values()
        self.letters.counts_attempts = False
        self.routed = False
        self._route()
        self.brokers.obey(self.copies.name)
        if single:
            self.main.line = []
            Queue.objects.filter(pk=rows[0].pk).update(single_active_consumer=True)
            self.brokers.obey(self.main.name)
        self.grant(0, 2, False)
        self.enqueue(3, None)
        self.send(2, 1)
        self.receive()
        self.publish_to_topic(2)

    def teardown(self) -> None:
        """Everything that is left comes out, in order."""
        try:
            if hasattr(self, "main"):
                if self.open is not None:
                    self.end_transaction(True)
                self.brokers.revive()
                self.change(
                    self.main, paused=False, concurrency_limit=None, single_active_consumer=False, max_length=None
                )
                self.main.line = None
                self.put_back()
                self._drain()
                self._check(archive=True)
        finally:
            for consumer in self.consumers:
                consumer.close()
            self.thread.submit(connections.close_all).result()
            self.thread.shutdown()

    def _drain(self) -> None:
        while any(queue.of(READY) or queue.of(HELD) for queue in self.queues.values()):
            for consumer in self.consumers:
                self._settle_part(consumer, list(consumer.held))
            for queue in (self.main, self.graves):
                ready = len(queue.of(READY))
                for n in range(len(self.brokers.living) if ready else 0):
                    self._add(Worker(self.brokers.at(n))).grant(queue.name, -(-ready // len(self.brokers.living)))
            if ready := len(self.copies.of(READY)):
                self.poll(ready)
            if self.letters.of(READY) and not self._of(Recipient):
                self.take_mailbox()
            self._check()
