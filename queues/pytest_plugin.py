"""The fixture `broker` for projects that test with pytest and pytest-django: docs/testing.md."""

from __future__ import annotations

import pytest

from queues.testing import Broker


@pytest.fixture
def broker(db: None) -> Broker:
    """The broker in the test's database."""
    return Broker()
