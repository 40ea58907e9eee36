"""Metrics for Prometheus: the counters of an engine, and on request those of each queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queues.engine import Engine
from queues.operations.overview import Overview, QueueState, oldest_ready, take_overview
from queues.operations.route_traffic import RouteTraffic, read_dead_letter_traffic, read_traffic

ENGINE_COUNTERS = {
    "published": "Messages stored.",
    "dropped": "Messages without a subscription, or dropped by a full queue.",
    "rejected": "Messages refused by full queues or by PostgreSQL.",
    "claimed": "Messages taken from the store into memory.",
    "acknowledged": "Messages settled.",
    "returned": "Deliveries that went back to their queues.",
    "buried": "Messages that became dead letters.",
    "expired": "Messages that outlived their time.",
    "transient_dropped": "QoS 0 messages dropped.",
    "reconnects": "Times the database was lost.",
    "rewritten": "Times the database came back with another past, as after a failover or when a backup was restored.",
    "dead_nodes": "Dead nodes found.",
    "silent_nodes": "Nodes whose process stood still for so long that their connection was ended.",
    "batches": "Commits of publishes.",
    "stray_acks": "Peerbus acknowledgements of unknown keys that have no row in the audit chain.",
    "notifications_ignored": "Notifications that were malformed, of no known type, or instructions.",
    "notifications_failed": "Notifications and instructions that could not be obeyed.",
}


def counters(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    """A counter for each value of a label."""
    return _labelled(CounterMetricFamily(name, text, labels=[label]), counts)


def gauges(name: str, text: str, label: str, figures: Mapping[str, float]) -> Metric:
    """A gauge for each value of a label."""
    return _labelled(GaugeMetricFamily(name, text, labels=[label]), figures)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, figures: Mapping[str, float]) -> Metric:
    for value, figure in figures.items():
        family.add_metric([value], figure)
    return family


def over_quota(counts: Counter[str], *quotas: str) -> Metric:
    """The number of times that each of these quotas of a client was met."""
    met = {quota: counts[quota] for quota in quotas}
    return counters("fivewire_over_quota", "Clients that met one of their quotas.", "of", met)


def engine_metrics(engine: Engine) -> Iterator[Metric]:
    """The plain integers of a process's engine, as they are now."""
    for name, text in ENGINE_COUNTERS.items():
        yield CounterMetricFamily(f"fivewire_{name}", text, value=getattr(engine.counts, name))
    isolated = engine.health.isolated
    yield counters("fivewire_isolated_failures", "Failures that cost one unit only, by its kind.", "unit", isolated)
    yield gauges("fivewire_trouble", "What does not work now, as /readyz says it.", "what", engine.troubles())
    clients = GaugeMetricFamily("fivewire_clients", "Connections of clients, by protocol.", labels=["protocol"])
    carried = CounterMetricFamily(
        "fivewire_client_messages", "Messages published by clients (in) and delivered to them (out).",
        labels=["protocol", "direction"],
    )  # fmt: skip
    for protocol, total in engine.clients.totals.items():
        clients.add_metric([protocol], total.connections)
        carried.add_metric([protocol, "in"], total.messages_in)
        carried.add_metric([protocol, "out"], total.messages_out)
    yield from (clients, carried)
    waiting = engine.waiting_bytes
    yield GaugeMetricFamily("fivewire_unsettled", "Acknowledgements not yet committed.", engine.settlements.unsettled)
    yield GaugeMetricFamily("fivewire_pending_bytes", "Publishes not yet committed.", waiting)


class _Queues(Collector):
    """The figures of queues, from the tables."""

    def __init__(self, queues: list[QueueState], ages: dict[int, float], dead: Iterable[RouteTraffic]) -> None:
        self._queues = queues
        self._ages = ages
        self._dead = dead

    def collect(self) -> Iterator[Metric]:
        queues = self._queues
        held = GaugeMetricFamily("fivewire_queue_messages", "Messages in the store.", labels=["queue", "state"])
        for queue in queues:
            for state in ("ready", "leased", "delayed", "dead"):
                held.add_metric([queue.name, state], getattr(queue.counts, state))
        yield held
        published = {queue.name: queue.counts.published for queue in queues}
        yield counters("fivewire_queue_published", "Messages ever stored.", "queue", published)
        settled = {queue.name: queue.counts.settled for queue in queues}
        yield counters("fivewire_queue_settled", "Messages that left the store.", "queue", settled)
        oldest = {queue.name: self._ages.get(queue.id, 0.0) for queue in queues}
        yield gauges("fivewire_queue_oldest_seconds", "Age of the first message that is ready.", "queue", oldest)
        nodes = {queue.name: queue.nodes for queue in queues}
        yield gauges("fivewire_queue_nodes", "Nodes with consumers of the queue.", "queue", nodes)
        moved = CounterMetricFamily(
            "fivewire_queue_dead_letters_moved", "Dead letters that went to the queue's dead-letter queue.",
            labels=["queue", "target"],
        )  # fmt: skip
        for traffic in self._dead:
            ends = (traffic.source, traffic.target)
            moved.add_metric([end.removeprefix("queue:") for end in ends], traffic.carried)
        yield moved


class _Routes(Collector):
    """The figures of routes, from the tables."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def collect(self) -> Iterator[Metric]:
        carried = CounterMetricFamily(
            "fivewire_route_carried", "Messages that the route has carried.", labels=["source", "target"]
        )
        for route in read_traffic().values():
            ends = [route.source, route.target]
            if any(fnmatchcase(end, self._pattern) for end in ends):
                carried.add_metric(ends, route.carried)
        yield carried


def route_metrics(pattern: str) -> bytes:
    """The metrics of the routes of which an end, such as ``topic:prices``, matches a glob, in Prometheus' text format.
    Raises django.db.Error."""
    return text_of(_Routes(pattern))


def queue_metrics(pattern: str) -> bytes:
    """The metrics of the queues whose names match a glob, in Prometheus' text format. Raises django.db.Error.

    System queues are left out unless the pattern begins with ``_``.
    """
    overview: Overview = take_overview()
    queues = [
        queue for queue in overview.queues
        if fnmatchcase(queue.name, pattern) and (pattern.startswith("_") or not queue.name.startswith("_"))
    ]  # fmt: skip
    ids = [queue.id for queue in queues]
    return text_of(_Queues(queues, oldest_ready(ids), read_dead_letter_traffic(ids).values()))


def text_of(collector: Collector) -> bytes:
    """Its metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry)
