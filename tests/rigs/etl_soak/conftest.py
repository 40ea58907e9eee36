"""Fixtures of the export's tests."""

from tests.queues.etl.conftest import etl, spark

__all__ = ["etl", "spark"]
