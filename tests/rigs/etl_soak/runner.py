"""A soak from beginning to end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from time import monotonic, sleep

from django.conf import settings

from brokersite.rigs.etl.scratch import environment, scratch_database, scratch_directory
from queues.engine.access import key_digest
from queues.models import ApiKey, EtlRun, EtlState, Queue, Subscription
from queues.models.queue import Retention
from queues.store.counts import QueueCounts, many_counts
from tests.rigs.etl_soak.checking import Comparison, compare
from tests.rigs.etl_soak.errors import SoakBroken
from tests.rigs.etl_soak.exports import Exports, KillStage
from tests.rigs.etl_soak.holding import TransactionHolder
from tests.rigs.etl_soak.names import HELD, JOBS, LETTERS, ORDERS
from tests.rigs.etl_soak.processes import KEY, Broker, LoadProcesses
from tests.rigs.etl_soak.report import Pair, SoakPlan, SoakReport
from tests.rigs.etl_soak.watching import TransactionWatcher

NAME = "fivewire_etl_soak"
#: Processes whose clients go as fast as they can.
FAST = 2
#: Seconds that a run takes, about, while so many messages are published that all runs have their share.
USUAL = 15.0
#: Part of that pace that is kept where runs take longer and all messages of the plan are published.
LEAST = 0.1
#: Runs for which each of the transactions that are held lasts.
HOLDS = (2, 3)
#: Seconds that the broker is given to reach its pace, and its clients to take the rest.
WARM, DRAIN = 3.0, 180.0
#: Seconds of a phase at full pace, at most: a run that goes on then comes to its end at the usual pace.
PHASE = 30.0

Say = Callable[[str], None]


class Soak:
    """One soak, in a database and a directory that are gone at the end."""

    def __init__(self, plan: SoakPlan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._chance = random.Random(plan.seed)
        self._began = monotonic()
        self._report = SoakReport(plan)

    def run(self) -> SoakReport:
        """Everything. Raises SoakBroken or ProcessFailed when it cannot be finished."""
        with (
            scratch_database(NAME) as alias,
            scratch_directory("fivewire-etl-soak-") as directory,
            ExitStack() as stack,
        ):
            self._alias, self._environment = alias, environment(alias, directory)
            self._make_queues()
            ports = stack.enter_context(Broker(self._environment, directory, LETTERS)).wait_ready()
            self._load = LoadProcesses(stack, self._environment, directory, ports, FAST)
            self._tune()
            self._exports = Exports(alias, directory / "out", directory, self._environment, self._chance)
            watcher = TransactionWatcher(alias)
            stack.callback(watcher.end)
            with self._holding() as self._holders:
                self._export_under_load()
                self._compare_pace()
                self._drain()
            self._say_counts("all is drained and committed")
            self._whole()
            self._report.held = watcher.held
            self._conclude(compare(alias, directory / "out", directory, self._environment))
        return self._report

    # The stage

    def _make_queues(self) -> None:
        ApiKey.objects.using(self._alias).create(
            name="soak", digest=key_digest(KEY, settings.SECRET_KEY), hint="", protocols=[], publish=["*"],
            consume=["*"], manage=["*"],
        )  # fmt: skip
        queues = Queue.objects.using(self._alias)
        queues.create(name=JOBS, max_attempts=1)
        queues.create(name=ORDERS, retention=Retention.FULL)
        queues.create(name=LETTERS, audited=True)
        queues.create(name=HELD)

    def _tune(self) -> None:
        """Keep messages acknowledged at once; forgotten ones have a second delivery and no third."""
        steady = timedelta(seconds=60)
        for subscriptions, policy in (
            (self._load.steady, {"retention": Retention.FULL, "ack_timeout": steady}),
            (self._load.forgetful, {"ack_timeout": timedelta(seconds=2), "max_attempts": 2}),
        ):
            found = Subscription.objects.using(self._alias).filter(pk__in=subscriptions)
            Queue.objects.using(self._alias).filter(pk__in=found.values("queue_id")).update(**policy)

    @contextmanager
    def _holding(self) -> Iterator[list[TransactionHolder]]:
        """Transactions that are open from one run to another; in the end those that are left commit."""
        holders = [TransactionHolder(self._alias, lasts, JOBS) for lasts in HOLDS]
        try:
            for holder in holders:
                holder.begin()
            yield holders
            for holder in holders:
                holder.finish()
                self._report.held_rows += holder.rows
                self._report.held_transactions += holder.committed
        finally:
            for holder in holders:
                holder.close()

    # Events

    def _export_under_load(self) -> None:
        """Whole runs and killed ones in any order, while all protocols are spoken."""
        acts: list[KillStage | None] = [stage for stage in KillStage for _ in range(self._plan.kills)]
        acts += [None] * self._plan.runs
        self._chance.shuffle(acts)
        usual = self._plan.messages / (USUAL * len(acts))
        for done, act in enumerate(acts):
            if self._late():
                return
            left = (self._plan.messages - self._published()) / (USUAL * (len(acts) - done))
            self._rate = max(left, LEAST * usual)
            self._load.pace(self._rate)
            if act is None:
                self._whole()
                for holder in self._holders:
                    holder.another_run()
            else:
                self._report.kills.append(self._exports.killed(act))
                self._say_counts(self._report.kills[-1])
        while self._published() < self._plan.messages:
            self._load.full()
            sleep(0.1)
            self._load.check()

    def _late(self) -> bool:
        """Whether the time is over: the rest is left out, as the report's figures then say."""
        return monotonic() - self._began > self._plan.seconds

    def _whole(self, meanwhile: Callable[[Callable[[], bool]], None] = lambda goes_on: None) -> EtlRun:
        run = self._exports.whole(meanwhile)
        self._load.check()
        self._report.runs += 1
        self._report.late_rows += run.late_rows
        warnings = f"; {' '.join(run.warnings)}" if run.warnings else ""
        assert run.started_at is not None
        assert run.ended_at is not None
        seconds = (run.ended_at - run.started_at).total_seconds()
        self._say_counts(f"run {run.pk} has taken {seconds:.1f} s for {run.rows_out} rows{warnings}")
        return run

    def _compare_pace(self) -> None:
        """Let the broker go as fast as it can, in turns with a run beside it and without, for as long."""
        for _ in range(self._plan.pairs):
            if self._late():
                return
            self._full()
            beside: list[float] = []
            self._whole(partial(self._measure, beside))
            self._full()
            alone: list[float] = []
            self._measure(alone, lambda: True, beside[1])
            self._report.pairs.append(Pair(beside[0], alone[0], beside[1]))
            for holder in self._holders:
                holder.another_run()
            self._say_counts(f"phases of {beside[1]:.1f} s: {self._report.pairs[-1]}")
            self._load.check()

    def _full(self) -> None:
        self._load.full()
        sleep(WARM)

    def _measure(self, found: list[float], goes_on: Callable[[], bool], longest: float = PHASE) -> None:
        """While something goes on, but not for long: how many messages a second are settled, and the seconds."""
        before, started = self._settled(), monotonic()
        while goes_on() and monotonic() - started < longest:
            sleep(0.1)
        settled, seconds = self._settled() - before, monotonic() - started
        found += [settled / seconds, seconds]
        self._load.pace(self._rate)

    def _counts(self) -> dict[int, QueueCounts]:
        return many_counts(None, self._alias)

    def _settled(self) -> int:
        return sum(counts.settled for counts in self._counts().values())

    def _published(self) -> int:
        return sum(counts.published for counts in self._counts().values())

    def _drain(self) -> None:
        """No more is published; wait until all but dead and held messages are settled."""
        self._load.pace(0)
        held = Queue.objects.using(self._alias).get(name=HELD).pk
        deadline = monotonic() + DRAIN
        while left := sum(
            counts.ready + counts.leased + counts.delayed for queue, counts in self._counts().items() if queue != held
        ):
            self._load.check()
            if monotonic() > deadline:
                raise SoakBroken(f"{left} messages were not settled in {DRAIN:.0f} s")
            sleep(0.2)

    def _conclude(self, comparison: Comparison) -> None:
        report, counts = self._report, self._counts().values()
        report.comparison = comparison
        report.published = sum(one.published for one in counts)
        report.settled = sum(one.settled for one in counts)
        report.dead = sum(one.dead for one in counts)
        report.seconds = monotonic() - self._began
        lost = EtlRun.objects.using(self._alias).filter(state=EtlState.LOST).count()
        if lost != len(report.kills):
            raise SoakBroken(f"{len(report.kills)} runs were killed, and {lost} are lost")

    def _say_counts(self, text: str) -> None:
        counts = self._counts().values()
        published, dead = (sum(getattr(one, name) for one in counts) for name in ("published", "dead"))
        self._say(f"{monotonic() - self._began:6.0f} s  {published:>9,} published, {dead:>6,} dead; {text}")
