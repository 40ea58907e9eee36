"""A database with running listeners for the benchmark's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.wire.broker import Broker, Database
from tests.wire.conftest import store

__all__ = ["store"]


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    """Listeners of all protocols over TCP."""
    with Broker(store) as running:
        yield running
