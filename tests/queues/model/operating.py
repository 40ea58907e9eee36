"""The machine's operators, and its faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from queues.models import Queue
from queues.operations import messages as operators
from queues.operations.queues import create_queue, delete_queue
from queues.operations.routes import add_route, remove_route
from tests.queues import moving
from tests.queues.model.broker import LiveBroker
from tests.queues.model.comparison import MAX_ATTEMPTS, picked
from tests.queues.model.consumers import Consumer, Poller, Recipient
from tests.queues.model.consuming import ConsumingMachine
from tests.queues.model.reference import DEAD, READY, Difference
from tests.queues.model.reference import Queue as Model
from tests.waiting import wait_until

NODE = st.integers(0, 1)
#: Which one of those that there are: nothing else may be drawn, for who has got what is not the same in each run.
PICK = st.integers(0, 999)


class OperatingMachine(ConsumingMachine):
    """Queues change, and brokers break."""

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
            wait_until(lambda: not broker.engine.prefetched_queues.claiming, "the end of claims")  # noqa: B023
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
        assert moving.put_back(self.main.name) == len(self.main.of(DEAD))
        self.main.put_back()
        self._check()

    def _route(self) -> None:
        """Begin or end the way from the topic to `main`."""
        (remove_route if self.routed else add_route)(f"topic:{self.topic}", f"queue:{self.main.name}")
        self.routed = not self.routed

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
        client._link.abort()
        self._check()
