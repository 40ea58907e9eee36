"""Counters of the peerbus connections of a process, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from peers.service import PeerbusService
from queues.monitoring.metrics import counters, engine_metrics, over_quota


class PeersCollector(Collector):
    """Reads the service's counters at each scrape."""

    def __init__(self, service: PeerbusService) -> None:
        self._service = service

    def describe(self) -> Iterator[Metric]:
        """The service's own names: a listener in the same process may have registered the others."""
        return self._own()

    def collect(self) -> Iterator[Metric]:
        """The engine's figures and the quotas too, once the engine runs."""
        yield from self._own()
        if self._service.engine_now is not None:
            yield over_quota(self._service.over_quota, "connections")
            yield from engine_metrics(self._service.engine_now)
            dropped = self._service.engine_now.mailboxes.dropped
            yield counters("fivewire_letters_dropped", "Envelopes that were not stored.", "reason", dropped)

    def _own(self) -> Iterator[Metric]:
        service = self._service
        yield GaugeMetricFamily("fivewire_peers", "Open peerbus connections.", len(service.sessions))
        yield counters("fivewire_peers_ignored", "Peerbus frames that were dropped.", "reason", service.ignored)
        yield counters("fivewire_peers_closed", "Peerbus connections closed.", "reason", service.closed)
        yield CounterMetricFamily(
            "fivewire_peers_failures", "Unforeseen exceptions, each of which cost one peerbus connection.",
            value=service.failures,
        )  # fmt: skip
