"""How messages of one queue come into this node's memory, and how they leave it.

New ones come from the publish writer, which stored them as leased (`add_run`), others from the fetcher, which claims
them (`begin_claim` of the backlog, `end_claim`, `add_claimed`). They leave to consumers by `take` alone, and go back to
the store by `put_back`. When few are left and the store has more, the fetcher is asked for a claim.

Messages leave in the order of their ids, to consumers of every kind: a prefetched message waits while the store has one
that belongs before it, of a higher priority or handed back (`overtaken`), until a claim has brought that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, Protocol

from queues.engine.consume.backlog import Backlog, ClaimResult
from queues.engine.consume.claim_path import ASK, Action, Event
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.interest import Interest
from queues.engine.consume.low_watermark import LOWEST
from queues.engine.consume.memory import BATCH, FlowLimits
from queues.engine.consume.message_runs import MessageRun, Push, PushRun
from queues.engine.message import Detail, Message
from queues.engine.node import LocalNode
from queues.engine.policies import QueuePolicy
from queues.engine.settle.audited_queues import AuditedQueue
from queues.engine.settle.writer import SettlementWriter

#: Least messages taken for workers at once while there is room.
FEW = 100
#: Limit of messages taken beyond the room, which belong before prefetched ones.
OVERTAKING = 100
#: Limit of one claim from a queue that several nodes serve, so that all of them are busy.
SHARED_BATCH = 200
#: More messages than any transaction stores.
UNLIMITED = 2**31


class ServedQueue(Protocol):
    """What the parts of a `PrefetchedQueue` read of it."""

    policy: QueuePolicy
    #: The record of an audited queue.
    audited: AuditedQueue | None

    @property
    def dead(self) -> bool:
        """Whether these are dead letters."""

    @property
    def stands_by(self) -> bool:
        """Whether the active consumer is not here: no message may be leased to this node."""


class Claims(Protocol):
    """The fetcher, as prefetched queues use it."""

    limits: FlowLimits
    node: LocalNode

    def want(self, queue: Any) -> None: ...


class Prefetch:
    """One queue's messages on their way between the store and its consumers. `dispatch()` is called when some have
    come."""

    def __init__(
        self, queue: ServedQueue, held: HeldMessages, interest: Interest, settlements: SettlementWriter,
        fetcher: Claims, dispatch: Callable[[], None],
    ) -> None:  # fmt: skip
        self.backlog = Backlog()
        self._queue = queue
        self._held = held
        self._interest = interest
        self._settlements = settlements
        self._fetcher = fetcher
        self._dispatch = dispatch
        #: The settlement round that returns messages of this queue to the store.
        self._returned_in = 0
        #: A purge during the claim under way: it is for the claimed messages too. When that claim has failed (third),
        #: it is for those of the next ones, until one brings none.
        self._purged: tuple[int, str, bool] | None = None
        #: Messages that consumers asked for since the last claim and did not get.
        self._shortage = 0
        self._on_refill: list[Callable[[], None]] = []

    # To consumers.

    def take(self, now: float, most: int, most_bytes: float, key: int | None) -> list[PushRun]:
        """Up to `most` messages for a consumer with this API key, fewer of large ones: every message leaves memory
        here. When few are left, more are claimed."""
        held, backlog = self._held, self.backlog
        if time.monotonic() >= self._fetcher.node.trusted_until:
            return []
        if backlog.unclaimed and self.overtaken:
            most = sum(1 for _ in takewhile(lambda message: message[0] <= backlog.first, islice(held.ready, most)))
        taken = held.take(now, most, most_bytes)
        if taken and (audited := self._queue.audited) is not None:
            for run in taken:
                returned = run.detail is not None and run.detail.origin is not None
                ids = [held.unacked[tag][0] for tag in run.tags] if returned else run.ids
                audited.delivered(ids, run.ids, key)
        if backlog.unclaimed and (len(held.ready) < self._fetcher.limits.low_water or self.overtaken):
            self.want()
        return taken

    def miss(self, count: int) -> None:
        """A consumer asked for `count` messages more than there are."""
        if self.backlog.unclaimed:
            self._shortage += 1
            self.want()
        self._shortage = max(self._shortage, count)

    def want(self) -> None:
        """Have messages claimed soon."""
        self._fetcher.want(self._queue)

    def want_for_waiting(self) -> None:
        """Claim for waiting consumers, because there may be room in memory now."""
        if self.backlog.unclaimed and self._interest.demand:
            self.want()

    def demand_ended(self) -> None:
        """The last consumer that waited has left. Dead letters that were claimed for it go back."""
        if not self._queue.dead:
            self._interest.demand_ended()
        elif self._held.ready and not self._interest.demand:
            self._settlements.hand_back(self.take_all())

    @property
    def may_refill(self) -> bool:
        """Whether the store may have a message for a consumer that found none."""
        return self.backlog.unclaimed and not self._queue.policy.paused

    def on_refill(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the next claim has come back, with messages or without."""
        self._on_refill.append(resume)

    # From the store.

    def wanted(self, now: float) -> int:
        """The number of new messages that may be leased to this node as they are stored: any while memory has room, but
        of a queue that other nodes serve too no more than its own consumers ask for, or take in half a second."""
        queue, interest = self._queue, self._interest
        if not self.backlog.caught_up or self.room <= 0 or not queue.policy.may_lease_on_publish or queue.stands_by:
            return 0
        if interest.shared:
            return max(0, min(self.room, interest.asked(now) - len(self._held.ready)))
        return UNLIMITED if interest.is_warm(now) else 0

    def end_storing(self) -> None:
        """The transaction has ended."""
        self._obey(self.backlog.end_storing())

    @property
    def in_transit(self) -> bool:
        """Whether messages are on their way into memory or back to the store, and a claim would break the order."""
        audited = self._queue.audited
        return (
            self.backlog.storing
            or self._settlements.handed_back < self._returned_in
            or (audited is not None and audited.handing_back)
        )

    @property
    def room(self) -> int:
        """Free room in memory, in messages."""
        limits, held, interest = self._fetcher.limits, self._held, self._interest
        if self._queue.dead:
            return interest.demand
        if held.bytes >= limits.queue_bytes or not limits.memory.room(held.bytes):
            return 0
        if interest.with_workers:  # credits bound their deliveries, which keep no payloads
            return limits.prefetch - len(held.ready)
        return limits.prefetch - len(held.ready) - len(held.unacked)

    @property
    def _room_bytes(self) -> int:
        limits, held = self._fetcher.limits, self._held
        return min(limits.queue_bytes - held.bytes, limits.memory.room(held.bytes))

    @property
    def _as_asked(self) -> bool:
        """Whether others may want what consumers here have not asked for."""
        return self._queue.dead or self._interest.shared or self._queue.policy.taken_as_asked

    def claim_limit(self) -> int:
        """Messages that the claim that begins now may take."""
        held, interest = self._held, self._interest
        most = min(BATCH, self.room, max(1, self._room_bytes // max(1, held.mean_bytes)))
        overtaking = OVERTAKING
        if self._as_asked:
            ahead = 0 if self._queue.dead else interest.ahead(time.monotonic())
            asked = max(interest.demand, self._shortage)  # other consumers may want the rest
            now_wanted = min(asked, SHARED_BATCH) if len(held.ready) < asked else 0
            most = min(most, max(now_wanted, ahead - len(held.ready)))
            overtaking = min(asked, OVERTAKING)
        elif interest.with_workers:  # workers are slow: messages that they cannot take soon wait in the store
            most = min(most, max(2 * (interest.demand + len(held.unacked)), self._shortage, FEW))
        self._shortage = 0
        return max(most, overtaking) if self.overtaken else most

    @property
    def most_packed(self) -> int:
        """Bytes of one segment that a claim may take beyond its number of messages; 0 if other nodes may want them."""
        return 0 if self._as_asked else max(0, self._room_bytes)

    def abort_claim(self) -> None:
        """The claim has failed. A purge missed its messages, which are ready in the store again."""
        self.backlog.on(Event.CLAIM_FAILED)
        if self._purged is not None:
            self._purged = *self._purged[:2], True

    def end_claim(self, result: ClaimResult, limit: int, horizon: int) -> None:
        """The claim under way has come back."""
        # At a concurrency limit there is more, but not now.
        limited = result.taken < limit and self._queue.policy.concurrency_limit is not None
        self.backlog.end_claim(result, LOWEST if self._queue.dead else horizon, limited=limited)

    def add_run(self, ids: Sequence[int], payloads: list[bytes], detail: Detail | None, size: int) -> None:
        """Take messages leased to this node, in order of id, on their first delivery and with this detail, which have
        `size` bytes together, as `weight` counts."""
        self._held.add_run(ids, payloads, detail, size)
        self._added()

    def add_claimed(self, *claimed: MessageRun | list[Message]) -> None:
        """Take messages in order of id; they may carry the tag of an earlier delivery, or belong before those here."""
        for messages in claimed:
            if isinstance(messages, MessageRun):
                self._held.add_claimed_run(messages)
            else:
                self._held.add_claimed(messages)
        if self._purged is not None:
            high, by, failed = self._purged
            gone = self._held.purge(high)
            self._settlements.purge(gone, by)
            if not (gone and failed):
                self._purged = None
        self._added()

    def take_back(self, pushes: Sequence[Push]) -> None:
        """Take deliveries that no consumer has seen."""
        self._held.take_back(pushes)
        self._added()

    def _added(self) -> None:
        if self._queue.dead:
            self._dispatch()
            self.demand_ended()
        else:
            self.give_way()
            self._interest.prefetched()
            self._dispatch()

    def refilled(self) -> None:
        """A claim has come back, with messages or without."""
        waiting, self._on_refill = self._on_refill, []
        for resume in waiting:
            self._settlements.health.guard("session", getattr(resume, "__self__", None), resume)

    def exhaust(self) -> None:
        """The store has nothing to claim. Consumers get what is here, until messages arrive."""
        self.backlog.exhaust()
        self.refilled()
        self._dispatch()

    @property
    def overtaken(self) -> bool:
        """Whether the store has a message that belongs before prefetched ones: of a higher priority, or handed back.
        Prefetched messages above `backlog.first` wait until it is claimed."""
        ready, backlog = self._held.ready, self.backlog
        return backlog.unclaimed and bool(ready) and backlog.first < ready[-1][0]

    def give_way(self) -> None:
        """Return messages that take places of a concurrency limit and are overtaken: the other message may need the
        place."""
        if self._queue.policy.taken_as_asked and self.overtaken:
            self.return_all()

    def more_in_store(self, first_id: int) -> None:
        """Messages from `first_id` on became ready in the store."""
        action = self.backlog.arrived(first_id)
        self.give_way()
        self._obey(action)

    def _obey(self, action: Action) -> None:
        if action is ASK and (self._interest.demand or self._on_refill):
            self.want()

    # Back to the store.

    def take_all(self) -> list[tuple[int, int | None]]:
        """Remove every prefetched message; returns (id, tag of an earlier delivery)."""
        self.backlog.returned()
        self._interest.forget_surplus()
        return self._held.take_all()

    def return_all(self) -> None:
        """Return every prefetched message to its place in the store."""
        self.put_back(self.take_all())

    def decline(self, messages: Iterable[Message]) -> None:
        """Return messages that were leased before the queue's policy forbade it."""
        self.put_back([(id, None if detail is None else detail.tag) for id, _, _, detail in messages])
        self.backlog.returned()

    def put_back(
        self, taken: list[tuple[int, int | None]], audited: AuditedQueue | None = None, attempts: Sequence[int] = ()
    ) -> None:
        """Return messages (id, tag to keep) to their places, as `SettlementWriter.hand_back` does."""
        if taken:
            ids = [id for id, _ in taken]
            self._held.remember_handed_back(ids)
            self._settlements.hand_back(taken, audited, attempts)
            self._returned_in = self._settlements.round
            self.backlog.returned(min(ids))
            self.give_way()

    def purge(self, high: int, by: str) -> None:
        """An operator purged the queue up to this id, without its priority. Prefetched messages, and those that were on
        their way here or back to the store as the purge looked for ready ones, are removed."""
        self.backlog.returned()
        self._settlements.purge(self._held.purge(high) + self._held.find_handed_back(high), by)
        if self.backlog.claiming:
            self._purged = high, by, False
        self._added()

    def lose_leases(self) -> None:
        """The leases are no longer this node's, and messages on their way back are reaped."""
        self._held.lose_leases()
        self.backlog.restart()
        self._returned_in = 0
