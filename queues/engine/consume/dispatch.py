"""Hands the messages of one prefetched queue to the consumers that wait for them, in turns (`consumer.py`).

Of a queue with a single active consumer only that one is served: the credits of the others count from their turn on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice

from queues.engine.clock import now
from queues.engine.consume.consumer import PushConsumer
from queues.engine.consume.deliveries import Deliveries
from queues.engine.consume.held_messages import HeldMessages
from queues.engine.consume.interest import Interest
from queues.engine.consume.prefetch import Prefetch, ServedQueue
from queues.engine.faults import told
from queues.engine.health import Health

#: Limits of messages pushed to one consumer in its turn, and of bytes pushed at once.
TURN = 100
TURN_BYTES = 256 * 1024
MAX_CREDITS = 2**32 - 1


class Dispatcher:
    """The consumers of one queue that wait on this node."""

    def __init__(
        self, queue: ServedQueue, held: HeldMessages, interest: Interest, prefetch: Prefetch, deliveries: Deliveries,
        health: Health,
    ) -> None:  # fmt: skip
        self._queue = queue
        self._ready = held.ready
        self._interest = interest
        self._prefetch = prefetch
        self._deliveries = deliveries
        self._health = health
        #: Consumers with credits: first the waiters, then the others in the order of their turns.
        self._consumers: deque[PushConsumer] = deque()
        self._waiters = 0
        self._dispatching = False
        #: The single active consumer, and the others with credits. The latter is None if all consumers are served.
        self._active: object | None = None
        self._standby: dict[PushConsumer, None] | None = None
        #: Called with each consumer that comes and stands by.
        self._enter: Callable[[object], None]

    # A single active consumer.

    def serve_only(self, active: object | None, enter: Callable[[object], None]) -> list[PushConsumer]:
        """Serve this consumer alone, or none for now. Returns those with credits, which have to wait. Later ones are
        passed to `enter`."""
        waiting = [*self._consumers, *(self._standby or ())]
        self._active, self._standby, self._enter = active, {}, enter
        self._serve(waiting)
        return list(self._standby)

    def serve_all(self) -> None:
        """Serve every consumer."""
        waiting, self._active, self._standby = [*self._consumers, *(self._standby or ())], None, None
        self._serve(waiting)

    def _serve(self, consumers: Iterable[PushConsumer]) -> None:
        """Serve all consumers with credits, or let them stand by."""
        self._consumers.clear()
        self._waiters = 0
        self._interest.add_demand(-self._interest.demand)
        for consumer in consumers:
            if self._stands_by(consumer):
                assert self._standby is not None
                self._standby[consumer] = None
            else:
                self._line_up(consumer)
                self._interest.add_demand(consumer.credits)
        if self._interest.demand:
            self._interest.came(now())
        else:
            self._prefetch.demand_ended()
        self.dispatch()

    def _stands_by(self, consumer: object) -> bool:
        return self._standby is not None and consumer is not self._active

    # Credits.

    def grant(self, consumer: PushConsumer, credits: int) -> None:
        """Grant a consumer `credits` more, up to 2³²-1 in all, and push prefetched messages."""
        credits = min(credits, MAX_CREDITS - consumer.credits)
        if not credits:
            return
        if self._standby is not None and self._stands_by(consumer):
            consumer.add_credits(credits)
            self._standby[consumer] = None
            self._enter(consumer)
            self.dispatch()
            return
        if not consumer.credits:
            self._line_up(consumer)
        consumer.add_credits(credits)
        self._interest.add_demand(credits)
        self._interest.came(now())
        self.dispatch()
        self._prefetch.want_for_waiting()

    def _line_up(self, consumer: PushConsumer) -> None:
        if consumer.waits:
            self._consumers.insert(self._waiters, consumer)
            self._waiters += 1
        else:
            self._consumers.append(consumer)

    def withdraw(self, consumer: PushConsumer) -> None:
        """Push nothing more to a consumer; a no-op without credits."""
        if self._standby is not None and consumer in self._standby:
            del self._standby[consumer]
            consumer.add_credits(-consumer.credits)
        if consumer.credits:
            self._consumers.remove(consumer)
            self._waiters -= consumer.waits
            self._interest.add_demand(-consumer.credits)
            consumer.add_credits(-consumer.credits)
            if not self._interest.demand:
                self._prefetch.demand_ended()

    def dispatch(self) -> None:
        """Hand prefetched messages to consumers."""
        policy, consumers, ready = self._queue.policy, self._consumers, self._ready
        if self._standby and policy.paused and policy.refuse_when_paused:
            self._refuse([consumer for consumer in self._standby if consumer.waits])
        if not consumers or self._dispatching:  # a consumer asks for more while it is given a message
            return
        if policy.paused:
            if policy.refuse_when_paused:
                self._refuse(islice(consumers, self._waiters))
            return
        time = now()
        self._interest.came(time)
        self._dispatching = True
        try:
            share = -(-len(ready) // len(consumers))
            while consumers and ready and self._push(share, time):
                pass
        finally:
            self._dispatching = False

    def _push(self, share: int, time: float) -> bool:
        """Give the next consumer its turn; returns whether there was a message for it."""
        consumers = self._consumers
        consumer = consumers[0]
        turn = min(consumer.credits, share, TURN if len(consumers) > 1 else share)
        runs = self._prefetch.take(time, turn, TURN_BYTES, consumer.key)
        if not runs:
            return False
        count = sum(map(len, runs))
        consumer.add_credits(-count)
        self._interest.add_demand(-count)
        consumers.popleft()
        self._waiters -= consumer.waits
        if consumer.credits:
            self._line_up(consumer)
        deadline = None if consumer.waits else self._deliveries.pushed(runs, time, consumer)
        try:
            consumer.push(runs, deadline)
        except Exception as error:  # they count as attempts, so that a bad message is given up
            self._health.broken("session", consumer, error)
            self.withdraw(consumer)
            for tag in [tag for run in runs for tag in run.tags]:
                self._deliveries.give_back(tag, error=told(error))
        return True

    def close(self) -> None:
        """The queue was removed: refuse every consumer."""
        self._refuse([*self._consumers, *(self._standby or ())])

    def _refuse(self, consumers: Iterable[PushConsumer]) -> None:
        """Take back the credits of consumers."""
        for consumer in tuple(consumers):
            self.withdraw(consumer)
            self._health.guard("session", consumer, consumer.refuse)
