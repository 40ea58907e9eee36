"""One run: clients and listeners started, faults done at random times, the store drained, everything judged."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import psycopg

from brokersite.rigs.process import HOST
from brokersite.rigs.torture.checker import BrokenPromise, check
from brokersite.rigs.torture.database import KEY, TortureDatabase
from brokersite.rigs.torture.faults import Acts, Tormentor, schedule
from brokersite.rigs.torture.history import InjectedFaultKind, QueueRules, RunHistory, Store
from brokersite.rigs.torture.listeners import PREFETCH, ListenerProcess
from brokersite.rigs.torture.store import count_waiting, read_store
from brokersite.rigs.torture.workload import LoadClient, SharedLoad, SspqPeer, SubscriptionConsumer, TopicProducer
from wire.blipmq import client as blipmq

#: Seconds that clients have to take all that is left, once the faults are over.
DRAIN = 90.0
JOIN = 70.0
REPORT = 5.0
#: Messages a second of each BlipMQ producer, at most.
RATE = 1200.0
#: Messages of each queue that one fault may cause to be given out again: what a listener holds in memory.
IN_FLIGHT = PREFETCH

Say = Callable[[str], None]


@dataclass(frozen=True)
class TorturePlan:
    """The plan of a run. Without any fault it is a load of `seconds`, which otherwise is the most it may take."""

    seed: int
    faults: dict[InjectedFaultKind, int] = field(default_factory=dict)
    seconds: float = 900.0
    listeners: int = 1
    #: Messages to be confirmed before the load ends: when the faults are over it goes on until then.
    confirmed: int = 0
    #: Shortest and longest time between the end of a fault and the next.
    rest: tuple[float, float] = (0.1, 0.9)
    #: Module or file of another build of the broker, in place of `brokersite`.
    program: tuple[str, ...] = ()


@dataclass
class TortureReport:
    """The result."""

    violations: list[BrokenPromise]
    history: RunHistory
    store: Store
    seconds: float

    @property
    def passed(self) -> bool:
        return not self.violations

    def figures(self) -> dict[str, float]:
        """By name: messages by what became of them, faults by kind."""
        history = self.history
        repetitions, asked_for = _repetitions(history)
        made = Counter(fault.kind for fault in history.faults)
        return {
            "attempted": len(history.publishes),
            "confirmed": sum(publish.confirmed is not None for publish in history.publishes),
            "delivered": len(history.deliveries),
            "acknowledged": sum(delivery.acked for delivery in history.deliveries),
            "returned on purpose": sum(delivery.let_go for delivery in history.deliveries),
            "given out again after that": asked_for,
            "given out again otherwise": repetitions - asked_for,
            "archived": len(self.store.archive),
            "left in the store": len(self.store.messages),
            **{kind.value: made[kind] for kind in InjectedFaultKind if made[kind]},
            "seconds": round(self.seconds, 1),
        }


class Run:
    """A run in a database that is started; `run` does it. `acts` are faults of the database beyond torture's own."""

    def __init__(self, database: TortureDatabase, plan: TorturePlan, say: Say, acts: Acts | None = None) -> None:
        self._database = database
        self._plan = plan
        self._say = say
        self._random = random.Random(plan.seed)
        #: Names of its own, so that several runs can share a database.
        self._name = f"torture-{random.SystemRandom().randrange(16**8):08x}"
        self._history = RunHistory()
        self._listeners = [ListenerProcess(n, database, self._name, plan.program) for n in range(plan.listeners)]
        self._tormentor = Tormentor(database, self._listeners, self._history, self._random, acts or {})
        self._stage = SharedLoad(self._listeners)
        self._clients: list[LoadClient] = []
        self._rules: list[QueueRules] = []

    def run(self) -> TortureReport:
        """Everything, from the start of the listeners to the verdict. Raises ProcessFailed, TimeoutError."""
        begin = monotonic()
        try:
            self._tormentor.start_all()
            self._make_clients()
            # Messages settled before a listener knows the retention just set are archived without their bodies.
            self._tormentor.stop_all()
            self._tormentor.start_all()
            self._stage.publishing.set()
            for client in self._clients:
                client.start()
            self._torment(begin)
            self._tormentor.await_ready()
            self._stage.publishing.clear()
            with self._database.connect() as connection:
                self._drain(connection, begin)
                self._end_clients()
                self._tormentor.stop_all()
                store = read_store(connection, self._queues)
        finally:
            self._stage.publishing.clear()
            self._stage.closed.set()
            for listener in self._listeners:
                listener.end()
        for client in self._clients:
            self._history.add(client.publishes, client.deliveries, client.troubles)
        violations = check(self._history, store, self._rules, IN_FLIGHT)
        return TortureReport(violations, self._history, store, monotonic() - begin)

    @property
    def _queues(self) -> list[str]:
        return [rule.name for rule in self._rules]

    def _make_clients(self) -> None:
        """A topic with two subscriptions, one of them audited and for a forgetful consumer, and a queue."""
        stage, seed = self._stage, self._plan.seed
        with blipmq.Client(HOST, self._listeners[0].blipmq, KEY) as client:
            steady, other = (client.subscribe(self._name) for _ in range(2))
        with self._database.connect() as connection:
            steady_queue = _tune(connection, "s.id = %s", steady, retention="full")
            other_queue = _tune(connection, "s.id = %s", other, max_attempts=4, retry_backoff="250 ms", audited=True)
            _tune(connection, "q.name = %s", self._name, retention="full")
        producers: list[LoadClient] = [TopicProducer(f"p{n}", stage, seed, self._name, RATE) for n in range(3)]
        peers: list[LoadClient] = [SspqPeer(f"s{n}", stage, seed, self._name, True) for n in range(3)]
        self._clients = [
            *producers,
            *(SubscriptionConsumer(f"c{n}", stage, seed, steady_queue, steady) for n in range(2)),
            *(SubscriptionConsumer(f"f{n}", stage, seed, other_queue, other, forgetful=True) for n in range(1)),
            *peers,
            SspqPeer("r0", stage, seed, self._name, False),
        ]
        topic = frozenset(client.name for client in producers)
        self._rules = [
            QueueRules(steady_queue, topic, "full"),
            QueueRules(other_queue, topic, "metadata", timed=True, audited=True),
            QueueRules(self._name, frozenset(client.name for client in peers), "full"),
        ]

    def _torment(self, begin: float) -> None:
        """Do every fault, with a rest before each; without any just wait."""
        kinds = schedule(self._plan.faults, self._random)
        deadline, reported = begin + self._plan.seconds, monotonic()
        for done, kind in enumerate(kinds):
            time.sleep(self._random.uniform(*self._plan.rest))
            if monotonic() > deadline:
                self._say(f"the time is over after {done} of {len(kinds)} faults")
                return
            self._tormentor.look_after()
            self._tormentor.strike(kind)
            if monotonic() - reported > REPORT:
                reported = monotonic()
                self._progress(f"{done + 1} of {len(kinds)} faults", begin)
        while (not kinds or self._confirmed < self._plan.confirmed) and monotonic() < deadline:
            self._stage.closed.wait(min(1.0 if kinds else REPORT, deadline - monotonic()))
            self._tormentor.look_after()
            self._progress("no more faults" if kinds else "no faults", begin)

    @property
    def _confirmed(self) -> int:
        return sum(client.confirmed for client in self._clients)

    def _progress(self, what: str, begin: float) -> None:
        delivered = sum(len(client.deliveries) for client in self._clients)
        self._say(f"{monotonic() - begin:6.0f} s  {what}, {self._confirmed} confirmed, {delivered} delivered")

    def _drain(self, connection: psycopg.Connection[Any], begin: float) -> None:
        """Wait until consumers have taken everything; what they have not is for the checker to tell."""
        deadline = monotonic() + DRAIN
        while count_waiting(connection, self._queues) and monotonic() < deadline:
            self._tormentor.look_after()
            time.sleep(0.1)
        self._progress("consumers are done", begin)

    def _end_clients(self) -> None:
        self._stage.closed.set()
        deadline = monotonic() + JOIN
        for client in self._clients:
            client.join(max(0.1, deadline - monotonic()))


