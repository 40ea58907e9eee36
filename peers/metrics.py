"""What the peerbus connections of a process have counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from peers.office import Office
from queues.metrics import engine_metrics, over_quota


class PeersCollector(Collector):
    """Reads an office's counters when it is asked."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def collect(self) -> Iterator[Metric]:
        """The engine's figures too, once it runs."""
        office = self._office
        yield GaugeMetricFamily("fivewire_peers", "Open peerbus connections.", len(office.sessions))
        ignored = CounterMetricFamily("fivewire_peers_ignored", "Peerbus frames that were dropped.", labels=["reason"])
        for reason, count in office.ignored.items():
            ignored.add_metric([reason], count)
        closed = CounterMetricFamily("fivewire_peers_closed", "Peerbus connections closed.", labels=["reason"])
        for reason, count in office.closed.items():
            closed.add_metric([reason], count)
        failures = CounterMetricFamily(
            "fivewire_peers_failures", "Unforeseen exceptions, each of which cost one peerbus connection.",
            value=office.failures,
        )  # fmt: skip
        yield from (ignored, closed, failures)
        yield over_quota(office.over_quota, "connections")
        if office.engine_now is not None:
            yield from engine_metrics(office.engine_now)
