"""The subscriptions that one BlipMQ connection polls."""

from __future__ import annotations

from itertools import islice

from queues.engine.api import LocalSubscription
from wire.blipmq import codec

#: Subscriptions that one connection remembers.
MAX_POLLED = 100_000
#: Subscriptions of one connection that operators are shown.
MAX_REPORTED = 100


class Polled:
    """A subscription that a connection polls."""

    __slots__ = ("buffer", "prefix", "subscription", "transient")

    def __init__(self, subscription: LocalSubscription) -> None:
        self.subscription = subscription
        self.buffer = subscription.buffer
        #: QoS 0 messages; always the same deque.
        self.transient = subscription.transient
        self.prefix = codec.delivery_prefix(1, subscription.topic)


class PolledSubscriptions(dict[bytes, Polled]):
    """By the payload of POLL and ACK, the subscription's id as it is on the wire."""

    __slots__ = ()

    def remember(self, subscription: LocalSubscription, consumer: object) -> Polled:
        """The session, `consumer` to queues, polls this from now on."""
        if len(self) >= MAX_POLLED:
            self.leave(consumer)
            self.clear()
        known = self[codec.U64.pack(subscription.id)] = Polled(subscription)
        return known

    def leave(self, consumer: object, count: bool = True) -> None:
        """The session polls these no more. What it has not acknowledged of a queue with a single active consumer goes
        back in place, with `count` as an attempt."""
        for known in self.values():
            known.buffer.leave(consumer, count=count, keep_tags=True)

    def unacknowledged(self) -> dict[int, int]:
        """The queues of the first `MAX_REPORTED` subscriptions, and the unacknowledged messages of each. Other clients
        of the key may have polled some of these."""
        return {known.buffer.id: len(known.buffer.unacked) for known in islice(self.values(), MAX_REPORTED)}
