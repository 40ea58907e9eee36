"""The messages of one channel from the engine: at most its prefetch count at a time, over all its queues.

Everything here runs in the engine's thread. Each queue's pusher is granted as many credits as the channel has left;
what one of them uses is taken from the others at once.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from queues.celery.consumers.prefetch_buffer import PrefetchBuffer
from queues.engine.api import Deliveries, PrefetchedQueue, Push, PushConsumer, PushRun, weight

#: A prefetch count of 0 means no limit. A worker's memory is limited all the same.
WITHOUT_LIMIT = 10_000
#: Seconds to gather free places, so that one claim serves several.
LINGER = 0.001
#: Seconds until the next claim from a queue that had too few messages, without and with messages ahead. One claim then
#: brings several.
PAUSE, PAUSE_AHEAD = 0.005, 0.01
#: Seconds between two measurements of a channel's rate, and the number of measurements. A channel gets ahead what it
#: settled in that time, if that is at least its prefetch count. A slow channel gets nothing ahead, so that messages
#: stay free for others.
PACE, LOOKS = 0.025, 4
#: Limits of messages and bytes that a channel gets ahead. A claim under way may exceed them by what one queue may hold
#: in memory.
MAX_AHEAD, MAX_AHEAD_BYTES = 500, 16 << 20


@dataclass(slots=True, eq=False)
class Received:
    """A message on its way to a consumer, and what settles it."""

    consumer: QueueConsumer
    buffer: PrefetchedQueue
    push: Push

    def settle(self, how: Settlement) -> None:
        """Settle it. Any thread may call this."""
        self.consumer.channel.settle(self, how)


#: The settlement of a delivery: called with those of its queue and its tag, in the engine's thread.
Settlement = Callable[[Deliveries, int], None]


def acknowledge(deliveries: Deliveries, tag: int) -> None:
    """The settlement of a delivery that is done."""
    deliveries.ack(tag)


class QueueConsumer(PushConsumer):
    """A consumer of one queue, without an API key."""

    def __init__(self, channel: ChannelConsumer, tag: str, queue: str) -> None:
        super().__init__(key=None)
        self.channel = channel
        self.tag = tag
        self.queue = queue
        self.buffer: PrefetchedQueue | None = None
        #: The broker's tags of unacknowledged deliveries.
        self.held: set[int] = set()

    def attach(self, buffer: PrefetchedQueue) -> None:
        """Consume from this buffer from now on."""
        self.buffer = buffer
        self.credits = 0
        self.held = set()
        buffer.enter(self)

    @property
    def takes_places(self) -> bool:
        """Whether the queue is audited or has a concurrency limit. Then nothing is pushed ahead of the prefetch
        count."""
        return self.buffer is not None and (
            self.buffer.audited is not None or self.buffer.policy.concurrency_limit is not None
        )

    def push(self, runs: list[PushRun], deadline: float | None) -> None:
        buffer = self.buffer
        assert buffer is not None
        for run in runs:
            self.held.update(run.tags)
        self.channel.pushed(self, [Received(self, buffer, push) for run in runs for push in run])

    def expired(self, tags: list[int]) -> None:
        """The queue's ack timeout is over. The messages go to others, even if their consumer still works."""
        self.held.difference_update(tags)
        self.channel.freed(len(tags))

    def settled(self, buffer: PrefetchedQueue, tags: Sequence[int]) -> None:
        """Free the places of settled deliveries."""
        if buffer is self.buffer and (free := self.held.intersection(tags)):
            self.held.difference_update(free)
            self.channel.freed(len(free))

    def set_credits(self, credits: int) -> None:
        """Set the number of messages that may be pushed. Some may be pushed at once."""
        if self.buffer is None or self.buffer.closed or credits == self.credits:
            return
        pusher = self.buffer.dispatcher()
        if credits < self.credits:
            pusher.withdraw(self)
        if credits > self.credits:
            pusher.grant(self, credits - self.credits)


