"""Fixtures of the tests of peerbus' clients."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.peers.broker import KINDS, FakeBroker, clients


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker on loopback."""
    with FakeBroker() as made:
        yield made


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, broker: FakeBroker) -> Iterator[Any]:
    """Makes clients of the broker, of each kind in turn: `client(name="alice", **options)`."""
    with clients(request.param, broker) as make:
        yield make
