"""The interest of one queue's consumers here: since when none has come, how many messages they ask for, at what pace.

A node serves a queue from the first look of a consumer on; its store tells the other nodes (`known`). When no consumer
has come for a while the queue is cold: what is prefetched goes back, and the others are told. A queue that other nodes
serve too (`shared`) is cold sooner, and no more is taken into memory for it than its consumers ask for or are about to.

The prefetched queue tells of consumers (`came`, `asked_for`); the job of `cluster/tidying.py` looks when a look is due.
Times are monotonic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.pace import Pace
from queues.engine.policies import QueuePolicy

#: Seconds without a consumer after which a node takes no new messages for a queue and returns prefetched ones; fewer
#: when other nodes' consumers wait for them.
WARM = 1.0
#: Consumers that come less often than that count as late only after several of their pauses.
LATE = 3.0
COLD = 5.0
COLD_SHARED = 0.2
#: Seconds between looks at a queue with waiting consumers. Changes of its state ask for a look themselves.
WAITING = 60.0


@dataclass(slots=True, eq=False, repr=False)
class Interest:
    """One queue's interest on this node. `look(time)` has it looked at then."""

    _policy: QueuePolicy
    _held: HeldMessages
    _look: Callable[[float], None]
    #: Messages that consumers wait for; whether workers have come.
    demand: int = 0
    with_workers: bool = False
    #: Whether other nodes serve the queue too; whether the store knows that this one does.
    shared: bool = False
    known: bool = False
    settled_anywhere: bool = False
    last_demand: float = -1e9
    #: Messages that a consumer asks for at once. A larger burst raises it at once, smaller ones lower it slowly.
    _burst: int = 1
    #: Tags count deliveries, from the first one here.
    _pace: Pace = field(init=False)
    #: Of a queue served by several nodes: time since which more is prefetched than consumers here take, and the tag of
    #: the last such message.
    _surplus: tuple[float, int] | None = None
    #: Time of the next check whether consumers have left.
    _next_look: float = inf

    def __post_init__(self) -> None:
        self._pace = Pace(self._held.next_tag)

    def obey(self, policy: QueuePolicy) -> None:
        """The queue's policy has changed."""
        self._policy = policy
        self.tidy_soon()

    def settle_anywhere(self) -> None:
        """Consumers may acknowledge on any node, as of a subscription: those that serve the queue are told, so this one
        serves it as long as deliveries are outstanding."""
        self.settled_anywhere = True

    # Consumers.

    def came(self, now: float) -> None:
        """A consumer looked for a message."""
        self._pace.came(now - self.last_demand)
        self.last_demand = now

    def add_demand(self, count: int) -> None:
        """Change the number of messages that consumers wait for by `count`."""
        self.demand += count

    def demand_ended(self) -> None:
        """The last consumer that waited has left."""
        self.look_at(self.look_again_at(time.monotonic()))

    def expect_workers(self) -> None:
        """Workers have come: from now on room and idle times are those of a queue with workers."""
        if not self.with_workers:
            self.with_workers = True
            self.tidy_soon()

    def asked_for(self, count: int) -> None:
        """A consumer asks for `count` messages at once."""
        self._burst = max(count, self._burst // 2)

    def asked(self, now: float) -> int:
        """Of a queue served by several nodes: messages that consumers here ask for or are about to ask for."""
        burst = self._burst if now - self.last_demand < COLD_SHARED else 0
        return max(self.demand, burst, self.ahead(now))

    def ahead(self, now: float) -> int:
        """Of a queue served by several nodes: messages that a claim may bring ahead of demand."""
        return 0 if self._policy.taken_as_asked else self._pace.ahead(now, self._held.next_tag)

    def is_warm(self, now: float) -> bool:
        """Whether new messages are taken for the consumers here, who waited a moment ago if they do not wait."""
        warm = COLD_SHARED if self.with_workers else min(COLD, max(WARM, LATE * self._pace.pause))
        return self.demand > 0 or now - self.last_demand < warm

    # Without consumers.

    @property
    def ends_soon(self) -> bool:
        """Whether other consumers may want the messages here: without demand they go back soon."""
        return self.shared or self._policy.taken_as_asked or self.with_workers

    @property
    def _rest(self) -> float:
        """Seconds without demand after which it is cold."""
        return COLD_SHARED if self.ends_soon else max(COLD, LATE * self._pace.pause)

    def is_cold(self, now: float) -> bool:
        """Whether prefetched messages should go back, because no consumer has asked for too long."""
        return not self.demand and now - self.last_demand > self._rest

    def has_surplus(self, now: float) -> bool:
        """Whether more has been prefetched for a while than consumers here take, though other nodes serve the queue
        too: their pace has fallen. Nothing new was leased meanwhile. If they have taken all that was here at the last
        look, what is here now may have come just now, and another node may just have delivered what comes behind it."""
        held = self._held
        if not self.shared or len(held.ready) <= 2 * self.asked(now):
            self._surplus = None
            return False
        if self._surplus is None or held.next_tag >= self._surplus[1]:
            self._surplus = now, held.next_tag + len(held.ready)
        return now - self._surplus[0] >= COLD_SHARED

    def forget_surplus(self) -> None:
        """Note that nothing is prefetched any more."""
        self._surplus = None

    # Looks.

    def look_again_at(self, now: float) -> float:
        """Time at which the queue may have become cold."""
        if not self.demand:
            return self.last_demand + self._rest
        if not self._held.ready:
            return now + WAITING
        return now + (COLD_SHARED if self.ends_soon else COLD)

    def prefetched(self) -> None:
        """Messages have come to memory: they go back when the queue is cold."""
        if self.ends_soon or not self.known:
            self.tidy_soon()
        else:
            self.look_at(time.monotonic() + COLD)

    def tidy_soon(self) -> None:
        """The queue may become cold sooner than expected."""
        self.look_at(time.monotonic() + COLD_SHARED)

    def look_at(self, time: float) -> None:
        """Look at this time whether it has become cold, unless it is looked at sooner."""
        if time < self._next_look:
            self._next_look = time
            self._look(time)

    def begin_look(self, time: float) -> bool:
        """A look was due at this time; False if a sooner one took its place, or there is nothing to hand back."""
        if time != self._next_look:
            return False
        self._next_look = inf
        # Messages that were on their way when the queue went cold arrive without demand.
        return self.known or bool(self._held.ready)

    # Other nodes.

    def tell(self, known: bool) -> None:
        """Note whether the store knows that this node serves the queue."""
        self.known = known

    def share(self, shared: bool) -> None:
        """Other nodes serve the queue too, or no longer do."""
        if shared != self.shared:
            self.shared = shared
            self.tidy_soon()
