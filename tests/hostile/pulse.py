"""A neighbour's response times while hostile clients are at work, beside a control that they do not reach."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import psycopg

from tests.waiting import PATIENCE
from tests.wire.broker import KEY, Blip, Broker, Database

#: A round trip may last so many times the longest of the control's, and so many seconds more.
FACTOR, FLOOR = 20.0, 2.0
#: Seconds between two trips.
PAUSE = 0.05


def percentile(sorted_times: list[float], part: float) -> float:
    """The nearest-rank percentile."""
    return sorted_times[max(0, -(-len(sorted_times) * int(part * 100) // 100) - 1)]


class Pulse:
    """Round trips of a neighbour, one after another, each beside a commit of the test's own on the same server.

    The control bears what the machine and the disk cost, at the same moments. What the broker's process waits for a
    processor is not counted either, where the system tells. So what is left is what the broker itself makes wait.
    """

    def __init__(self, trip: Callable[[], None], database: Database, process: int) -> None:
        self._trip, self._process = trip, process
        self._control = psycopg.connect(**database.parameters, autocommit=True)
        self._control.execute(b"create table if not exists pulse (id int)")
        self._workers = ThreadPoolExecutor(2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat)
        self.trips: list[float] = []
        self.controls: list[float] = []
        #: When the trip under way began.
        self.began = time.monotonic()
        self.failure: BaseException | None = None

    def _beat(self) -> None:
        while not self._ended.wait(PAUSE) or not self.trips:
            starved, self.began = self._starved(), time.monotonic()
            trip, control = self._workers.submit(_timed, self._trip), self._workers.submit(_timed, self._commit)
            try:
                self.controls.append(control.result())
                took = trip.result()
            except BaseException as error:
                self.failure = error
                return
            self.trips.append(took - (self._starved() - starved))

    def _commit(self) -> None:
        self._control.execute(b"insert into pulse values (1)")

    def _starved(self) -> float:
        """Seconds that the broker's event loop has waited for a processor; 0 where the system does not tell."""
        try:
            return int(Path(f"/proc/{self._process}/schedstat").read_text().split()[1]) / 1e9
        except OSError:
            return 0.0

    @property
    def limit(self) -> float:
        """Seconds that a trip may have taken so far."""
        return FACTOR * max(self.controls, default=0.0) + FLOOR

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(2 * PATIENCE)
        self._workers.shutdown()
        self._control.close()
        if self.failure is not None:
            raise self.failure
        if error[0] is None:
            trips = sorted(self.trips)
            figures = f"{len(trips)} trips: p50 {percentile(trips, 0.5):.3f} s, p99 {percentile(trips, 0.99):.3f} s"
            assert trips[-1] <= self.limit, f"a neighbour waited {trips[-1]:.3f} s, limit {self.limit:.3f} s; {figures}"


def _timed(call: Callable[[], None]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


class BlipTrips:
    """A client on its own connection. A trip is a durable publish of a QoS 1 message and a POLL that brings it."""

    def __init__(self, broker: Broker) -> None:
        self._client = Blip(broker.blipmq, KEY)
        self._subscription = self._client.subscribe(b"pulse")

    def __call__(self) -> None:
        self._client.publish(b"pulse", b"x")
        self._client.consume(self._subscription, 1)

    def close(self) -> None:
        self._client.close()