def _repetitions(history: RunHistory) -> tuple[int, int]:
    """The number of deliveries that were not the first of their message, and of those that a consumer had caused."""
    last: dict[tuple[str, object], bool] = {}
    count = asked_for = 0
    for delivery in sorted(history.deliveries, key=lambda delivery: delivery.at):
        key = delivery.queue, delivery.message
        if key in last:
            count += 1
            asked_for += last[key]
        last[key] = delivery.let_go
    return count, asked_for


def _tune(connection: psycopg.Connection[Any], which: str, value: object, **columns: object) -> str:
    """Change the policy of one queue; returns its name."""
    changes = ", ".join(f"{name} = %s" for name in columns)
    row = connection.execute(
        f"""update queues_queue set {changes} where id = (
            select q.id from queues_queue q left join queues_subscription s on s.queue_id = q.id where {which}
        ) returning name""".encode(),
        (*columns.values(), value),
    ).fetchone()
    assert row is not None
    return str(row[0])


def describe(report: TortureReport) -> Sequence[str]:
    """The figures and the verdict, a line each."""
    lines = [f"{name + ':':<46}{value:>12}" for name, value in report.figures().items()]
    lines += [f"VIOLATED: {violation}" for violation in report.violations]
    return [*lines, "passed" if report.passed else "FAILED"]
