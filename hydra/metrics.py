"""Prometheus metrics from the rows of Hydra's nodes, for the site's page: a node's process has none."""

from __future__ import annotations

from typing import Any

import psycopg
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hydra.locks import LOCK_CLASS
from hydra.storage.statements import statement

Row = tuple[str, int, bool]


class _Rows(Collector):
    """The rows of the nodes: name, faults, whether a process runs it."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def collect(self) -> list[Metric]:
        faults = CounterMetricFamily(
            "fivewire_hydra_faults", "Units of work that a Hydra node's process gave up for unforeseen reasons.",
            labels=["node"],
        )  # fmt: skip
        running = GaugeMetricFamily("fivewire_hydra_running", "Whether a process runs the node.", labels=["node"])
        for name, count, runs in self._rows:
            faults.add_metric([name], count)
            running.add_metric([name], runs)
        return [faults, running]


async def node_metrics(parameters: dict[str, Any]) -> bytes:
    """The metrics of a database's nodes in Prometheus' text format. Raises psycopg.Error."""
    async with await psycopg.AsyncConnection.connect(**parameters) as connection:
        cursor = await connection.execute(statement("metrics"), {"lock_class": LOCK_CLASS})
        rows = await cursor.fetchall()
    registry = CollectorRegistry()
    registry.register(_Rows(rows))
    return generate_latest(registry)
