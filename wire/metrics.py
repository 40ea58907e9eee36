"""The metrics of a listener process, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queues.monitoring.metrics import counters, engine_metrics, gauges, over_quota
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
        listeners = self._server.listeners
        stats = {f"{each.name} {each.address}": each.stats for each in listeners}
        accepted = {name: each.accepted for name, each in stats.items()}
        current = {name: each.current for name, each in stats.items()}
        failures = {name: each.failures for name, each in stats.items()}
        yield counters("fivewire_connections_accepted", "Connections accepted.", "listener", accepted)
        yield gauges("fivewire_connections", "Open connections.", "listener", current)
        for counter, text in (("refused", "Connections refused."), ("closed", "Connections ended.")):
            family = CounterMetricFamily(f"fivewire_connections_{counter}", text, labels=["listener", "reason"])
            for name, each in stats.items():
                for reason, count in getattr(each, counter).items():
                    family.add_metric([name, str(reason)], count)
            yield family
        text = "Unforeseen exceptions; each ended its connection."
        yield counters("fivewire_session_failures", text, "listener", failures)
        if listeners:
            limits = listeners[0].limits  # which all listeners of the process share
            text = "Connections whose handshake is not complete."
            yield GaugeMetricFamily("fivewire_unauthenticated_connections", text, limits.unauthenticated)
            text = "Bytes received of frames that are not complete or not handled yet."
            yield GaugeMetricFamily("fivewire_partial_bytes", text, limits.held)
