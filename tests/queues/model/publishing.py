"""The machine's publishes, over every protocol, from Django and from Celery."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from typing import Any

from django.db import transaction
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from kombu.connection import Connection

from queues.api import QueueFull, publish, publish_many
from tests.queues.model.comparison import ComparedMachine
from tests.queues.model.consumers import peer_of
from tests.queues.model.reference import Queue as Model
from tests.waiting import PATIENCE, wait_until
from wire.blipmq.client import Client as BlipClient
from wire.blipmq.client import NackError
from wire.overhop.client import QueueFull as OverhopQueueFull
from wire.sspq.client import Client as SspqClient

KEY = "dev-key"
#: Messages of a publish that is no burst, at most; of all queues' messages together when bursts become such.
FEW, MANY = 4, 900
#: Messages of one publish; that a consumer asks for at once.
COUNTS = st.sampled_from([1, 2, 3, 4, 7, 40, 300])
NODE = st.integers(0, 1)


class PublishingMachine(ComparedMachine):
    """Messages come."""

    def _new(self, count: int) -> list[str]:
        """Labels of new messages, fewer than asked for when there are many messages."""
        if count > FEW and sum(len(queue.messages) for queue in self.queues.values()) > MANY:
            count = FEW
        return list(itertools.islice(self._labels, count))

    def _blipmq(self, node: int) -> BlipClient:
        address = self.brokers.at(node).blipmq
        return BlipClient(address.host, address.port, KEY, reconnect=False)

    @property
    def _drops(self) -> bool:
        """Whether `main` drops messages of bursts while others may be delivered: it is not known which."""
        return self.main.max_length is not None and self.main.drops_oldest and not self._is_unwanted()

    def _stored(self, queue: Model, *labels: str, producer: str, **options: Any) -> None:
        """The broker has stored a publish."""
        for label in labels:
            queue.add(label, producer, **options)
        if queue.max_length is not None and queue.drops_oldest:
            self._observe(queue)
            wait_until(lambda: self._surplus(queue) <= 0, "the drop of the oldest")
            queue.drop_surplus(self._labels_of(queue))

    def _surplus(self, queue: Model) -> int:
        rows = self.brokers.store.rows("select queues_room(%s) as room", self.rows[queue.name].pk)
        return -int(rows[0]["room"] or 0)

    def _labels_of(self, queue: Model) -> set[str]:
        return set(self._stored_of(queue))

    @rule(
        count=COUNTS, limit=st.sampled_from([None, None, 1, 2]), priority=st.sampled_from([0, 0, 0, 5, -5]), node=NODE
    )
    def enqueue(self, count: int, limit: int | None, priority: int = 0, node: int = 0) -> None:
        """Overhop, one by one or in a burst."""
        options = {"limit": limit, "priority": priority}
        labels, client = self._new(FEW if self._drops and count > FEW else count), self._worker(node).client
        if len(labels) > FEW:
            try:
                client.enqueue_many(
                    self.main.name, [label.encode() for label in labels], max_attempts=limit, priority=priority
                )
            except OverhopQueueFull as error:
                taken = [label for label, jid in zip(labels, error.jids, strict=True) if jid is not None]
                assert taken == labels[: self.main.room()], taken
                labels = taken
            self._stored(self.main, *labels, producer="overhop", **options)
            labels = []
        for label in labels:
            try:
                client.enqueue(self.main.name, label.encode(), max_attempts=limit, priority=priority)
            except OverhopQueueFull:
                assert not self.main.room(), label
            else:
                assert self.main.room(), label
                self._stored(self.main, label, producer="overhop", **options)
        self._check()

    @rule(count=COUNTS, node=NODE)
    def publish_to_topic(self, count: int, node: int = 0) -> None:
        """BlipMQ: the subscription and the route's target get a copy, or none of them."""
        limited = self.routed and self.main.max_length is not None
        labels = self._new(FEW if limited and count > FEW else count)
        with self._blipmq(node) as client:
            if len(labels) > FEW:
                client.publish_many(self.topic, [label.encode() for label in labels])
                client.flush()
                self._on_topic(*labels)
                labels = []
            for label in labels:
                client.publish(self.topic, label.encode())
                try:
                    client.flush()
                except NackError:
                    assert self.routed, label
                    assert not self.main.room(), label
                else:
                    assert not self.routed or self.main.room(), label
                    self._on_topic(label)
        self._check()

    def _on_topic(self, *labels: str) -> None:
        """The broker has stored a publish to the topic."""
        for queue in (self.copies, self.letters):
            self._stored(queue, *labels, producer="blipmq")
        if self.routed:
            self._stored(self.main, *labels, producer="blipmq")

    @precondition(lambda self: self.main.max_length is None)
    @rule(count=COUNTS, retries=st.sampled_from([0, 1, 3, 255]), node=NODE)
    def send(self, count: int, retries: int, node: int = 0) -> None:
        """SSPQ: all is taken up to the end of the stream."""
        address = self.brokers.at(node).sspq(self.main.name)
        labels = self._new(count)
        with SspqClient(address.host, address.port, reconnect=False) as client:
            for label in labels:
                client.send(label.encode(), retries)
        self._stored(self.main, *labels, producer="sspq", limit=0 if retries == 255 else retries + 1)
        self._check()

    @rule(count=COUNTS, node=NODE)
    def post(self, count: int, node: int = 0) -> None:
        """A peer sends letters to the other one, over a connection of its own."""
        labels, broker = self._new(count), self.brokers.at(node)

        async def send() -> None:
            sender = await peer_of(broker, "bob", self.key)
            await sender.send(self.peer, *(f"{self.peer}-{label}" for label in labels))  # no other example's
            sender.leave()

        broker.ask(send())
        self._stored(self.letters, *labels, producer="bob")
        self._check()

    @precondition(lambda self: self.main.max_length is None)
    @rule(count=COUNTS)
    def publish_many_from_django(self, count: int) -> None:
        labels = self._new(count)
        publish_many(self.main.name, [label.encode() for label in labels])
        self._stored(self.main, *labels, producer="django")
        self._check()

    @precondition(lambda self: self.celery and self.main.max_length is None)
    @rule(count=st.integers(1, 4))
    def publish_from_celery(self, count: int) -> None:
        labels = self._new(count)
        with Connection(self.brokers.celery_url) as connection:
            producer = connection.Producer()
            for label in labels:
                producer.publish(label, routing_key=self.main.name, content_type="text/plain", content_encoding="utf-8")
        self._stored(self.main, *labels, producer="celery")
        self._check()

    @rule(key=st.sampled_from([None, None, "k1", "k2"]), delay=st.sampled_from([0.0, 0.02]))
    def publish_from_django(self, key: str | None, delay: float) -> None:
        """Outside a transaction; the key of a stored message is taken, and a delay ends at the tail."""
        [label] = self._new(1)
        taken = self.main.has_key(key)
        try:
            publish(self.main.name, label.encode(), key=key, delay=delay)
        except QueueFull:
            assert not self.main.room(), label
        else:
            assert taken or self.main.room(), label
            if not taken:
                if delay:
                    self._await_promotion(self.main, label)
                self._stored(self.main, label, producer="delayed" if delay else "django", key=key)
        self._check()

    def _is_unwanted(self) -> bool:
        return not any(one.credits.get(self.main.name) for one in self.consumers)

    @precondition(lambda self: self.main.max_length is None)
    @rule()
    def let_expire(self) -> None:
        """A message outlives its time before any consumer asks for it."""
        if not self._is_unwanted():
            return
        [label] = self._new(1)
        publish(self.main.name, label.encode(), ttl=0.01)
        wait_until(lambda: label not in self._labels_of(self.main), "the end of its time")
        self._check()

    def _await_promotion(self, queue: Model, label: str) -> None:
        """A message is not delayed any more; whether it was before cannot be told."""
        attempts = 1 + queue.messages[label].attempts if label in queue.messages else 0

        def is_back() -> bool:
            state, made = self._stored_of(queue).get(label, (0, attempts))
            return state != 2 and made >= attempts

        wait_until(is_back, "the delay's end")

    @precondition(lambda self: self.open is None and self.main.max_length is None)
    @rule(count=COUNTS)
    def open_transaction(self, count: int) -> None:
        """Publish within a transaction of Django's that stays open."""
        labels, stack = self._new(count), ExitStack()

        def begin() -> None:
            stack.enter_context(transaction.atomic())
            for some in (labels[:1], labels[1:]):
                publish_many(self.main.name, [label.encode() for label in some])

        self.thread.submit(begin).result(PATIENCE)
        self.open = stack, labels
        self._check()

    @precondition(lambda self: self.open is not None)
    @rule(commits=st.booleans())
    def end_transaction(self, commits: bool) -> None:
        assert self.open is not None
        (stack, labels), self.open = self.open, None

        def end() -> None:
            if not commits:
                transaction.set_rollback(True)
            stack.close()

        self.thread.submit(end).result(PATIENCE)
        if commits:
            self._stored(self.main, *labels, producer="transaction")
        self._check()
