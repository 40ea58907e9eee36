"""Fixtures of the transport's tests, for the rigs that run on it."""

from tests.queues.celery.transport.conftest import tables

__all__ = ["tables"]
