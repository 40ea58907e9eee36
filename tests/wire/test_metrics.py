"""The figures of a listener process, by the names that dashboards know."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import pytest
from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from peers.metrics import PeersCollector
from peers.service import PeerbusService
from queues.engine import audit
from queues.engine.api import Engine, EngineOptions
from queues.engine.health import KINDS, MANY_RESTARTS
from queues.engine.settle.writer import SETTLING
from queues.monitoring.metrics import ENGINE_COUNTERS
from tests.wire.serving import Recorder, client, is_turned_away, serving
from wire.metrics import WireCollector
from wire.net.limits import Closure
from wire.net.listener import Listener
from wire.server import Server

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def server() -> Server:
    """A process that has not begun to serve."""
    return Server(Engine(EngineOptions(conninfo="")))


def samples(server: Server) -> Samples:
    """A server's metrics: value by name and labels."""
    registry = CollectorRegistry()
    registry.register(WireCollector(server))
    return {
        (sample.name, tuple(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_every_figure_of_the_engine_is_shown_under_its_name(server: Server) -> None:
    for number, name in enumerate(ENGINE_COUNTERS, 101):
        setattr(server.engine.counts, name, number)
    shown = samples(server)
    assert {name: shown[f"fivewire_{name}_total", ()] for name in ENGINE_COUNTERS} == {
        name: number for number, name in enumerate(ENGINE_COUNTERS, 101)
    }


def test_the_names_are_those_of_the_engines_counts(server: Server) -> None:
    known = {field.name for field in dataclasses.fields(server.engine.counts)}
    assert set(ENGINE_COUNTERS) <= known
    assert {"published", "acknowledged", "buried", "rejected"} <= set(ENGINE_COUNTERS)


def test_messages_waiting_for_the_database_are_shown(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server.engine, "settlements", SimpleNamespace(unsettled=7))
    monkeypatch.setattr(server.engine, "writer", SimpleNamespace(waiting_bytes=4096))
    shown = samples(server)
    assert shown["fivewire_unsettled", ()] == 7
    assert shown["fivewire_pending_bytes", ()] == 4096


def test_failures_are_shown_by_kind_also_when_there_are_none(server: Server) -> None:
    name, engine = "fivewire_trouble", server.engine
    assert isinstance(engine, Engine)
    engine.connections.begin_service()
    assert {what: samples(server)[name, (("what", what),)] for what in KINDS} == dict.fromkeys(KINDS, 0)
    engine.health.begin(SETTLING, "the disk is full")
    engine.health.begin(audit.trouble("peerbus"), "it has no head")
    engine.health.begin(audit.trouble("operators"), "it has no head")
    engine.timeline.rewritten = "a failover"
    shown = samples(server)
    troubled = {what: value for what in KINDS if (value := shown[name, (("what", what),)])}
    assert troubled == {"acknowledgements": 1, "chain": 2, "history": 1}
    for _ in range(MANY_RESTARTS):
        engine.health.restarted("it was lost")
    assert samples(server)[name, (("what", "restarts"),)] == 1


def test_the_site_shows_what_does_not_work_too(server: Server) -> None:
    registry = CollectorRegistry()
    service = Mock(PeerbusService, sessions=(), ignored={}, closed={}, over_quota=Counter(), failures=0)
    service.engine_now = server.engine
    registry.register(PeersCollector(service))
    assert 'fivewire_trouble{what="reconnecting"} 1.0' in generate_latest(registry).decode()


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("site_first", [False, True])
def test_a_site_and_a_listener_register_in_one_process(server: Server, site_first: bool, running: bool) -> None:
    registry = CollectorRegistry(auto_describe=True)
    service = Mock(PeerbusService, sessions=(), ignored={}, closed={}, over_quota=Counter(), failures=0)
    service.engine_now = server.engine if running else None
    collectors: list[Collector] = [WireCollector(server), PeersCollector(service)]
    for collector in reversed(collectors) if site_first else collectors:
        registry.register(collector)
    page = generate_latest(registry).decode()
    assert "fivewire_peers 0.0\n" in page
    assert 'fivewire_over_quota_total{of="pending"} 0.0\n' in page


def test_sspq_messages_that_were_not_kept_are_shown_by_reason_also_when_there_is_none(server: Server) -> None:
    name = "fivewire_lost_publishes_total"
    assert samples(server)[name, (("reason", "truncated"),)] == 0
    server.lost_publishes["truncated"] += 2
    server.lost_publishes["unstored"] += 3
    shown = samples(server)
    assert shown[name, (("reason", "truncated"),)] == 2
    assert shown[name, (("reason", "unstored"),)] == 3


async def test_connections_are_shown_by_listener_and_reason(server: Server) -> None:
    async with serving(Recorder, max_connections=2) as listening:
        server.listeners.append(cast(Listener, listening.listener))
        label = ("listener", f"test {listening.listener.address}")
        async with client(listening), client(listening):
            for _ in range(2):
                await listening.sessions.get()
            assert await is_turned_away(listening)
            shown = samples(server)
            assert shown["fivewire_connections", (label,)] == 2
            assert shown["fivewire_connections_accepted_total", (label,)] == 2
            refused = "fivewire_connections_refused_total"
            assert shown[refused, (label, ("reason", "max_connections"))] == 1
            assert shown[refused, (label, ("reason", "not_allowed"))] == 0
        while listening.listener.stats.closed[Closure.PEER] < 2:
            listening.listener.news.clear()
            await listening.listener.news.wait()
        shown = samples(server)
        assert shown["fivewire_connections", (label,)] == 0
        assert shown["fivewire_connections_closed_total", (label, ("reason", "peer"))] == 2


@pytest.fixture
def registered(server: Server) -> Iterator[Server]:
    collector = WireCollector(server)
    REGISTRY.register(collector)
    yield server
    REGISTRY.unregister(collector)


def test_a_registered_server_is_on_the_page_of_its_process_until_it_is_taken_out(server: Server) -> None:
    name = b"fivewire_published_total"
    assert name not in generate_latest()
    collector = WireCollector(server)
    REGISTRY.register(collector)
    server.engine.counts.published = 12345
    try:
        assert name + b" 12345.0\n" in generate_latest()
    finally:
        REGISTRY.unregister(collector)
    assert name not in generate_latest()


def test_a_process_shows_one_server_only(registered: Server) -> None:
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        REGISTRY.register(WireCollector(registered))
