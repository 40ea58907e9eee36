"""Slowing down addresses that try wrong keys: by a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from queues.permissions import throttle
from queues.permissions.throttle import FORGIVE, MAX_DELAY, FailureThrottle


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


def failures(slow: FailureThrottle, count: int, address: str = "192.0.2.1") -> list[float]:
    """The waits after so many failures at once."""
    return [slow.failed(address) for _ in range(count)]


def test_the_first_three_failures_are_free_and_each_one_after_them_doubles_the_wait(clock: Clock) -> None:
    assert failures(FailureThrottle(), 7) == [0, 0, 0, 0.1, 0.2, 0.4, 0.8]


def test_the_wait_grows_to_five_seconds_and_no_further(clock: Clock) -> None:
    waits = failures(FailureThrottle(), 2000)
    assert waits[8:11] == [3.2, 5.0, 5.0]
    assert waits[-1] == MAX_DELAY == 5.0


def test_an_address_does_not_wait_for_another_ones_failures(clock: Clock) -> None:
    slow = FailureThrottle()
    assert failures(slow, 5, "192.0.2.1")[-1] == 0.2
    assert slow.failed("192.0.2.2") == 0
    assert slow.failed("192.0.2.1") == 0.4


def test_a_failure_is_forgiven_every_ten_seconds(clock: Clock) -> None:
    slow = FailureThrottle()
    assert failures(slow, 6)[-1] == 0.4
    clock.now += 2 * FORGIVE  # four are left: this is the fifth
    assert slow.failed("192.0.2.1") == 0.2
    clock.now += FORGIVE / 2
    assert slow.failed("192.0.2.1") == pytest.approx(0.1 * 2**1.5)


def test_a_client_without_failures_left_starts_anew_and_not_below(clock: Clock) -> None:
    slow = FailureThrottle()
    failures(slow, 5)
    clock.now += 100 * FORGIVE
    assert failures(slow, 4) == [0, 0, 0, 0.1]


def test_the_wait_after_failures_is_told_in_seconds(clock: Clock) -> None:
    slow = FailureThrottle()
    assert slow.wait("192.0.2.1") == 0
    failures(slow, 3)
    assert slow.wait("192.0.2.1") == 0
    failures(slow, 4)
    assert slow.wait("192.0.2.1") == pytest.approx(0.8)
    assert slow.wait("192.0.2.2") == 0
    clock.now += 0.5
    assert slow.wait("192.0.2.1") == pytest.approx(0.3)
    clock.now += 0.5
    assert slow.wait("192.0.2.1") == 0


def test_only_so_many_addresses_are_remembered_those_that_failed_last(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_ADDRESSES", 3)
    slow = FailureThrottle()
    for address in ("a", "b", "c"):
        failures(slow, 3, address)
    assert slow.failed("a") == 0.1  # now b is the one that failed longest ago
    assert slow.failed("d") == 0
    assert len(slow._failures) == 3
    assert slow.failed("a") == 0.2
    assert slow.failed("c") == 0.1
    assert slow.failed("b") == 0  # forgotten


def test_memory_stays_bounded_under_a_storm_from_new_addresses(clock: Clock) -> None:
    slow = FailureThrottle()
    for number in range(throttle.MAX_ADDRESSES + 500):
        slow.failed(f"2001:db8::{number:x}")
    assert len(slow._failures) == throttle.MAX_ADDRESSES
