"""The state of the machine: consumers of live brokers, and the comparison of the store with the model."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from queues.models import Outcome, Queue
from tests.queues.model.broker import Brokers
from tests.queues.model.consumers import CeleryConsumer, Consumer, Receiver, Worker
from tests.queues.model.leases import noted
from tests.queues.model.reference import DEAD, HELD, READY, Delivery, Difference
from tests.queues.model.reference import Queue as Model
from tests.waiting import wait_until

MAX_ATTEMPTS = 3
#: Seconds that a consumer is asked at a time.
TURN = 0.02
#: Seconds that a segment may be settled in part. With the shortest the archive is compared after each step.
LINGERS = (0.05, 1.0, 3600.0)
T = TypeVar("T")
STATES = {READY: (0, 1, 2), HELD: (1,), DEAD: (3,)}


class ComparedMachine(RuleBasedStateMachine):
    """`brokers` is set by the test; they serve all examples."""

    brokers: Brokers
    #: Made by `begin`: the queues' rows and their models, by name, and where they are reached.
    rows: dict[str, Queue]
    queues: dict[str, Model]
    main: Model
    graves: Model
    copies: Model
    letters: Model
    topic: str
    peer: str
    key: int
    subscription: int
    linger: float
    celery: bool
    routed: bool

    def __init__(self) -> None:
        super().__init__()
        self._labels = (f"m{n}" for n in itertools.count(1))
        self.consumers: list[Consumer] = []
        #: Steps since the last fault.
        self.steps = 0
        #: An open transaction of Django's, in a thread and on a connection of its own, and what it has published.
        self.thread = ThreadPoolExecutor(1)
        self.open: tuple[ExitStack, list[str]] | None = None

    # Consumers.

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

    def _held(self, *kinds: type[Any]) -> list[tuple[Any, str]]:
        return [(one, label) for one in self.consumers if isinstance(one, kinds) for label in one.held]

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


def picked(those: Sequence[T], pick: int) -> Sequence[T]:
    """One of those, if there are any."""
    return [those[pick % len(those)]] if those else []


def _label(text: str) -> str:
    """The label at the end of a stored payload."""
    return "m" + text.rpartition("m")[2]