@dataclass(eq=False, repr=False)
class ChannelConsumer:
    """The consumers of one channel. `receive` is called with pushed messages, `settle` may be called by any thread.

    With a `buffer`, which then is what gives messages to the consumers, a channel that works fast is pushed some ahead
    of what its prefetch count allows.
    """

    _loop: asyncio.AbstractEventLoop
    _receive: Callable[[list[Received]], None]
    settle: Callable[[Received, Settlement], None]
    #: Called when the engine's thread has ended and nothing more will come.
    lose: Callable[[], None]
    _paced: Callable[[], None] = lambda: None
    _consumers: list[QueueConsumer] = field(default_factory=list)
    _outstanding: int = 0
    _window: int = WITHOUT_LIMIT
    _timer: asyncio.TimerHandle | None = None
    _ahead_buffer: PrefetchBuffer[Received] | None = None
    #: Messages that may be pushed beyond the prefetch count.
    ahead: int = 0
    #: Upper bound of the bytes in the buffer: the last count and what was pushed since.
    _ahead_bytes: int = 0
    _done: int = 0
    #: Messages settled between the last measurements.
    _lately: deque[int] = field(default_factory=lambda: deque(maxlen=LOOKS))
    _pace: asyncio.TimerHandle | None = None

    def read_ahead_into(self, buffer: PrefetchBuffer[Received]) -> None:
        """Push ahead into this buffer."""
        self._ahead_buffer = buffer

    def set_prefetch(self, count: int) -> None:
        self._window = count or WITHOUT_LIMIT
        self._grant()

    def add(self, consumer: QueueConsumer, buffer: PrefetchedQueue) -> None:
        consumer.attach(buffer)
        self._consumers.append(consumer)
        self._grant()

    def remove(self, consumer: QueueConsumer) -> None:
        """Remove a consumer. What was pushed ahead to it, even a moment ago, goes back."""
        if consumer in self._consumers:
            consumer.set_credits(0)
            self._consumers.remove(consumer)
        if self._ahead_buffer is not None:
            for received in self._ahead_buffer.remove(lambda received: received.consumer is consumer):
                self.settle(received, Deliveries.hand_back)
        if consumer.buffer is not None:
            consumer.buffer.leave(consumer, finish=True)

    def closed(self) -> list[QueueConsumer]:
        """The consumers of deleted queues; there may be another queue of the name by now."""
        return [consumer for consumer in self._consumers if consumer.buffer is None or consumer.buffer.closed]

    def reattach(self, consumer: QueueConsumer, buffer: PrefetchedQueue) -> None:
        if consumer in self._consumers:
            self._outstanding -= len(consumer.held)
            consumer.attach(buffer)
            self._grant()

    def pushed(self, consumer: QueueConsumer, received: list[Received]) -> None:
        """Messages were pushed to one of the consumers: there is less for all of them."""
        self._outstanding += len(received)
        self._ahead_bytes += _bytes(received)
        self._receive(received)
        for each in self._consumers:
            each.set_credits(0)
        if self._free:
            self._grant_in(PAUSE_AHEAD if self.ahead else PAUSE)

    def freed(self, count: int) -> None:
        """Free `count` places."""
        self._outstanding -= count
        self._done += count
        if self._pace is None and self._ahead_buffer is not None:
            self._pace = self._loop.call_later(PACE, self._look)
        if 2 * self._free >= self._most:
            self._grant_in(0)
        elif not self.ahead:  # otherwise the next measurement grants them together, long before the channel runs dry
            self._grant_in(LINGER)

    def _look(self) -> None:
        """Allow as many messages ahead as were settled between the last measurements. The excess goes back."""
        assert self._ahead_buffer is not None
        self._lately.append(self._done)
        if self._done:
            self._pace, pace = self._loop.call_later(PACE, self._look), sum(self._lately)
            self.ahead = min(pace, MAX_AHEAD) if pace >= self._window else 0
        else:
            self._pace, self.ahead = None, 0
            self._lately.clear()
        self._done = 0
        self._paced()
        self._grant()  # withdraws unused credits of an earlier, higher limit
        back: dict[PrefetchedQueue, list[Push]] = defaultdict(list)
        for received in self._ahead_buffer.take_back(self._outstanding - self._most):
            back[received.buffer].append(received.push)
            if received.buffer is received.consumer.buffer and received.push.tag in received.consumer.held:
                received.consumer.held.discard(received.push.tag)
                self._outstanding -= 1
        for buffer, pushes in back.items():
            buffer.deliveries.undeliver(pushes)

    @property
    def _most(self) -> int:
        return self._window + self.ahead

    @property
    def _free(self) -> int:
        return max(0, self._most - self._outstanding)

    @property
    def _is_heavy(self) -> bool:
        """Whether the messages ahead have as many bytes as they may."""
        if self._ahead_bytes >= MAX_AHEAD_BYTES and self._ahead_buffer is not None:
            self._ahead_bytes = _bytes(tuple(self._ahead_buffer.items))  # a copy: the other thread takes
        return self._ahead_bytes >= MAX_AHEAD_BYTES

    def _grant_in(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(seconds, self._grant)

    def _grant(self) -> None:
        """Give the free credits to the queues, in rotating order."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._consumers = self._consumers[1:] + self._consumers[:1]
        heavy = self._is_heavy
        for consumer in tuple(self._consumers):
            none_ahead = heavy or consumer.takes_places
            consumer.set_credits(max(0, self._free - self.ahead) if none_ahead else self._free)


def _bytes(messages: Iterable[Received]) -> int:
    """The memory of messages in bytes."""
    return sum(weight(received.push[1:]) for received in messages)
