"""What an engine has counted, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from queues.engine import Engine

ENGINE_COUNTERS = {
    "published": "Messages stored.",
    "dropped": "Messages that nobody subscribed to, or that a full queue dropped.",
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


def over_quota(counts: Counter[str], *quotas: str) -> Metric:
    """How often each of these quotas of a client was met."""
    over = CounterMetricFamily("fivewire_over_quota", "Clients that met one of their quotas.", labels=["of"])
    for quota in quotas:
        over.add_metric([quota], counts[quota])
    return over


def engine_metrics(engine: Engine) -> Iterator[Metric]:
    """The plain integers of a process's engine, as they are now."""
    for name, text in ENGINE_COUNTERS.items():
        yield CounterMetricFamily(f"fivewire_{name}", text, value=getattr(engine.counts, name))
    isolated = CounterMetricFamily(
        "fivewire_isolated_failures", "Failures that cost one unit only, by its kind.", labels=["unit"]
    )
    for unit, count in engine.health.isolated.items():
        isolated.add_metric([unit], count)
    yield isolated
    trouble = GaugeMetricFamily("fivewire_trouble", "What does not work now, as /readyz says it.", labels=["what"])
    for kind, count in engine.troubles().items():
        trouble.add_metric([kind], count)
    yield trouble
    letters = 0 if engine.mailroom is None else engine.mailroom.waiting_bytes
    waiting = engine.writer.waiting_bytes + letters
    yield GaugeMetricFamily("fivewire_unsettled", "Acknowledgements not yet committed.", engine.settler.unsettled)
    yield GaugeMetricFamily("fivewire_pending_bytes", "Publishes not yet committed.", waiting)
