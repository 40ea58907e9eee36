"""Prometheus metrics from the rows of Hydra's nodes, for the site's page: a node's process has none."""

from __future__ import annotations

from typing import Any

import psycopg
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hydra.locks import LOCK_CLASS
from hydra.storage.statements import statement
from queues.metrics import counters, gauges, text_of

Row = tuple[str, int, bool]


class _Rows(Collector):
    """The rows of the nodes: name, faults, whether a process runs it."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    def collect(self) -> list[Metric]:
        faults = {name: count for name, count, _ in self._rows}
        text = "Units of work that a Hydra node's process gave up for unforeseen reasons."
        running = {name: runs for name, _, runs in self._rows}
        return [
            counters("fivewire_hydra_faults", text, "node", faults),
            gauges("fivewire_hydra_running", "Whether a process runs the node.", "node", running),
        ]


async def node_metrics(parameters: dict[str, Any]) -> bytes:
    """The metrics of a database's nodes in Prometheus' text format. Raises psycopg.Error."""
    async with await psycopg.AsyncConnection.connect(**parameters) as connection:
        cursor = await connection.execute(statement("metrics"), {"lock_class": LOCK_CLASS})
        rows = await cursor.fetchall()
    return text_of(_Rows(rows))
