"""The store of the engine's tests."""

from __future__ import annotations

from tests.queues.engine.conftest import store

__all__ = ["store"]
