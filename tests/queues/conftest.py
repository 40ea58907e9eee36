"""Fixtures of this directory."""

from __future__ import annotations

import pytest

from tests.queues.shell import Shell


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Calls `manage.py` with some arguments."""
    return Shell(monkeypatch, capfd)
