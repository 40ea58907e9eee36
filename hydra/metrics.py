"""Prometheus metrics from the rows of Hydra's nodes, for the site's page: a node's process has none."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
from prometheus_client.core import CounterMetricFamily

from hydra.locks import LOCK_CLASS
from hydra.storage.statements import statement
from queues.database.hosts import at_primary
from queues.monitoring.metrics import counters, gauges, labelled, text_of

#: The ends of lines that are counted.
ENDS = ("refused", "lost")


async def node_metrics(parameters: dict[str, Any]) -> bytes:
    """The metrics of a database's nodes in Prometheus' text format. Raises psycopg.Error."""
    async with await psycopg.AsyncConnection.connect(**await asyncio.to_thread(at_primary, parameters)) as connection:
        cursor = await connection.execute(statement("metrics"), {"lock_class": LOCK_CLASS})
        rows = await cursor.fetchall()
    faults = {name: count for name, count, *_ in rows}
    ended = {(name, how): count for name, _, *lines, _ in rows for how, count in zip(ENDS, lines, strict=True)}
    text = "Units of work that a Hydra node's process gave up for unforeseen reasons."
    running = {name: runs for name, *_, runs in rows}
    return text_of([
        counters("fivewire_hydra_faults", text, "node", faults),
        labelled(
            CounterMetricFamily("fivewire_hydra_lines_ended", "Lines not said or not stored.", labels=["node", "how"]),
            ended,
        ),
        gauges("fivewire_hydra_running", "Whether a process runs the node.", "node", running),
    ])  # fmt: skip
