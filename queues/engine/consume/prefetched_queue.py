"""A queue, or its dead letters, as this node serves it.

A `PrefetchedQueue` is what consumers use: they ask (`deliver`), wait for one message (`wait`), or are pushed to
(`dispatcher`). Its parts know those before them, and of the queue they read what `ServedQueue` names:

    Backlog        what the store may have beyond what is here
    HeldMessages   what is here: prefetched and delivered messages
    Interest       what consumers here ask for
    Prefetch       from the store to memory, from memory to consumers (`take`), and back
    Deliveries     what consumers have: settlements and deadlines
    Dispatcher     whose turn it is among consumers that wait
    Line           the consumers of a queue with a single active one

Of a queue with a single active consumer each consumer is known by the object that it calls itself (`by`, a waiter, a
worker). It stands in line from its first call on until `leave`. Times are monotonic.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from math import inf

from queues.engine.consume.consumer import Waiter
from queues.engine.consume.deadlines import Burst, Deadlines
from queues.engine.consume.deliveries import Deliveries
from queues.engine.consume.dispatch import Dispatcher
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.interest import Interest
from queues.engine.consume.line import Line, LineChanges
from queues.engine.consume.message_runs import PushRun
from queues.engine.consume.prefetch import Claims, Prefetch
from queues.engine.message import Delivery
from queues.engine.policies import QueuePolicy
from queues.engine.settle.writer import SettlementWriter

#: Least number of messages with own details that are polled together.
FEW_RUNS = 8


class QueueSchedule:
    """When a node looks at its prefetched queues: for deliveries that are due, for messages without consumers, and for
    consumers that stand in line."""

    def __init__(self) -> None:
        self.lines = LineChanges()
        self.deliveries: Deadlines[Burst] = Deadlines()
        self.idle: Deadlines[PrefetchedQueue] = Deadlines()


class PrefetchedQueue:
    """A queue, or its dead letters, as this node serves them. Other objects read its attributes."""

    dead = False

    def __init__(
        self, policy: QueuePolicy, settlements: SettlementWriter, fetcher: Claims, schedule: QueueSchedule,
        first_tag: int = 1,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.id = policy.id
        #: Whether it was removed.
        self.closed = False
        #: The record of an audited queue.
        self.audited = settlements.audited(policy)
        self._settlements = settlements
        self._schedule = schedule
        # A prefetched message outlived its time: the store's sweep takes it.
        expired = lambda id: settlements.hand_back([(id, None)])  # noqa: E731
        self.held = held = HeldMessages(fetcher.limits.memory, first_tag, expired)
        self.interest = Interest(policy, held, lambda time: schedule.idle.at(time, self))
        self.prefetch = Prefetch(self, held, self.interest, settlements, fetcher, self.dispatch)
        self.deliveries = Deliveries(self, held, self.prefetch, settlements, schedule.deliveries)
        self._dispatcher = Dispatcher(
            self, held, self.interest, self.prefetch, self.deliveries, settlements.health
        )
        #: Prefetched messages; delivered messages by tag. Both are views.
        self.ready, self.unacked = held.ready, held.unacked
        #: What the store may have that is not here.
        self.backlog = self.prefetch.backlog
        #: Its consumers on this node, if it has a single active consumer.
        self.line: Line | None = None
        self._obey_line()

    # Consumers that ask.

    def deliver(
        self, now: float, timed: bool = False, consumer: int | None = None, by: object = None
    ) -> Delivery | None:
        """The next message, or None when none is prefetched; then `may_refill_for` tells whether waiting could help.

        With `timed` the message comes back unless it is acknowledged within the queue's ack timeout and, on top, the
        backoff of its attempt. `consumer` is the API key of the consumer, which is `by`.
        """
        if self.line is not None and not self.serves(by):
            return None
        for run in self._take(now, 1, consumer, timed):
            return run.tags[0], run.payloads[0], run.attempts, run.detail
        return None

    def deliver_many(
        self, now: float, count: int, consumer: int | None = None, by: object = None
    ) -> list[tuple[Sequence[int], list[bytes]]]:
        """Up to `count` messages, with the deadline that `deliver` gives with `timed`: tags and payloads of runs."""
        if self.line is not None and not self.serves(by):
            return []
        self.interest.asked_for(count)
        runs = self._take(now, count, consumer, True)
        if len(runs) < FEW_RUNS:
            return [(run.tags, run.payloads) for run in runs]
        polled: list[tuple[Sequence[int], list[bytes]]] = []
        for alone, some in groupby(runs, _is_alone):
            if alone:
                tags, payloads = zip(*((run.tags[0], run.payloads[0]) for run in some), strict=True)
                polled.append((tags, [*payloads]))
            else:
                polled += ((run.tags, run.payloads) for run in some)
        return polled

    def _take(self, now: float, count: int, consumer: int | None, timed: bool) -> list[PushRun]:
        """Messages for a consumer that asks. Missing ones are claimed."""
        self.interest.came(now)
        found: list[PushRun] = []
        while count and not self.policy.paused and (runs := self.prefetch.take(now, count, inf, consumer)):
            found += runs
            for run in runs:
                count -= len(run.tags)
        if timed:
            self.deliveries.polled(found, now)
        if count:
            self.prefetch.miss(count)
        return found

    def may_refill_for(self, consumer: object) -> bool:
        """Whether the store may have a message for this consumer, which found none: it may be about to become the
        active one."""
        return (self.line is None or self.line.may_serve(consumer)) and self.prefetch.may_refill

    # Consumers that wait.

    def wait(self, waiter: Waiter) -> None:
        """Deliver the next message to `waiter`, now or when there is one."""
        self._dispatcher.grant(waiter, 1)

    def cancel(self, waiter: Waiter) -> None:
        """Wait no longer; a no-op when the waiter has been served."""
        self._dispatcher.withdraw(waiter)

    def dispatch(self) -> None:
        """Hand prefetched messages to consumers that wait."""
        self._dispatcher.dispatch()

    def dispatcher(self) -> Dispatcher:
        """The dispatcher, for workers. From now on room and idle times are those of a queue with workers."""
        self.interest.expect_workers()
        return self._dispatcher

    # A single active consumer.

    def enter(self, consumer: object) -> None:
        """A consumer has come: of a queue with a single active one it stands in line from now on, until `leave`."""
        if self.line is not None:
            self.line.enter(consumer)

    def serves(self, consumer: object) -> bool:
        """Note the consumer, and return whether it may be given messages."""
        if self.line is None:
            return True
        if consumer is None:
            return False
        self.line.enter(consumer)
        return consumer is self.line.active

    def leave(self, consumer: object, *, finish: bool = False, count: bool = True, keep_tags: bool = False) -> None:
        """A consumer takes nothing more: another one is active once nothing of what it had is under way. It may
        `finish` that, or it goes back in place; with `count` that was an attempt, with `keep_tags` it may still be
        acknowledged. A no-op unless it stands in line, or had the last turn."""
        if self.line is not None:
            self.line.leave(consumer, finish, count, keep_tags)

    @property
    def stands_by(self) -> bool:
        """Whether the active consumer is not here: no message may be leased to this node."""
        return self.line is not None and self.line.active is None

    def _obey_line(self) -> None:
        """Have a line or none, as the policy says. Dead letters have none."""
        single = self.policy.single_active_consumer and not self.dead
        if single and self.line is None:
            self.line = Line(
                self, self.held, self.prefetch, self.deliveries, self._dispatcher, self._settlements,
                self._schedule.lines,
            )  # fmt: skip
        elif self.line is not None and not single:
            line, self.line = self.line, None
            line.end()

    # Used by the engine.

    def change_policy(self, policy: QueuePolicy | None) -> None:
        """An operator changed the queue, or (None) removed it."""
        if policy is None:
            self.closed = True
            self.interest.tell(False)
            self.prefetch.take_all()
            self.held.forget_deliveries()
            self.deliveries.forget_deadlines()
            self._dispatcher.close()
            if self.line is not None:
                self.line.close()
                self.line = None
            return
        self.policy = policy
        self.audited = self._settlements.audited(policy)
        self.deliveries.change_policy()
        self.interest.obey(policy)
        self._obey_line()
        if policy.taken_as_asked:
            self.prefetch.return_all()
        self.prefetch.more_in_store(self.backlog.watermark.value + 1)
        self.dispatch()

    def lose_leases(self) -> None:
        """The leases are no longer this node's: forget prefetched messages, settle late acknowledgements by id."""
        self.prefetch.lose_leases()
        self.deliveries.forget_deadlines()
        self.interest.tell(False)
        if self.line is not None:
            self.line.lose()


def _is_alone(run: PushRun) -> bool:
    """Whether a message has its own detail or attempts: those are polled together."""
    return len(run.tags) == 1 and (run.detail is not None or run.attempts > 0)


class LocalDeadLetters(PrefetchedQueue):
    """The dead letters of a queue, for consumers that read them one at a time. Nothing is prefetched."""

    dead = True
