"""Random work on a live broker, compared with the model after each step.

One queue, `main`, is used over every protocol: Overhop and SSPQ clients, Django's transactions, and a BlipMQ topic that
a route leads to it. The topic has a subscription too, `copies`; `graves` is the queue that dead letters of `main` may
go to. In some examples `main` has a single active consumer. The steps come one after the other, but for transactions
that stay open and credits that wait for messages. After each step all deliveries that must come are awaited, and then
the store has what the model has.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.db import connections, transaction
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from queues.api import QueueFull, publish
from queues.models import Outcome, Queue, Subscription
from queues.operations import messages as operators
from queues.operations.queues import create_queue
from queues.operations.routes import add_route
from tests.queues.model.broker import LiveBroker
from tests.queues.model.consumers import Consumer, Poller, Receiver, Worker
from tests.queues.model.reference import DEAD, HELD, READY, Difference, Message
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
_numbers = itertools.count(1)
STATES = {READY: (0, 1, 2), HELD: (1,), DEAD: (3,)}


class BrokerMachine(RuleBasedStateMachine):
    """`broker` is set by the test; one serves all examples."""

    broker: LiveBroker

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

    @initialize(single=st.booleans())
    def begin(self, single: bool = False) -> None:
        """With `single` only one consumer of `main` is active."""
        n = next(_numbers)
        self.topic = f"topic{n}"
        make = partial(create_queue, max_attempts=MAX_ATTEMPTS, retry_backoff=0, ack_timeout=3600)
        rows = [make(f"{name}{n}") for name in ("main", "graves")]
        address = self.broker.blipmq
        with BlipClient(address.host, address.port, KEY) as client:
            self.subscription = client.subscribe(self.topic)
        rows.append(Subscription.objects.get(pk=self.subscription).queue)
        Queue.objects.filter(pk=rows[2].pk).update(retry_backoff="1 hour", max_attempts=MAX_ATTEMPTS)
        add_route(f"topic:{self.topic}", f"queue:{rows[0].name}")
        self.rows = {row.name: row for row in rows}
        self.queues = {row.name: Model(row.name, MAX_ATTEMPTS) for row in rows}
        self.main, self.graves, self.copies = self.queues.values()
        self.broker.obey(self.copies.name)
        if single:
            self.main.line = []
            Queue.objects.filter(pk=rows[0].pk).update(single_active_consumer=True)
            self.broker.obey(self.main.name)
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
                self.change(self.main, paused=False, concurrency_limit=None, single_active_consumer=False)
                self.main.line = None
                self.put_back()
                self._drain()
        finally:
            for consumer in self.consumers:
                consumer.close()
            self.thread.submit(connections.close_all).result()
            self.thread.shutdown()

    def _drain(self) -> None:
        for consumer in self.consumers:
            for label in list(consumer.held):
                self._settle(consumer, label)
        for queue in (self.main, self.graves):
            if queue.of(READY):
                worker = self._add(Worker(self.broker))
                worker.grant(queue.name, len(queue.of(READY)))
        while self.copies.of(READY):
            self.poll()
            self._check()
            for consumer in self.consumers:
                if isinstance(consumer, Poller):
                    for label in list(consumer.held):
                        self._settle(consumer, label)
        self._check()
        for consumer in self.consumers:
            for label in list(consumer.held):
                self._settle(consumer, label)
        self._check()
        assert not any(queue.of(READY) or queue.of(HELD) for queue in self.queues.values())

    # The comparison.

    def _check(self) -> None:
        """Await the deliveries that must come, then the store's agreement."""
        self.steps += 1
        for queue in self.queues.values():
            self._observe(queue)
        for queue in self.queues.values():
            wait_until(lambda: not self._disagreement(queue), lambda: self._disagreement(queue))  # noqa: B023

    def _observe(self, queue: Model) -> None:
        waiting = [one for one in self.consumers if one.credits.get(queue.name)]
        for consumer in waiting:
            queue.enter(consumer)
        expected = queue.deliverable(sum(one.credits[queue.name] for one in waiting if queue.serves(one)))
        batch: list[tuple[object, str, int | None]] = []

        def complete() -> bool:
            for consumer in waiting:
                while consumer.credits.get(queue.name) and (got := consumer.take(TURN)) is not None:
                    self._note(consumer, got, batch, queue)
            return len(batch) >= expected and self._is_in_line(queue)

        wait_until(complete, lambda: f"{expected} deliveries of {queue.name}, only {[label for _, label, _ in batch]}")
        queue.deliver(batch)

    def _is_in_line(self, queue: Model) -> bool:
        """Whether as many consumers as should stand in line in the store, the first of them active."""
        if queue.line is None:
            return True
        rows = self.broker.store.rows(
            "select active from queues_consumer where queue_id = %s order by id", self.rows[queue.name].pk
        )
        return [row["active"] for row in rows] == [n == 0 for n in range(len(queue.line))]

    def _note(self, consumer: Consumer, got: Any, batch: list[Any], queue: Model) -> None:
        if got.queue != queue.name:
            raise Difference(f"{got.label} of {got.queue} came, where none was allowed")
        attempt = got.attempt
        if isinstance(consumer, Receiver) and (message := queue.messages.get(got.label)) is not None:
            limit = queue.max_attempts if message.limit is None else message.limit
            attempt = limit - consumer.held[got.label][1] if limit else None
        batch.append((consumer, got.label, attempt))

    def _disagreement(self, queue: Model) -> str:
        """The first difference between the store and the model; empty if there is none."""
        id = self.rows[queue.name].pk
        [row] = self.broker.at_once(
            "select (select json_agg(json_build_array(encode(payload, 'escape'), state, attempts))"
            " from queues_openmessage where queue_id = q.id) as found, to_json(h) as counted,"
            " (select count(*) from queues_archive where queue_id = q.id and outcome = %s) as archived"
            " from queues_queue q, queues_held(q.id) h where q.id = %s", Outcome.ACKNOWLEDGED, id,
        )  # fmt: skip
        stored = {_label(text): (state, attempts) for text, state, attempts in row["found"] or []}
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
            elif found[0] not in STATES[message.state] or found[1] != message.attempts:
                problems.append(f"{label} is stored as {found}, not {message.state} after {message.attempts}")
        if row["archived"] != queue.settled:
            problems.append(f"{row['archived']} archived, not {queue.settled}")
        return f"{queue.name}: " + "; ".join(problems) if problems else ""

    # Publishing.

    def _new(self, count: int) -> list[str]:
        return list(itertools.islice(self._labels, count))

    def _stored(self, queue: Model, label: str, producer: str, **options: Any) -> None:
        """The broker has stored a publish."""
        queue.add(label, producer, **options)
        if queue.max_length is not None and queue.drops_oldest:
            self._observe(queue)
            wait_until(lambda: self._surplus(queue) <= 0, "the drop of the oldest")
            queue.drop_surplus(self._labels_of(queue))

    def _surplus(self, queue: Model) -> int:
        rows = self.broker.store.rows("select queues_room(%s) as room", self.rows[queue.name].pk)
        return -int(rows[0]["room"] or 0)

    def _labels_of(self, queue: Model) -> set[str]:
        rows = self.broker.store.rows(
            "select encode(payload, 'escape') as text from queues_openmessage where queue_id = %s",
            self.rows[queue.name].pk,
        )
        return {_label(row["text"]) for row in rows}

    @rule(
        count=st.integers(1, 4), limit=st.sampled_from([None, None, 1, 2]), priority=st.sampled_from([0, 0, 0, 5, -5])
    )
    def enqueue(self, count: int, limit: int | None, priority: int = 0) -> None:
        """Overhop."""
        worker = self._worker()
        for label in self._new(count):
            try:
                worker.client.enqueue(self.main.name, label.encode(), max_attempts=limit, priority=priority)
            except OverhopQueueFull:
                assert not self.main.accepts(), label
            else:
                assert self.main.accepts(), label
                self._stored(self.main, label, "overhop", limit=limit, priority=priority)
        self._check()

    @rule(count=st.integers(1, 4))
    def publish_to_topic(self, count: int) -> None:
        """BlipMQ: the subscription and the route's target get a copy, or none of them."""
        address = self.broker.blipmq
        with BlipClient(address.host, address.port, KEY) as client:
            for label in self._new(count):
                client.publish(self.topic, label.encode())
                try:
                    client.flush()
                except NackError:
                    assert not self.main.accepts(), label
                else:
                    assert self.main.accepts(), label
                    self._stored(self.copies, label, "blipmq")
                    self._stored(self.main, label, "blipmq")
        self._check()

    @precondition(lambda self: self.main.max_length is None)
    @rule(count=st.integers(1, 4), retries=st.sampled_from([0, 1, 3, 255]))
    def send(self, count: int, retries: int) -> None:
        """SSPQ: all is taken up to the end of the stream."""
        address = self.broker.sspq(self.main.name)
        labels = self._new(count)
        with SspqClient(address.host, address.port) as client:
            for label in labels:
                client.send(label.encode(), retries)
        for label in labels:
            self.main.add(label, "sspq", limit=0 if retries == 255 else retries + 1)
        self._check()

    @rule(key=st.sampled_from([None, None, "k1", "k2"]), delay=st.sampled_from([0.0, 0.02]))
    def publish_from_django(self, key: str | None, delay: float) -> None:
        """Outside a transaction; the key of a stored message is taken, and a delay ends at the tail."""
        [label] = self._new(1)
        taken = self.main.has_key(key)
        try:
            publish(self.main.name, label.encode(), key=key, delay=delay)
        except QueueFull:
            assert not self.main.accepts(), label
        else:
            assert taken or self.main.accepts(), label
            if not taken:
                if delay:
                    self._await_promotion(label)
                self._stored(self.main, label, "django" if not delay else "delayed", key=key)
        self._check()

    def _is_unwanted(self) -> bool:
        return not any(one.credits.get(self.main.name) for one in self.consumers)

    @precondition(lambda self: self.main.max_length is None and self._is_unwanted())
    @rule()
    def let_expire(self) -> None:
        """A message outlives its time before any consumer asks for it."""
        [label] = self._new(1)
        publish(self.main.name, label.encode(), ttl=0.01)
        wait_until(lambda: label not in self._labels_of(self.main), "the end of its time")
        self._check()

    def _await_promotion(self, label: str) -> None:
        sql = "select state from queues_openmessage where queue_id = %s and payload = %s"
        parameters = self.rows[self.main.name].pk, label.encode()
        ended: tuple[list[dict[str, Any]], ...] = ([{"state": 0}], [{"state": 1}], [])
        wait_until(lambda: self.broker.store.rows(sql, *parameters) in ended, "the delay's end")

    @precondition(lambda self: self.open is None and self.main.max_length is None)
    @rule(count=st.integers(1, 3))
    def open_transaction(self, count: int) -> None:
        """Publish within a transaction of Django's that stays open."""
        labels, stack = self._new(count), ExitStack()

        def begin() -> None:
            stack.enter_context(transaction.atomic())
            for label in labels:
                publish(self.main.name, label.encode())

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
        for label in labels if commits else []:
            self.main.add(label, "transaction")
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

    def _worker(self, n: int = 0) -> Worker:
        workers: list[Worker] = self._of(Worker)
        return workers[n] if n < len(workers) else self._add(Worker(self.broker))

    @rule(n=st.integers(0, 1), credits=st.integers(1, 3), graves=st.booleans())
    def grant(self, n: int, credits: int, graves: bool) -> None:
        self._worker(n).grant((self.graves if graves else self.main).name, credits)
        self._check()

    @rule()
    def receive(self) -> None:
        """Over SSPQ."""
        receivers = [one for one in self._of(Receiver) if one.is_idle]
        receiver: Receiver = receivers[0] if receivers else self._add(Receiver(self.broker, self.main.name))
        receiver.receive()
        self._check()

    @precondition(lambda self: self.copies.deliverable(1))
    @rule()
    def poll(self) -> None:
        """Over BlipMQ."""
        pollers = self._of(Poller)
        poller = pollers[0] if pollers else self._add(Poller(self.broker, self.copies.name, self.subscription))
        poller.poll()
        self._check()

    def _held(self, *kinds: type[Any]) -> list[tuple[Any, str]]:
        return [(one, label) for one in self.consumers if isinstance(one, kinds) for label in one.held]

    def _settle(self, consumer: Consumer, label: str) -> None:
        name, handle = consumer.held.pop(label)
        assert consumer.settle(handle), label
        self.queues[name].settle(label)

    @precondition(lambda self: self._held(Consumer))
    @rule(data=st.data())
    def settle_one(self, data: st.DataObject) -> None:
        self._settle(*data.draw(st.sampled_from(self._held(Consumer))))
        self._check()

    def settle(self, label: str) -> None:
        """A message of `main`."""
        [consumer] = [one for one, held in self._held(Worker, Receiver) if held == label]
        self._settle(consumer, label)
        self._check()

    @precondition(lambda self: self._held(Worker))
    @rule(data=st.data())
    def fail_one(self, data: st.DataObject) -> None:
        self.fail(data.draw(st.sampled_from(self._held(Worker)))[1])

    def fail(self, label: str) -> None:
        [worker] = [one for one, held in self._held(Worker) if held == label]
        name, handle = worker.held.pop(label)
        worker.fail(handle)
        self.queues[name].fail(label)
        self._check()

    @precondition(lambda self: any(one.stale and not isinstance(one, Poller) for one in self.consumers))
    @rule(data=st.data())
    def settle_late(self, data: st.DataObject) -> None:
        """Settle a delivery made before the leases were lost: valid if its message is stored and ready."""
        late = [
            (one, label) for one in self._of(Worker) for label, (name, _) in one.stale.items()
            if (message := self.queues[name].messages.get(label)) is not None and message.state == READY
        ]  # fmt: skip
        if not late:
            return
        consumer, label = data.draw(st.sampled_from(late))
        name, handle = consumer.stale.pop(label)
        if consumer.settle(handle):
            self.queues[name].settle(label)
        self._check()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), polite=st.booleans())
    def disconnect_one(self, data: st.DataObject, polite: bool) -> None:
        self.disconnect(data.draw(st.sampled_from(self.consumers)), polite)

    def disconnect(self, consumer: Consumer, polite: bool) -> None:
        """A worker that ends without GOODBYE, and a receiver, have failed; BlipMQ's deliveries stay out."""
        if isinstance(consumer, Poller):
            return
        self._drop(consumer)
        if isinstance(consumer, Worker) and polite:
            consumer.goodbye()
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
        self.broker.obey(queue.name)
        for ours, theirs in (("paused", "paused"), ("concurrency", "concurrency_limit"), ("max_length", "max_length")):
            if theirs in policy:
                setattr(queue, ours, policy[theirs])
        if "overflow" in policy:
            queue.drops_oldest = policy["overflow"] == "drop-oldest"

    @rule(
        policy=st.fixed_dictionaries({}, optional={
            "paused": st.booleans(), "concurrency_limit": st.sampled_from([None, 1, 2]), "audited": st.booleans(),
            "dead_letter_queue": st.booleans(),
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

    @precondition(lambda self: self.main.of(DEAD))
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        """A dead letter, by its id."""
        message: Message = data.draw(st.sampled_from(self.main.of(DEAD)))
        rows = self.broker.store.rows(
            "select id from queues_message where queue_id = %s and encode(payload, 'escape') ~ %s",
            self.rows[self.main.name].pk, rf"(^|\D){message.label}$",
        )  # fmt: skip
        assert operators.remove_messages(self.main.name, [row["id"] for row in rows]) == 1
        self.main.remove([message.label])
        self._check()

    @precondition(lambda self: self.main.of(DEAD) and self.main.max_length is None)
    @rule()
    def put_back(self) -> None:
        assert operators.put_back(self.main.name) == len(self.main.of(DEAD))
        self.main.put_back()
        self._check()

    # Faults.

    def _may_fail(self) -> bool:
        """Whether it is time for a fault: an engine waits longer before each new start, if it has done no work."""
        return self.steps >= 5

    @precondition(_may_fail)
    @rule(work=st.integers(0, 5), fault=st.sampled_from(["connections", "stop", "kill", "kill at work"]))
    def break_off(self, work: int, fault: str) -> None:
        """A fault of one kind; `work` is how many publishes it interrupts."""
        if fault == "connections":
            self.lose_connections()
        elif fault == "kill at work":
            self.be_killed_at_work(work)
        else:
            self.restart(kills=fault == "kill")

    def lose_connections(self) -> None:
        """PostgreSQL ends the engine's connections; clients stay."""
        self.steps = 0
        self.broker.lose_connections()
        self._lose_leases()
        for consumer in self.consumers:
            consumer.lose_leases()
        self._check()

    def _lose_leases(self) -> None:
        for queue in self.queues.values():
            for message in queue.of(HELD):
                queue.hand_back(message.label)

    def restart(self, kills: bool) -> None:
        self._restart(self.broker.kill if kills else self.broker.stop)
        self._check()

    def _restart(self, end: Callable[[], None]) -> None:
        self.steps = 0
        end()
        self.broker.start()
        for consumer in self.consumers:
            consumer.close()
        for consumer in tuple(self.consumers):
            self._drop(consumer)
        self._lose_leases()

    def be_killed_at_work(self, count: int) -> None:
        """Publishes and acknowledgements are under way, and the broker is killed: each is done or not, and of one
        producer's publishes no later one without the earlier."""
        address = self.broker.blipmq
        labels, unsure = self._new(count), []
        client = BlipClient(address.host, address.port, KEY)
        client.publish_many(self.topic, [label.encode() for label in labels])
        for consumer in self.consumers:
            if not isinstance(consumer, Worker):
                for label, (name, handle) in consumer.held.items():
                    consumer.settle(handle)
                    unsure.append((self.queues[name], label))
        note(f"killed during publishes of {labels} and acknowledgements of {unsure}")
        self._restart(self.broker.kill)
        for queue in (self.main, self.copies):
            found = self._labels_of(queue)
            arrived = [label for label in labels if label in found]
            if queue.max_length is None and arrived != labels[: len(arrived)]:
                raise Difference(f"{queue.name}: of {labels} only {arrived} were stored")
            for label in arrived:
                queue.add(label, "blipmq")
        for queue, label in unsure:
            if label not in self._labels_of(queue):
                queue.settle(label)
        client._driver.abort()
        self._check()


def _label(text: str) -> str:
    """The label at the end of a stored payload."""
    return "m" + text.rpartition("m")[2]
