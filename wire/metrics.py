"""What a listener process has counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queues.metrics import engine_metrics
from wire.server import Server


class WireCollector(Collector):
    """Reads the plain integers of the engine and the listeners when it is asked."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        yield from engine_metrics(self._server.engine)
        lost = CounterMetricFamily("fivewire_lost_publishes", "SSPQ messages not kept.", labels=["reason"])
        for reason in ("truncated", "unstored"):
            lost.add_metric([reason], self._server.lost_publishes[reason])
        yield lost
        yield from self._listeners()

    def _listeners(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("fivewire_connections_accepted", "Connections accepted.", labels=["listener"])
        current = GaugeMetricFamily("fivewire_connections", "Open connections.", labels=["listener"])
        refused = CounterMetricFamily(
            "fivewire_connections_refused", "Connections refused.", labels=["listener", "reason"]
        )
        closed = CounterMetricFamily("fivewire_connections_closed", "Connections ended.", labels=["listener", "reason"])
        for listener in self._server.listeners:
            name, stats = f"{listener.name} {listener.address}", listener.stats
            accepted.add_metric([name], stats.accepted)
            current.add_metric([name], stats.current)
            for reason, count in stats.refused.items():
                refused.add_metric([name, str(reason)], count)
            for closure, count in stats.closed.items():
                closed.add_metric([name, str(closure)], count)
        yield from (accepted, current, refused, closed)


def register(server: Server) -> Collector:
    """Add a process's server to what /metrics shows; give what is returned to `unregister` in the end."""
    collector = WireCollector(server)
    REGISTRY.register(collector)
    return collector


def unregister(collector: Collector) -> None:
    """Take it out again."""
    REGISTRY.unregister(collector)
