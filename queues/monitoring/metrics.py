"""Metrics for Prometheus: the counters of an engine, and on request those of each queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from fnmatch import fnmatchcase

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from queues.ends import ends
from queues.engine.api import Broker, Counts
from queues.operations.overview import Overview, QueueState, oldest_ready, take_overview
from queues.operations.route_traffic import read_dead_letter_traffic, read_traffic

ENGINE_COUNTERS = {one.name: one.metadata["text"] for one in fields(Counts)}


def counters(name: str, text: str, label: str, counts: Mapping[str, float]) -> Metric:
    """A counter for each value of a label."""
    return labelled(CounterMetricFamily(name, text, labels=[label]), counts)


def gauges(name: str, text: str, label: str, figures: Mapping[str, float]) -> Metric:
    """A gauge for each value of a label."""
    return labelled(GaugeMetricFamily(name, text, labels=[label]), figures)


def labelled(
    family: CounterMetricFamily | GaugeMetricFamily, figures: Mapping[str, float] | Mapping[tuple[str, str], float]
) -> Metric:
    """A family with a figure for each value of its label, or of its two labels."""
    for values, figure in figures.items():
        family.add_metric([values] if isinstance(values, str) else values, figure)
    return family


def over_quota(counts: Counter[str], *quotas: str) -> Metric:
    """The number of times that each of these quotas of a client was met."""
    met = {quota: counts[quota] for quota in quotas}
    return counters("fivewire_over_quota", "Clients that met one of their quotas.", "of", met)


class EndsCollector(Collector):
    """What ended in this process outside its engine. Every page of metrics of a process has it."""

    def collect(self) -> Iterator[Metric]:
        text = "Messages that ended by operators, Django or Celery, by how."
        yield counters("fivewire_ended", text, "how", ends)


REGISTRY.register(EndsCollector())


def engine_metrics(engine: Broker) -> Iterator[Metric]:
    """The plain integers of a process's engine, as they are now."""
    for name, text in ENGINE_COUNTERS.items():
        yield CounterMetricFamily(f"fivewire_{name}", text, value=getattr(engine.counts, name))
    isolated = engine.health.isolated
    yield counters("fivewire_isolated_failures", "Failures that cost one unit only, by its kind.", "unit", isolated)
    yield gauges("fivewire_trouble", "What does not work now, as /readyz says it.", "what", engine.troubles())
    totals = engine.clients.totals
    connections = {protocol: total.connections for protocol, total in totals.items()}
    yield gauges("fivewire_clients", "Connections of clients, by protocol.", "protocol", connections)
    carried = {(protocol, "in"): total.messages_in for protocol, total in totals.items()}
    carried |= {(protocol, "out"): total.messages_out for protocol, total in totals.items()}
    text = "Messages published by clients (in) and delivered to them (out)."
    yield labelled(CounterMetricFamily("fivewire_client_messages", text, labels=["protocol", "direction"]), carried)
    waiting = engine.waiting_bytes
    yield GaugeMetricFamily("fivewire_unsettled", "Acknowledgements not yet committed.", engine.unsettled)
    yield GaugeMetricFamily("fivewire_pending_bytes", "Publishes not yet committed.", waiting)


def _of_queues(queues: list[QueueState]) -> Iterator[Metric]:
    """The figures of queues, from the tables."""
    ids, states = [queue.id for queue in queues], ("ready", "leased", "delayed", "dead")
    held = {(queue.name, state): getattr(queue.counts, state) for queue in queues for state in states}
    yield labelled(
        GaugeMetricFamily("fivewire_queue_messages", "Messages in the store.", labels=["queue", "state"]), held
    )
    published = {queue.name: queue.counts.published for queue in queues}
    yield counters("fivewire_queue_published", "Messages ever stored.", "queue", published)
    settled = {queue.name: queue.counts.settled for queue in queues}
    yield counters("fivewire_queue_settled", "Messages that left the store.", "queue", settled)
    ages = oldest_ready(ids)
    oldest = {queue.name: ages.get(queue.id, 0.0) for queue in queues}
    yield gauges("fivewire_queue_oldest_seconds", "Age of the first message that is ready.", "queue", oldest)
    nodes = {queue.name: queue.nodes for queue in queues}
    yield gauges("fivewire_queue_nodes", "Nodes with consumers of the queue.", "queue", nodes)
    dead = read_dead_letter_traffic(ids).values()
    moved = {(one.source.removeprefix("queue:"), one.target.removeprefix("queue:")): one.carried for one in dead}
    text = "Dead letters that went to the queue's dead-letter queue."
    yield labelled(CounterMetricFamily("fivewire_queue_dead_letters_moved", text, labels=["queue", "target"]), moved)


def route_metrics(pattern: str) -> bytes:
    """The metrics of the routes of which an end, such as ``topic:prices``, matches a glob, in Prometheus' text format.
    Raises django.db.Error."""
    ends = {(route.source, route.target): route.carried for route in read_traffic().values()}
    carried = {pair: count for pair, count in ends.items() if any(fnmatchcase(end, pattern) for end in pair)}
    family = CounterMetricFamily(
        "fivewire_route_carried", "Messages that the route has carried.", labels=["source", "target"]
    )
    return text_of([labelled(family, carried)])


def queue_metrics(pattern: str) -> bytes:
    """The metrics of the queues whose names match a glob, in Prometheus' text format. Raises django.db.Error.

    System queues are left out unless the pattern begins with ``_``.
    """
    overview: Overview = take_overview()
    queues = [
        queue for queue in overview.queues
        if fnmatchcase(queue.name, pattern) and (pattern.startswith("_") or not queue.name.startswith("_"))
    ]  # fmt: skip
    return text_of(_of_queues(queues))


class _Given(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = [*metrics]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def text_of(metrics: Iterable[Metric]) -> bytes:
    """Metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_Given(metrics))
    return generate_latest(registry)
