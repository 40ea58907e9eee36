"""The deliveries of one queue that consumers of this node have: their settlement, and when they are due back.

A delivery has a tag, by which it is settled once. A finished one goes to the settlement writer; a failed one goes to
the tail of its queue, or to the dead letters; one that nobody has seen goes back to its place. One that is not settled
by its deadline counts as failed. Times are monotonic.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from queues.engine.clock import now
from queues.engine.consume.consumer import PushConsumer
from queues.engine.consume.deadlines import Burst, Deadlines
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.message_runs import Push, PushRun
from queues.engine.consume.prefetch import Prefetch, ServedQueue
from queues.engine.message import Detail, Failure
from queues.engine.settle.batches import Completion, Settlements
from queues.engine.settle.writer import SettlementWriter


class Deliveries:
    """The unacknowledged deliveries of one queue, by tag."""

    def __init__(
        self, queue: ServedQueue, held: HeldMessages, prefetch: Prefetch, settlements: SettlementWriter,
        deadlines: Deadlines[Burst],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._held = held
        self._unacked = held.unacked
        self._prefetch = prefetch
        self._settlements = settlements
        self._deadlines = deadlines
        #: Batches of acknowledgements by the API key of the consumer.
        self._batches: dict[int | None, Settlements] = {}
        #: The last burst of deliveries to those that asked: its time and number of attempts.
        self._burst_key: tuple[float, int] | None = None
        self._last_burst: list[Sequence[int]] = []
        #: Deadlines that workers have moved, by tag.
        self._moved: dict[int, float] = {}

    @property
    def name(self) -> str:
        """The name of the queue."""
        return self._queue.policy.name

    # Finished.

    def complete(self, tag: int, result: bytes | None, refuse: Callable[[int], None] | None = None) -> bool:
        """Complete a worker's job; False if the job is no longer the worker's. `result` goes to the archive.
        `refuse(tag)` is called if the store does not take the settlement."""
        entry, late = self._unacked.release(tag), False
        if entry is None:
            entry, late = self._held.release_stale(tag), True
        if entry is None:
            return False
        batch = self._settlements.job_batch(self._queue.policy, late, results=result is not None)
        batch.add_many([entry[0]], [entry[2]], () if result is None else (result,))
        self._completed(batch, (entry[0],), (tag,), refuse)
        return True

    def complete_many(self, tags: Sequence[int], refuse: Callable[[int], None] | None = None) -> list[int]:
        """Complete several deliveries, without results; returns the tags that are no longer the worker's."""
        batch = self._settlements.job_batch(self._queue.policy)
        runs, left = self._unacked.release_runs(tags)
        for ids, delivered in runs:
            batch.add_run(ids, delivered)
            self._completed(batch, ids, tags[: len(ids)], refuse)
            tags = tags[len(ids) :]
        found, times, unknown = self._unacked.release_many(left)
        if found:
            gone = set(unknown)
            batch.add_many(found, times)
            self._completed(batch, found, [tag for tag in left if tag not in gone] if gone else left, refuse)
        return [tag for tag in unknown if not self.complete(tag, None, refuse)]

    def _completed(
        self, batch: Settlements, ids: Sequence[int], tags: Sequence[int], refuse: Callable[[int], None] | None
    ) -> None:
        """Note that jobs with these ids and tags were added to a batch."""
        if refuse is not None:
            batch.tell(Completion(ids, tags, refuse))
        self._forget_moved(tags)
        if self._queue.policy.concurrency_limit is not None:
            self._settlements.hurry()  # other consumers may wait for the places

    def ack(self, tag: int, consumer: int | None = None) -> bool:
        """Settle a delivery; False when the tag is not outstanding here."""
        return not self.ack_many([tag], consumer)

    def ack_many(self, tags: Sequence[int], consumer: int | None = None) -> list[int]:
        """Settle deliveries; returns the tags that are not outstanding here."""
        runs, left = self._unacked.release_runs(tags)
        ids, times, unknown = self._unacked.release_many(left) if left else ((), (), ())
        if runs or ids:
            policy = self._queue.policy
            batch = self._batches.get(consumer)
            if batch is None:
                batch = self._batches[consumer] = self._settlements.batch(policy, consumer)
            for run in runs:
                batch.add_run(*run)
            if ids:
                batch.add_many(ids, times)
            if policy.concurrency_limit is not None:
                self._settlements.hurry()  # other consumers may wait for the places
            self._prefetch.want_for_waiting()
        return [tag for tag in unknown if not self._ack_late(tag, consumer)]

    def _ack_late(self, tag: int, consumer: int | None) -> bool:
        """Settle by a tag that is not outstanding, because its message is prefetched again or its lease was lost."""
        policy = self._queue.policy
        if (id := self._held.settle_prefetched(tag)) is not None:
            self._settlements.batch(policy, consumer).add(id, time.monotonic())
        elif (entry := self._held.release_stale(tag)) is not None:  # the id may belong to another message by now
            self._settlements.batch(policy, consumer, late=True).add(entry[0], entry[2])
        else:
            return False
        return True

    def settle_late(self, id: int, delivered: float, consumer: int | None) -> None:
        """Settle a message in the store that was delivered at `delivered`, even if another node has its lease. It is
        not delivered again, even if this node claims it before the settlement is written."""
        self._held.settle_undelivered(id)
        self._settlements.batch(self._queue.policy, consumer, late=True).add(id, delivered)

    # Failed or unseen deliveries.

    def give_back(
        self, tag: int, *, delay: float | None = None, error: str | None = None, keep_tag: bool = False,
        refuse: Callable[[], None] | None = None,
    ) -> None:  # fmt: skip
        """Return a delivery to the tail after `delay` seconds (None: the queue's backoff), or to the dead letters
        when its attempts are used up. `refuse` is called if the lease is lost before that is stored: the message comes
        again without this attempt. A dead letter goes back unchanged, behind the others."""
        entry = self._unacked.release(tag)
        if entry is None:
            return
        id, attempts, _, detail = entry
        policy, audited = self._queue.policy, self._queue.audited
        if self._queue.dead:
            self._settlements.give_back(Failure(id, attempts, refuse=refuse), audited)
            self._prefetch.backlog.returned()
            return
        attempts += 1
        if policy.exhausted(attempts, None if detail is None else detail.max_attempts):
            self._bury(Failure(id, attempts, error=error, refuse=refuse))
            return
        if delay is None:
            own = None if detail is None else detail.retry_interval
            delay = policy.backoff(attempts, None if own is None else own / 1000)
        self._settlements.give_back(Failure(id, attempts, delay, tag if keep_tag else None, error, refuse), audited)

    def bury(self, tag: int, error: str) -> None:
        """Make a delivery a dead letter at once: it could never be delivered."""
        entry = self._unacked.release(tag)
        if entry is not None:
            if (audited := self._queue.audited) is not None:
                audited.not_delivered(published_id(entry[0], entry[3]))
            self._bury(Failure(entry[0], entry[1] + 1, error=error))

    def _bury(self, failure: Failure) -> None:
        self._settlements.bury(self._queue.policy, failure)
        self._prefetch.want_for_waiting()

    def hand_back(self, tag: int) -> None:
        """Return a delivery to its place, as if it had never been made. It is next again."""
        entry = self._unacked.release(tag)
        if entry is not None:
            self._prefetch.put_back([(entry[0], None)], self._queue.audited)

    def undeliver(self, pushes: Sequence[Push]) -> None:
        """Prefetch again messages that were pushed and that no consumer has seen."""
        if any(push.tag in self._unacked for push in pushes):
            if (audited := self._queue.audited) is not None:
                audited.not_seen([entry[0] for push in pushes if (entry := self._unacked.get(push.tag))])
            self._prefetch.take_back(pushes)

    def return_all(self, count: bool, keep_tags: bool) -> None:
        """Return all deliveries of the consumer that is gone to their places, or give them up. `count`: that was an
        attempt. `keep_tags`: they may still be acknowledged."""
        taken: list[tuple[int, int | None]] = []
        attempted: list[int] = []
        for tag in sorted(self._unacked, key=lambda tag: self._unacked[tag][0]):
            id, attempts, _, detail = self._unacked[tag]
            attempts += count
            self._unacked.release(tag)
            if count and self._queue.policy.exhausted(attempts, None if detail is None else detail.max_attempts):
                self._bury(Failure(id, attempts, error="its consumer is gone"))
            else:
                taken.append((id, tag if keep_tags else None))
                attempted.append(attempts)
        self.forget_deadlines()
        self._prefetch.put_back(taken, self._queue.audited, attempted)

    def change_policy(self) -> None:
        """The policy has changed, and with it the batches of acknowledgements."""
        self._batches.clear()

    # Deadlines.

    def polled(self, runs: Iterable[PushRun], time: float) -> None:
        """Messages are delivered to one who asked. They are due after the queue's ack timeout and, on top, the backoff
        of their attempt; those of one moment and attempt share an entry."""
        policy = self._queue.policy
        for run in runs:
            if self._burst_key != (time, run.attempts):
                self._burst_key, self._last_burst = (time, run.attempts), []
                deadline = time + (policy.ack_timeout or 0.0) + policy.backoff(run.attempts + 1)
                self._deadlines.at(deadline, Burst(self, None, self._last_burst, time))
            self._last_burst.append(run.tags)

    def pushed(self, runs: Iterable[PushRun], time: float, consumer: PushConsumer) -> float | None:
        """Messages are delivered to a worker. Returns when they are due."""
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        for run in runs:  # each by itself: its tags are consecutive
            self._deadlines.at(time + timeout, Burst(self, consumer, [run.tags]))
        return time + timeout

    def beat(self, tag: int) -> float | None:
        """Move the deadline of a working worker, and return it. Raises KeyError if the delivery is no longer the
        worker's."""
        self._unacked[tag]
        timeout = self._queue.policy.ack_timeout
        if timeout is None:
            return None
        deadline = self._moved[tag] = now() + timeout
        return deadline

    def expire(self, burst: Burst, time: float) -> None:
        """Return deliveries that were not acknowledged in time. Those to consumers that asked keep their tags; those
        with a moved deadline stay."""
        due = chain.from_iterable(map(self._unacked.among, burst.tags))
        if burst.consumer is None:
            for tag in due:
                if (entry := self._unacked.get(tag)) is not None and entry[2] == burst.made:
                    self.give_back(tag, delay=0.0, error="not acknowledged in time", keep_tag=True)
            return
        late = []
        for tag in due:
            moved = self._moved.pop(tag, time)
            if moved > time:
                self._deadlines.at(moved, Burst(self, burst.consumer, [(tag,)]))
            else:
                late.append(tag)
        for tags in burst.tags:
            self._forget_moved(tags)
        for tag in late:
            self.give_back(tag, error="not finished by its deadline")
        if late:
            self._settlements.health.guard("session", burst.consumer, burst.consumer.expired, late)

    def _forget_moved(self, tags: Iterable[int]) -> None:
        if self._moved:
            for tag in tags:
                self._moved.pop(tag, None)

    def forget_deadlines(self) -> None:
        """The leases of all deliveries are lost."""
        self._moved.clear()
        self._burst_key = None


def published_id(id: int, detail: Detail | None) -> int:
    """The id that a message was published with."""
    return (None if detail is None else detail.origin) or id
