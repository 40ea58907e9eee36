"""The measure of what a neighbour waits sees a broker that stands still."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.hostile.pulse import BlipTrips, Pulse
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database

#: Seconds that the broken twin's event loop stands still, at least.
STILL = 2.0


def stand_still(process: int, pulse: Pulse) -> None:
    """Until a trip takes longer than the slowest control allows, however slow the machine is."""
    with pulse:
        wait_until(lambda: len(pulse.trips) > 2, "a few trips")
        os.kill(process, signal.SIGSTOP)
        try:
            wait_until(lambda: time.monotonic() - pulse.began > max(STILL, pulse.limit + 0.5), "a trip that hangs")
        finally:
            os.kill(process, signal.SIGCONT)


def test_a_loop_that_stands_still_for_two_seconds_is_found(broker: Broker, trips: BlipTrips, store: Database) -> None:
    with pytest.raises(AssertionError, match="a neighbour waited"):
        stand_still(broker.process.pid, Pulse(trips, store, broker.process.pid))


def test_a_broker_that_is_let_alone_answers_in_time(broker: Broker, trips: BlipTrips, store: Database) -> None:
    with Pulse(trips, store, broker.process.pid) as pulse:
        wait_until(lambda: len(pulse.trips) > 20, "trips")
