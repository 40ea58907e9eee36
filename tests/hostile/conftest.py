"""A broker that hostile clients reach, a neighbour on it, and what must be the same afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.pulse import BlipTrips, Pulse
from tests.hostile.unharmed import Neighbour, unharmed
from tests.wire.broker import Broker, Database
from tests.wire.conftest import store

__all__ = ["store"]


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_DEFAULT_RETRY_BACKOFF=0.1) as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(broker: Broker) -> Iterator[Neighbour]:
    made = Neighbour(broker)
    yield made
    made.close()


@pytest.fixture(scope="module")
def trips(broker: Broker) -> Iterator[BlipTrips]:
    made = BlipTrips(broker)
    yield made
    made.close()


@pytest.fixture
def nothing_else_harmed(broker: Broker, neighbour: Neighbour, trips: BlipTrips, store: Database) -> Iterator[None]:
    """Around a test: the node, the log and a neighbour are as before, and another is answered in time meanwhile."""
    with unharmed(store, lambda: broker.log, neighbour.served), Pulse(trips, store, broker.process.pid):
        yield
