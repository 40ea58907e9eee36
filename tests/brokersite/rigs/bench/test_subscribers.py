"""The subscribers of fan-out: many in a process, each message counted, and an end with an answer when nothing comes."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from brokersite.rigs.bench import subscribers
from brokersite.rigs.bench.columns import WIDTH, numbers, verify
from brokersite.rigs.bench.drivers import FanoutDriver
from brokersite.rigs.bench.drivers.blipmq import BlipMQ
from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.processes import LoadProgress
from brokersite.rigs.bench.stream import Endpoint
from brokersite.rigs.bench.subscribers import Subscribed, allow_files, subscribe
from tests.wire.broker import KEY, Broker, Database

RUN, COUNT = 7, 100


class FakeSubscriber:
    """A subscriber of a broker that has these numbers, and gives at most ten at once."""

    def __init__(self, available: list[bytes]) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._available = available
        self._answer = b""
        self.settled = self.closed = False
        self.on_nothing: Callable[[], object] = bool

    def fileno(self) -> int:
        return self._ours.fileno()

    def ask(self, count: int) -> None:
        taken = self._available[: min(count, 10)]
        del self._available[: len(taken)]
        if not taken:
            self.on_nothing()
        self._answer = b"".join(taken)
        self._theirs.send(b"x")

    def collect(self) -> bytes | None:
        self._ours.recv(1)
        return self._answer

    def receive(self, wait: float) -> bytes:
        raise AssertionError("one of many is asked, and read when something has come")

    def settle(self) -> None:
        self.settled = True

    def close(self) -> None:
        self.closed = True
        self._ours.close()
        self._theirs.close()


@dataclass(frozen=True)
class FakeDriver(FanoutDriver):
    subscribers: list[FakeSubscriber]

    def producer(self, index: int) -> Any:
        raise AssertionError("subscribers publish nothing")

    def consumer(self, index: int) -> FakeSubscriber:
        return self.subscribers[index]


def driver_of(*available: list[bytes]) -> FakeDriver:
    """Subscriber `n` is given `available[n]`."""
    subscribers = [FakeSubscriber(some) for some in available]
    return FakeDriver(run=RUN, size=WIDTH, prefetch=COUNT, subscribers=subscribers)


def each(*places: int) -> list[bytes]:
    return [numbers(RUN, 0, place, 1) for place in places]


@contextmanager
def publishing(count: int) -> Iterator[LoadProgress]:
    """The producer's side: so many messages are published, and confirmed, the first one before the others."""
    progress = LoadProgress(1, 1, fanout=True)

    def tell(confirmed: int) -> None:
        progress.sent[0] = progress.confirmed[0] = confirmed

    def produce() -> None:
        progress.begin(lambda: tell(1), lambda: None)
        tell(count)
        progress.finished[0] = 1

    thread = threading.Thread(target=produce)
    thread.start()
    yield progress
    thread.join()


def received(driver: FakeDriver, count: int = COUNT) -> Subscribed:
    with publishing(count) as progress:
        found = subscribe(driver, 0, len(driver.subscribers), 0, progress)
        assert progress.received[0] >= count
        assert all(one.settled and one.closed for one in driver.subscribers)
        return found


def test_each_subscriber_receives_every_message_and_columns_are_kept_of_none() -> None:
    driver = driver_of(*(each(*range(COUNT)) for _ in range(5)))
    assert received(driver).columns == []


@pytest.mark.parametrize(
    ("places", "fault"),
    [
        ([*range(COUNT), 3], {"duplicates": 1}),
        ([0, 2, 1, *range(3, COUNT)], {"unordered": 1}),
        ([*range(COUNT - 1), COUNT - 2], {"lost": 1, "duplicates": 1}),
        ([*range(COUNT - 1), 2 << 32], {"lost": 1, "foreign": 1}),
    ],
    ids=["twice", "out of order", "lost", "foreign"],
)
def test_what_a_subscriber_should_not_receive_is_counted(places: list[int], fault: dict[str, int]) -> None:
    driver = driver_of(each(*range(COUNT)), each(*places))
    [column] = received(driver).columns
    assert len(column) == WIDTH * len(places)
    found = verify(RUN, [COUNT], [column])._asdict()
    assert {name: count for name, count in found.items() if count} == fault


def test_a_broker_that_delivers_no_more_ends_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(each(*range(60)))
    [subscriber] = driver.subscribers
    subscriber.on_nothing = lambda: monkeypatch.setattr(subscribers, "TIMEOUT", 0.0)
    with publishing(COUNT) as progress, pytest.raises(BenchError) as raised:
        subscribe(driver, 0, 1, 0, progress)
    subscriber.close()
    assert str(raised.value).startswith("Nothing was delivered for 0 s, when 1 of 1 subscribers of a process had not")
    assert str(raised.value).endswith("received all of 100 messages, the last one 60.")


def test_too_few_file_descriptors_are_told_before_any_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (100, 1000))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: raised.append(limits))
    allow_files(30)
    assert raised == []
    allow_files(500)
    assert raised == [(564, 1000)]
    with pytest.raises(BenchError, match=r"1,000 connections .* need 1,064 file descriptors, and it may have 1,000: "):
        allow_files(1000)


def test_a_broker_that_takes_no_more_connections_is_told_what_to_set(store: Database) -> None:
    with Broker(store, BROKER_MAX_CONNECTIONS_PER_ADDRESS=2) as broker:
        driver = BlipMQ(Endpoint(*broker.blipmq), KEY, "t", run=1, size=100, prefetch=8, subscriptions=(1, 2, 3))
        with closing(driver.consumer(0)), closing(driver.consumer(1)), pytest.raises(BenchError) as refused:
            driver.consumer(2)
    assert " has closed the connection" in str(refused.value)
    assert ". Others of this run are open. A process of the broker takes" in str(refused.value)
    assert "BROKER_MAX_CONNECTIONS_PER_ADDRESS (1,000) from one address" in str(refused.value)
