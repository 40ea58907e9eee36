"""The metrics of a listener process, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queues.metrics import counters, engine_metrics, over_quota
from wire.net.limits import ConnectionLimits
from wire.server import Server


class WireCollector(Collector):
    """Reads the plain integers of the engine and the listeners when it is asked."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        yield from engine_metrics(self._server.engine)
        lost = {reason: self._server.lost_publishes[reason] for reason in ("truncated", "unstored")}
        yield counters("fivewire_lost_publishes", "SSPQ messages not kept.", "reason", lost)
        yield over_quota(self._server.over_quota, "connections", "subscriptions", "pending")
        yield from self._listeners()

    def _listeners(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("fivewire_connections_accepted", "Connections accepted.", labels=["listener"])
        current = GaugeMetricFamily("fivewire_connections", "Open connections.", labels=["listener"])
        refused = CounterMetricFamily(
            "fivewire_connections_refused", "Connections refused.", labels=["listener", "reason"]
        )
        closed = CounterMetricFamily("fivewire_connections_closed", "Connections ended.", labels=["listener", "reason"])
        failures = CounterMetricFamily(
            "fivewire_session_failures", "Unforeseen exceptions; each ended its connection.", labels=["listener"]
        )
        for listener in self._server.listeners:
            name, stats = f"{listener.name} {listener.address}", listener.stats
            accepted.add_metric([name], stats.accepted)
            current.add_metric([name], stats.current)
            failures.add_metric([name], stats.failures)
            for reason, count in stats.refused.items():
                refused.add_metric([name, str(reason)], count)
            for closure, count in stats.closed.items():
                closed.add_metric([name, str(closure)], count)
        yield from (accepted, current, refused, closed, failures)
        if self._server.listeners:
            yield from self._limits(self._server.listeners[0].limits)

    @staticmethod
    def _limits(limits: ConnectionLimits) -> Iterator[Metric]:
        """The gauges that all listeners of the process share."""
        yield GaugeMetricFamily(
            "fivewire_unauthenticated_connections", "Connections whose handshake is not complete.",
            limits.unauthenticated,
        )  # fmt: skip
        yield GaugeMetricFamily(
            "fivewire_partial_bytes", "Bytes received of frames that are not complete or not handled yet.",
            limits.partial.total,
        )  # fmt: skip


def register(server: Server) -> Collector:
    """Add a process's server to /metrics; pass the returned collector to `unregister` at the end."""
    collector = WireCollector(server)
    REGISTRY.register(collector)
    return collector


def unregister(collector: Collector) -> None:
    """Take it out again."""
    REGISTRY.unregister(collector)
