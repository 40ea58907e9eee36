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
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from django.db import connections, transaction
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from kombu.connection import Connection

from queues.api import QueueFull, publish, publish_many
from queues.models import ApiKey, Outcome, Queue, Subscription
from queues.operations import messages as operators
from queues.operations.queues import create_queue, delete_queue
from queues.operations.routes import add_route, remove_route
from tests.queues.model.broker import Brokers, LiveBroker
from tests.queues.model.consumers import CeleryConsumer, Consumer, Poller, Receiver, Recipient, Worker, peer_of
from tests.queues.model.leases import noted
from tests.queues.model.reference import DEAD, HELD, READY, Delivery, Difference
from tests.queues.model.reference import Queue as Model
from tests.waiting import PATIENCE, wait_until
from wire.blipmq.client import Client as BlipClient
from wire.blipmq.client import NackError
from wire.overhop.client import QueueFull as OverhopQueueFull
from wire.sspq.client import Client as SspqClient

KEY = "dev-key"
MAX_ATTEMPTS = 3
#: Seconds that a consumer is asked at a time.
TURN = 0.02
#: Messages of a publish that is no burst, at most; of all queues' messages together when bursts become such.
FEW, MANY = 4, 900
#: Messages of one publish; that a consumer asks for at once.
COUNTS = st.sampled_from([1, 2, 3, 4, 7, 40, 300])
CREDITS = st.sampled_from([1, 2, 3, 20, 200])
#: Of the messages that a consumer has, those that it settles together.
PARTS = {"all": slice(None), "first half": slice(0, None, 2), "last": slice(-1, None), "first": slice(0, 1)}
#: Messages from which on those published together are a segment.
SEGMENTS = (1, 2, 7, 32)
#: Seconds that a segment may be settled in part. With the shortest the archive is compared after each step.
LINGERS = (0.05, 1.0, 3600.0)
NODE = st.integers(0, 1)
#: Which one of those that there are: nothing else may be drawn, for who has got what is not the same in each run.
PICK = st.integers(0, 999)
T = TypeVar("T")
_numbers = itertools.count(1)
STATES = {READY: (0, 1, 2), HELD: (1,), DEAD: (3,)}


