"""The systems of a benchmark: each has a name of its own, since its figures stand under it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from brokersite.rigs.bench.drivers import jetstream
from brokersite.rigs.bench.measures import MeasurementPlan
from brokersite.rigs.bench.systems import Deployment, named_apart, open_system

PLAN = MeasurementPlan(
    seconds=1, size=100, producers=1, consumers=1, window=1, prefetch=1, rate=1, subscribers=1, connections=1
)  # fmt: skip


def test_systems_elsewhere_are_named_by_their_addresses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jetstream, "NatsConnection", lambda login: SimpleNamespace(server={"version": "2.12"}))
    words = ("nats=nats://a", "nats=nats://b:1", "rabbitmq=amqp://a", "rabbitmq=amqp://u:p@a/other")
    opened = [open_system(ExitStack(), one, PLAN, Deployment(), tmp_path).name for one in words]
    assert opened == [
        "NATS 2.12 JetStream at a:4222", "NATS 2.12 JetStream at b:1", "RabbitMQ quorum at a:5672",
        "RabbitMQ quorum at a:5672/other",
    ]  # fmt: skip


def test_one_that_is_named_twice_is_numbered() -> None:
    assert named_apart(["blipmq", "sspq", "blipmq", "blipmq"]) == ["blipmq", "sspq", "blipmq (2)", "blipmq (3)"]
