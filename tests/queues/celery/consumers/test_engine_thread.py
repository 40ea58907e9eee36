"""When the engine's thread is woken for what consumers have settled."""

from __future__ import annotations

from typing import Any, cast

import pytest

from queues.celery.consumers.channel_consumer import ChannelConsumer, Received, acknowledge
from queues.celery.consumers.engine_thread import GATHER, GATHER_AHEAD, EngineThread


class PacedChannel:
    """A channel whose consumers have so many messages ahead."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead


class Woken:
    """An engine's thread that is not started: what wakes its loop, and its timers, are noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ahead: int) -> None:
        self.signals: list[Any] = []
        self.timers: list[tuple[float, Any]] = []
        self.settled: list[list[Received]] = []
        self.thread = EngineThread("", "test")
        self.thread._channels.add(cast(ChannelConsumer, PacedChannel(ahead)))
        loop = self.thread.loop
        monkeypatch.setattr(loop, "call_soon_threadsafe", self.signals.append)
        monkeypatch.setattr(loop, "call_later", lambda seconds, function: self.timers.append((seconds, function)))
        monkeypatch.setattr(self.thread, "_acknowledge", self.settled.append)

    def settle(self) -> Received:
        received = cast(Received, object())
        self.thread.settle(received, acknowledge)
        return received

    def obey(self) -> None:
        """Run what was asked for by a signal."""
        self.signals.pop()()

    def fire(self) -> float:
        """Run a timer; its seconds."""
        seconds, function = self.timers.pop()
        function()
        return seconds


def woken(monkeypatch: pytest.MonkeyPatch, ahead: int) -> Woken:
    made = Woken(monkeypatch, ahead)
    made.thread.loop.close()
    return made


def test_acknowledgements_of_fast_consumers_wake_the_thread_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = woken(monkeypatch, ahead=1)
    first, second = made.settle(), made.settle()
    assert len(made.signals) == 1
    made.obey()
    assert made.fire() == GATHER_AHEAD
    third = made.settle()
    assert made.fire() == GATHER_AHEAD
    assert made.settled == [[first, second], [third]]
    assert made.signals == []
    made.fire()
    assert made.timers == []  # nothing came: it is not looked for again
    made.settle()
    assert len(made.signals) == 1


def test_acknowledgements_of_consumers_that_wait_for_their_places_are_settled_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = woken(monkeypatch, ahead=0)
    for _ in range(2):
        received = made.settle()
        made.obey()
        assert made.fire() == GATHER
        assert made.settled.pop() == [received]
        assert made.timers == made.signals == []


def test_an_acknowledgement_during_the_last_look_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    made = woken(monkeypatch, ahead=0)
    made.settle()
    made.obey()
    late: list[Received] = []
    monkeypatch.setattr(made.thread, "_acknowledge", lambda done: late.append(made.settle()))
    made.fire()
    monkeypatch.setattr(made.thread, "_acknowledge", made.settled.append)
    assert made.signals == []
    made.fire()
    assert made.settled == [late]
