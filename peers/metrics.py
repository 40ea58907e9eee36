"""What the peerbus connections of a process have counted, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from peers.service import Office
from queues.metrics import engine_metrics, over_quota


class PeersCollector(Collector):
    """Reads an office's counters when it is asked."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def describe(self) -> Iterator[Metric]:
        """The office's own names: a listener in the same process may have registered the others."""
        return self._own()

    def collect(self) -> Iterator[Metric]:
        """The engine's figures and the quotas too, once the engine runs."""
        yield from self._own()
        if self._office.engine_now is not None:
            yield over_quota(self._office.over_quota, "connections")
            yield from engine_metrics(self._office.engine_now)

    def _own(self) -> Iterator[Metric]:
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