class BrokerMachine(RuleBasedStateMachine):
    """`brokers` is set by the test; they serve all examples."""

    brokers: Brokers

    def __init__(self) -> None:
        super().__init__()
        self._labels = (f"m{n}" for n in itertools.count(1))
        self.consumers: list[Consumer] = []
        #: Steps since the last fault.
        self.steps = 0
        #: An open transaction of Django's, in a thread and on a connection of its own, and what it has published.
        self.thread = ThreadPoolExecutor(1)
        self.open: tuple[ExitStack, list[str]] | None = None

    # Begin and end.

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

    def _route(self) -> None:
        """Begin or end the way from the topic to `main`."""
        (remove_route if self.routed else add_route)(f"topic:{self.topic}", f"queue:{self.main.name}")
        self.routed = not self.routed

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

    # The comparison.

    def _check(self, archive: bool = False) -> None:
        """Await the deliveries that must come, then the store's agreement; the archive's too, if not all is there by
        now that is settled in part."""
        self.steps += 1
        archive = archive or self.linger == LINGERS[0]
        for queue in self.queues.values():
            self._observe(queue)
        for queue in self.queues.values():
            look = partial(self._disagreement, queue, archive)
            wait_until(lambda: not look(), look)  # noqa: B023
        wait_until(self._has_nothing_ahead, "the return of what Celery's consumers had ahead")
        for got in (got for consumer in self.consumers for got in consumer.early):
            raise Difference(f"{got.label} of {got.queue} came, where none was allowed")
        for broker in self.brokers.living:
            assert not broker.engine.health.isolated, broker.engine.health.isolated

    def _has_nothing_ahead(self) -> bool:
        """Whether Celery's consumers have no more than they were seen to be given."""
        return self.brokers.with_celery(self.rows[self.main.name].pk) <= len(self._held(CeleryConsumer))

    def _observe(self, queue: Model) -> None:
        waiting = [one for one in self.consumers if one.credits.get(queue.name)]
        for consumer in waiting:
            queue.enter(consumer)
        batch: list[Delivery] = []
        for consumer in self.consumers:
            for got in [one for one in consumer.early if one.queue == queue.name]:
                consumer.early.remove(got)
                self._note(consumer, got, batch, queue)
        asked = sum(one.credits[queue.name] for one in waiting if queue.serves(one))
        expected = queue.deliverable(len(batch) + asked)

        def complete() -> bool:
            for consumer in waiting:
                if self.brokers.several:
                    self._stored_of(queue)
                while consumer.credits.get(queue.name) and (got := consumer.take(TURN)) is not None:
                    self._note(consumer, got, batch, queue)
            return len(batch) >= expected and self._is_in_line(queue)

        wait_until(complete, lambda: f"{expected} deliveries of {queue.name}, only {[one.label for one in batch]}")
        self._note_holders(queue)
        queue.deliver(batch)

    def _stored_of(self, queue: Model) -> dict[str, tuple[int, int]]:
        """The state and the number of attempts of each message in the store, in its order; the model notes which nodes
        hold it."""
        rows = self.brokers.store.rows(
            "select encode(payload, 'escape') as text, state, attempts, node_id from queues_openmessage"
            " where queue_id = %s order by id", self.rows[queue.name].pk,
        )  # fmt: skip
        return self._as_stored(queue, [tuple(row.values()) for row in rows])

    def _as_stored(self, queue: Model, rows: Sequence[Any]) -> dict[str, tuple[int, int]]:
        nodes, found = self.brokers.nodes(), {}
        for text, state, attempts, node in rows:
            label = _label(text)
            found[label] = state, attempts
            if node is not None:
                queue.note_holder(label, nodes.get(node) if self.brokers.several else self.brokers.at(0))
        return found

    def _note_holders(self, queue: Model) -> None:
        """The model notes which nodes that run have had its messages since the last deliveries."""
        nodes = self.brokers.nodes()
        for text, node in noted(self.brokers.store, self.rows[queue.name].pk):
            if node in nodes:
                queue.note_holder(_label(text), nodes[node])

    def _is_in_line(self, queue: Model) -> bool:
        """Whether as many consumers as should stand in line in the store, the first of them active."""
        if queue.line is None:
            return True
        rows = self.brokers.store.rows(
            "select active from queues_consumer where queue_id = %s order by id", self.rows[queue.name].pk
        )
        return [row["active"] for row in rows] == [n == 0 for n in range(len(queue.line))]

    def _note(self, consumer: Consumer, got: Any, batch: list[Delivery], queue: Model) -> None:
        if got.queue != queue.name:
            consumer.early.append(got)
            return
        attempt = got.attempt
        if isinstance(consumer, Receiver) and (message := queue.messages.get(got.label)) is not None:
            limit = queue.max_attempts if message.limit is None else message.limit
            attempt = limit - consumer.held[got.label][1] if limit else None
        batch.append(Delivery(consumer, consumer.broker, got.label, attempt))

    def _disagreement(self, queue: Model, archive: bool) -> str:
        """The first difference between the store and the model; empty if there is none."""
        id = self.rows[queue.name].pk
        [row] = self.brokers.at_once(
            "select (select json_agg(json_build_array(encode(payload, 'escape'), state, attempts, node_id))"
            " from queues_openmessage where queue_id = q.id) as found, to_json(h) as counted,"
            " (select count(*) from queues_archive where queue_id = q.id and outcome = %s) as archived"
            " from queues_queue q, queues_held(q.id) h where q.id = %s", Outcome.ACKNOWLEDGED, id,
        )  # fmt: skip
        stored = self._as_stored(queue, row["found"] or [])
        counted = [row["counted"][name] for name in ("ready", "leased", "delayed")] + [row["counted"]["dead"]]
        states = [state for state, _ in stored.values()]
        exact = [states.count(0), states.count(1), states.count(2), states.count(3) + states.count(4)]
        if counted != exact:
            raise Difference(f"{queue.name}: counted {counted}, stored {exact}")
        problems = [f"{label} is stored: {found}" for label, found in stored.items() if label not in queue.messages]
        for label, message in queue.messages.items():
            found = stored.get(label)
            if found is None:
                problems.append(f"{label} is not stored")
            elif found[0] not in STATES[message.state] or (queue.counts_attempts and found[1] != message.attempts):
                problems.append(f"{label} is stored as {found}, not {message.state} after {message.attempts}")
        if row["archived"] > queue.settled or (archive and row["archived"] != queue.settled):
            problems.append(f"{row['archived']} archived, not {queue.settled}")
        return f"{queue.name}: " + "; ".join(problems) if problems else ""

    # Publishing.

    def _new(self, count: int) -> list[str]:
        """Labels of new messages, fewer than asked for when there are many messages."""
        if count > FEW and sum(len(queue.messages) for queue in self.queues.values()) > MANY:
            count = FEW
        return list(itertools.islice(self._labels, count))

    def _blipmq(self, node: int) -> BlipClient:
        address = self.brokers.at(node).blipmq
        return BlipClient(address.host, address.port, KEY)

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
        with SspqClient(address.host, address.port) as client:
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

    # Consuming.

    def _add(self, consumer: Any) -> Any:
        self.consumers.append(consumer)
        return consumer

    def _drop(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        for queue in self.queues.values():
            queue.leave(consumer)

    def _of(self, kind: type[Any]) -> list[Any]:
        return [one for one in self.consumers if type(one) is kind]

    def _at(self, kind: type[Any], node: int) -> list[Any]:
        return [one for one in self._of(kind) if one.broker is self.brokers.at(node)]

    def _worker(self, node: int, n: int = 0) -> Worker:
        workers: list[Worker] = self._at(Worker, node)
        return workers[n] if n < len(workers) else self._add(Worker(self.brokers.at(node)))

    @rule(n=st.integers(0, 1), credits=CREDITS, graves=st.booleans(), node=NODE)
    def grant(self, n: int, credits: int, graves: bool, node: int = 0) -> None:
        self._worker(node, n).grant((self.graves if graves else self.main).name, credits)
        self._check()

    @rule(node=NODE)
    def receive(self, node: int = 0) -> None:
        """Over SSPQ."""
        receivers = [one for one in self._at(Receiver, node) if one.is_idle]
        receiver: Receiver = (
            receivers[0] if receivers else self._add(Receiver(self.brokers.at(node), self.main.name))
        )
        receiver.receive()
        self._check()

    @rule(count=CREDITS, node=NODE)
    def poll(self, count: int = 1, node: int = 0) -> None:
        """Over BlipMQ."""
        if not self.copies.deliverable(1):
            return
        pollers = self._at(Poller, node)
        poller = (
            pollers[0] if pollers else self._add(Poller(self.brokers.at(node), self.copies.name, self.subscription))
        )
        poller.poll(self.copies.deliverable(count))
        self._check()

    @precondition(lambda self: self.celery)
    @rule(prefetch=CREDITS)
    def consume_from_celery(self, prefetch: int) -> None:
        self._add(CeleryConsumer(self.brokers.celery_url, self.main.name, prefetch))
        self._check()

    @rule(node=NODE)
    def take_mailbox(self, node: int = 0) -> None:
        """The peer connects, perhaps to another node: what its earlier connection has goes over to this one."""
        earlier = self._of(Recipient)
        new = Recipient(self.brokers.at(node), self.peer, self.letters.name, self.key)
        for consumer in earlier:
            self._drop(consumer)
            for label in consumer.held:
                self.letters.hand_back(label)
        self._add(new)
        self._check()

    def _held(self, *kinds: type[Any]) -> list[tuple[Any, str]]:
        return [(one, label) for one in self.consumers if isinstance(one, kinds) for label in one.held]

    def _settle(self, consumer: Consumer, label: str) -> None:
        name, handle = consumer.held.pop(label)
        assert consumer.settle(handle), label
        self.queues[name].settle(label)
        self._works(consumer)

    @rule(pick=PICK)
    def settle_one(self, pick: int) -> None:
        for consumer, label in picked(self._held(Consumer), pick):
            self._settle(consumer, label)
            self._check()

    def settle(self, label: str) -> None:
        """A message of `main`."""
        [consumer] = [one for one, held in self._held(Worker, Receiver, CeleryConsumer) if held == label]
        self._settle(consumer, label)
        self._check()

    @rule(pick=PICK, part=st.sampled_from([*PARTS]))
    def settle_some(self, pick: int, part: str) -> None:
        consumers = [one for one in self.consumers if not isinstance(one, Receiver) and one.held]
        for consumer in picked(consumers, pick):
            self._settle_part(consumer, list(consumer.held)[PARTS[part]])
            self._check()

    def _settle_part(self, consumer: Consumer, labels: Sequence[str]) -> None:
        """Settle several messages at once."""
        taken = [(label, *consumer.held.pop(label)) for label in labels]
        consumer.settle_many([handle for _, _, handle in taken])
        for label, name, _ in taken:
            self.queues[name].settle(label)
        self._works(consumer)

    def _works(self, consumer: Consumer) -> None:
        """A consumer has settled messages. One of Celery's is given some ahead for a moment, which others overtake."""
        if isinstance(consumer, CeleryConsumer):
            for message in self.main.of(READY):
                message.nodes.add(CeleryConsumer)

    @rule(pick=PICK, delay=st.sampled_from([0.0, 0.0, 0.02]))
    def fail_one(self, pick: int, delay: float) -> None:
        for _, label in picked(self._held(Worker, CeleryConsumer), pick):
            self.fail(label, delay)

    def fail(self, label: str, delay: float = 0.0) -> None:
        [consumer] = [one for one, held in self._held(Worker, CeleryConsumer) if held == label]
        name, handle = consumer.held.pop(label)
        consumer.fail(handle, delay)
        queue = self.queues[name]
        if not queue.gives_up(label):
            self._await_promotion(queue, label)
        queue.fail(label)
        self._works(consumer)
        self._check()

    @precondition(lambda self: self.celery)
    @rule(pick=PICK)
    def reject(self, pick: int) -> None:
        """Celery: the message is a dead letter."""
        for consumer, label in picked(self._held(CeleryConsumer), pick):
            name, handle = consumer.held.pop(label)
            consumer.reject(handle)
            self.queues[name].fail(label, gives_up=True)
            self._works(consumer)
            self._check()

    @rule(pick=PICK)
    def settle_late(self, pick: int) -> None:
        """Settle a delivery made before the leases were lost: valid if its message is stored and ready. What another
        node has by now in its memory may come again all the same."""
        self._stored_of(self.main)
        self._stored_of(self.graves)
        late = [
            (one, label) for one in self._of(Worker) for label, (name, _) in one.stale.items()
            if (message := self.queues[name].messages.get(label)) is not None and message.state == READY
            and not message.is_elsewhere(one.broker)
        ]  # fmt: skip
        for consumer, label in picked(late, pick):
            name, handle = consumer.stale.pop(label)
            if consumer.settle(handle):
                self.queues[name].settle(label)
            self._check()

    @rule(pick=PICK, polite=st.booleans())
    def disconnect_one(self, pick: int, polite: bool) -> None:
        for consumer in picked(self.consumers, pick):
            self.disconnect(consumer, polite)

    def disconnect(self, consumer: Consumer, polite: bool) -> None:
        """A worker that ends without GOODBYE, and a receiver, have failed; BlipMQ's deliveries stay out."""
        if isinstance(consumer, Poller):
            return
        self._drop(consumer)
        if isinstance(consumer, CeleryConsumer | Recipient) or (isinstance(consumer, Worker) and polite):
            consumer.goodbye() if isinstance(consumer, Worker) else consumer.close()
            for label, (name, _) in consumer.held.items():
                self.queues[name].hand_back(label)
        else:
            consumer.close()
            for label, (name, _) in consumer.held.items():
                self.queues[name].fail(label, in_place=self.queues[name].line is not None)
        self._check()

    # Operators.

    def change(self, queue: Model, **policy: Any) -> None:
        """Change a queue's policy, and have the engine obey."""
        Queue.objects.filter(name=queue.name).update(**policy)
        self.brokers.obey(queue.name)
        for ours, theirs in (("paused", "paused"), ("concurrency", "concurrency_limit"), ("max_length", "max_length")):
            if theirs in policy:
                setattr(queue, ours, policy[theirs])
        if "overflow" in policy:
            queue.drops_oldest = policy["overflow"] == "drop-oldest"

    @rule(
        policy=st.fixed_dictionaries({}, optional={
            "paused": st.booleans(), "concurrency_limit": st.sampled_from([None, 1, 2]), "audited": st.booleans(),
            "dead_letter_queue": st.booleans(), "retention": st.sampled_from(["metadata", "full"]),
            "message_ttl": st.sampled_from([None, "1 hour"]),
        }).filter(bool)
    )  # fmt: skip
    def change_policy(self, policy: dict[str, Any]) -> None:
        if "dead_letter_queue" in policy:
            policy["dead_letter_queue"] = self.rows[self.graves.name] if policy["dead_letter_queue"] else None
            self.main.target = self.graves if policy["dead_letter_queue"] else None
        self.change(self.main, **policy)
        self._check()

    @precondition(lambda self: self.open is None)
    @rule(spare=st.sampled_from([None, None, 0, 2]), overflow=st.sampled_from(["reject", "drop-oldest"]))
    def limit_length(self, spare: int | None, overflow: str) -> None:
        """The queue may hold so many more than it has."""
        living = len(self.main.messages) - len(self.main.of(DEAD))
        self.change(self.main, max_length=None if spare is None else max(1, living + spare), overflow=overflow)
        self._check()

    @rule()
    def purge(self) -> None:
        operators.purge(self.main.name)
        self.main.remove([one.label for one in self.main.of(READY)])
        self._check()

    @precondition(lambda self: self.open is None)
    @rule()
    def route(self) -> None:
        """The topic leads to `main`, or no longer."""
        self._route()
        self._check()

    @rule(pick=PICK)
    def remove(self, pick: int) -> None:
        """A dead letter or a message that waits, by its id. What a node has in memory stays."""
        for message in picked(self.main.of(DEAD) + self.main.of(READY), pick):
            self.remove_messages(message.label)

    def _idle_in_store(self) -> set[str]:
        """Messages of `main` that no node can have or take: there is no consumer. Empty if there is one."""
        if len(self._of(Poller)) + len(self._of(Recipient)) < len(self.consumers):
            return set()
        for broker in self.brokers.living:
            wait_until(lambda: not broker.engine.local_queues.claiming, "the end of claims")  # noqa: B023
        return {label for label, (state, _) in self._stored_of(self.main).items() if state in (0, 2)}

    def remove_messages(self, *labels: str) -> None:
        rows = self.brokers.store.rows(
            "select id from queues_openmessage where queue_id = %s and encode(payload, 'escape') ~ %s",
            self.rows[self.main.name].pk, rf"(^|\D)({'|'.join(labels)})$",
        )  # fmt: skip
        assert len(rows) == len(labels)
        sure = self._idle_in_store() | {one.label for one in self.main.of(DEAD)}
        count = operators.remove_messages(self.main.name, [row["id"] for row in rows])
        stored = self._labels_of(self.main)
        gone = [label for label in labels if label not in stored]
        assert count == len(gone)
        assert not sure & {*labels} - {*gone}, "they were not removed"
        self.main.remove(gone)
        self._check()

    @rule(limit=st.sampled_from([None, 1, 5]))
    def move(self, limit: int | None, progress: Callable[[int], None] = lambda _: None) -> None:
        """To `graves`. What a node has in memory stays."""
        sure = self._idle_in_store()
        count = operators.move(self.main.name, self.graves.name, limit=limit, progress=progress)
        self._note_holders(self.main)
        ready = {one.label: one for one in self.main.of(READY)}
        moved = [ready[label] for label in self._stored_of(self.graves) if label in ready]
        assert count == len(moved), moved
        assert count >= len(sure) if limit is None else min(limit, len(sure)) <= count <= limit
        self.main.remove([one.label for one in moved])
        self.graves.receive(moved)
        self._check()

    @precondition(lambda self: self.open is None)
    @rule()
    def delete(self) -> None:
        """`main` with all that it has, and its consumers; another one takes its place."""
        if self.steps < 15:
            return
        self.steps = 0
        old, row = self.main, self.rows[self.main.name]
        delete_queue(old.name, force=True)
        for consumer in tuple(self.consumers):
            if not isinstance(consumer, Poller | Recipient):
                consumer.close()
                self._drop(consumer)
                for label, (name, _) in consumer.held.items():
                    if name != old.name:
                        self.queues[name].fail(label)
        wait_until(
            lambda: not self.brokers.store.rows("select from queues_openmessage where queue_id = %s", row.pk),
            "the end of a deleted queue's messages",
        )
        new = create_queue(old.name, max_attempts=MAX_ATTEMPTS, retry_backoff=0, ack_timeout=3600)
        self.brokers.obey(old.name)
        for broker in self.brokers.living:
            broker.serve_again(old.name, new.pk)
        self.rows[old.name] = new
        self.main = self.queues[old.name] = Model(old.name, MAX_ATTEMPTS)
        self._check()

    @precondition(lambda self: self.main.max_length is None)
    @rule()
    def put_back(self) -> None:
        assert operators.put_back(self.main.name) == len(self.main.of(DEAD))
        self.main.put_back()
        self._check()

    # Faults.

    @rule(
        work=st.sampled_from([0, 1, 5, 200]), node=NODE,
        fault=st.sampled_from(["connections", "stop", "kill", "kill at work", "death", "celery"]),
    )  # fmt: skip
    def break_off(self, work: int, fault: str, node: int) -> None:
        """A fault of one kind; `work` is how many publishes it interrupts. None so soon after the last: an engine waits
        longer before each new start, if it has done no work."""
        if self.steps < 5:
            return
        if fault == "connections":
            self.lose_connections(node)
        elif fault == "kill at work":
            self.be_killed_at_work(0 if self._drops else work, node)
        elif fault == "death":
            self.die(node)
        elif fault == "celery":
            self.kill_celery()
        else:
            self.restart(fault == "kill", node)

    def lose_connections(self, node: int = 0) -> None:
        """PostgreSQL ends an engine's connections; clients stay."""
        self.steps = 0
        broker = self.brokers.at(node)
        broker.lose_connections()
        consumers = [one for one in self._consumers_of(broker) if not isinstance(one, Recipient)]
        self._lose_leases(consumers)
        for consumer in consumers:
            consumer.lose_leases()
        for queue in self.queues.values():
            if queue.line is not None:  # they come anew
                queue.line.sort(key=lambda one: one in consumers)
        self._check()

    def _consumers_of(self, broker: LiveBroker | None) -> list[Consumer]:
        return [one for one in self.consumers if one.broker is broker]

    def _lose_leases(self, consumers: Sequence[Consumer]) -> None:
        for consumer in consumers:
            for label, (name, _) in consumer.held.items():
                self.queues[name].hand_back(label)

    def restart(self, kills: bool, node: int = 0) -> None:
        broker = self.brokers.at(node)
        self._end(broker, broker.kill if kills else broker.stop)
        broker.start()
        self._check()

    def kill_celery(self) -> None:
        self._end(None, self.brokers.kill_celery)
        self._check()

    def _end(self, broker: LiveBroker | None, end: Callable[[], None]) -> None:
        """A broker ends, and with it its consumers."""
        self.steps = 0
        end()
        self._lose_leases(self._consumers_of(broker))
        for consumer in self._consumers_of(broker):
            consumer.close()
            self._drop(consumer)

    def die(self, node: int) -> None:
        """One of two is killed and stays dead; or it comes back."""
        if len(self.brokers.living) > 1:
            broker = self.brokers.at(node)
            self._end(broker, partial(self.brokers.let_die, broker))
        else:
            self.brokers.revive()
        self._check()

    def be_killed_at_work(self, count: int, node: int = 0) -> None:
        """Publishes and acknowledgements are under way, and the broker is killed: each is done or not, and of one
        producer's publishes no later one without the earlier."""
        broker = self.brokers.at(node)
        labels, unsure = self._new(count), []
        client = self._blipmq(node)
        client.publish_many(self.topic, [label.encode() for label in labels])
        for consumer in self._consumers_of(broker):
            some = list(consumer.held)[::2]
            consumer.settle_many([consumer.held[label][1] for label in some])
            unsure += [(self.queues[consumer.held[label][0]], label) for label in some]
        note(f"killed during publishes of {labels} and acknowledgements of {unsure}")
        self._end(broker, broker.kill)
        broker.start()
        for queue in (self.main, self.copies, self.letters) if self.routed else (self.copies, self.letters):
            found = self._labels_of(queue)
            arrived = [label for label in labels if label in found]
            if queue.max_length is None and arrived != labels[: len(arrived)]:
                raise Difference(f"{queue.name}: of {labels} only {arrived} were stored")
            self._stored(queue, *arrived, producer="blipmq")
        for queue, label in unsure:
            if label not in self._labels_of(queue):
                queue.settle(label)
        client._driver.abort()
        self._check()


def picked(those: Sequence[T], pick: int) -> Sequence[T]:
    """One of those, if there are any."""
    return [those[pick % len(those)]] if those else []


def _label(text: str) -> str:
    """The label at the end of a stored payload."""
    return "m" + text.rpartition("m")[2]
