"""kombu's tests that every transport must pass, on the broker of SUITE_BROKER.

It is copied beside the suite in its source package, and run from there.
"""

from __future__ import annotations

import os

import pytest
from kombu.connection import Connection
from t.integration import common  # type: ignore[import-not-found]

import queues.celery.transport  # noqa: F401 - makes fivewire:// known

BROKER = os.environ["SUITE_BROKER"]


def _dead() -> str:
    """The same URL with a port on which nothing listens and that no client is given."""
    return f"{BROKER.partition('://')[0]}://127.0.0.1:1/{BROKER.rpartition('/')[2]}"


@pytest.fixture
def invalid_connection() -> Connection:
    return Connection(_dead())


@pytest.fixture
def connection() -> Connection:
    return Connection(BROKER)


@pytest.fixture
def failover_connection() -> Connection:
    return Connection(f"{_dead()};{BROKER}")


class TestBasicFunctionality(common.BasicFunctionality):  # type: ignore[misc]
    pass


class TestExchangeTypes(common.BaseExchangeTypes):  # type: ignore[misc]
    pass


class TestTimeToLive(common.BaseTimeToLive):  # type: ignore[misc]
    pass


class TestPriority(common.BasePriority):  # type: ignore[misc]
    pass


class TestFailover(common.BaseFailover):  # type: ignore[misc]
    pass


class TestMessage(common.BaseMessage):  # type: ignore[misc]
    pass


class TestEventLoop(common.BaseEventLoop):  # type: ignore[misc]
    pass
