"""How many messages a channel is given ahead of its prefetch count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from queues.celery.consumers.channel_consumer import (
    LOOKS,
    MAX_AHEAD,
    MAX_AHEAD_BYTES,
    PACE,
    ChannelConsumer,
    QueueConsumer,
    Received,
)
from queues.celery.consumers.prefetch_buffer import PrefetchBuffer
from queues.engine.api import PrefetchedQueue, Push

PREFETCH = 8


class Credits(QueueConsumer):
    """A consumer that notes its credits."""

    given = 0
    takes_places = False

    def set_credits(self, credits: int) -> None:
        self.given = credits


class Timers:
    """A loop of which the timers are known: they fire when they are asked to."""

    def __init__(self) -> None:
        self.set: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, seconds: float, function: Callable[[], None]) -> Any:
        self.set.append((seconds, function))
        return asyncio.TimerHandle(0.0, function, (), cast(asyncio.AbstractEventLoop, self))

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass


@pytest.fixture
def channel() -> ChannelConsumer:
    loop = cast(asyncio.AbstractEventLoop, Timers())
    made = ChannelConsumer(loop, lambda received: None, lambda received, how: None, lambda: None)
    made.read_ahead_into(PrefetchBuffer[Received](lambda: None))
    made.set_prefetch(PREFETCH)
    return made


def look(channel: ChannelConsumer, done: int) -> bool:
    """So many are done, and the time for a look comes; returns whether another is planned."""
    timers = cast(Timers, channel._loop).set
    if done:
        channel._outstanding += done
        channel.freed(done)
    [(at, fire)] = [(seconds, function) for seconds, function in timers if function == channel._look]
    assert at == PACE
    timers.clear()
    fire()
    return any(function == channel._look for _, function in timers)


def test_a_channel_that_does_less_than_its_prefetch_count_is_given_none_ahead(channel: ChannelConsumer) -> None:
    assert look(channel, 1)
    for done in (1, 3, 1, 2):
        assert look(channel, done)
        assert channel.ahead == 0


def test_a_channel_is_given_ahead_what_it_did_between_the_last_looks(channel: ChannelConsumer) -> None:
    assert look(channel, PREFETCH)
    assert channel.ahead == PREFETCH
    for _ in range(LOOKS):
        look(channel, 20)
    assert channel.ahead == 20 * LOOKS
    look(channel, 5)
    assert channel.ahead == 20 * (LOOKS - 1) + 5
    look(channel, 10 * MAX_AHEAD)
    assert channel.ahead == MAX_AHEAD


def test_a_channel_that_pauses_is_given_none_ahead_any_more(channel: ChannelConsumer) -> None:
    look(channel, 100)
    assert not look(channel, 0)
    assert channel.ahead == 0
    look(channel, PREFETCH - 1)
    assert channel.ahead == 0  # what it did before its pause counts no more


def test_a_channel_that_has_many_bytes_ahead_is_given_no_more_than_its_prefetch_count(channel: ChannelConsumer) -> None:
    buffer = PrefetchBuffer[Received](lambda: None)
    channel.read_ahead_into(buffer)
    channel._receive = buffer.put
    consumer = Credits(channel, "tag", "orders")
    channel._consumers = [consumer]
    for _ in range(LOOKS):
        look(channel, 25)
    assert channel.ahead == 100
    large = Received(consumer, cast(PrefetchedQueue, None), Push(1, 1, bytes(MAX_AHEAD_BYTES // 4), 0, None))

    channel.pushed(consumer, [large] * 3)
    channel._grant()
    assert consumer.given == PREFETCH + 100 - 3
    channel.pushed(consumer, [large])
    channel._grant()
    assert consumer.given == PREFETCH - 4
    buffer.get()
    channel._grant()
    assert consumer.given == PREFETCH + 100 - 4
