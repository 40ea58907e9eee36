"""`manage.py bench clients`: every program runs, every message is counted, and nothing stays behind.

Speed is not looked at: there are a few hundred messages.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from brokersite.rigs.bench.errors import BenchError
from brokersite.rigs.bench.systems import Deployment
from brokersite.rigs.clients import bench as clients
from tests.brokersite.rigs.bench.conftest import broker, store
from tests.brokersite.rigs.bench.running import Bench, assert_nothing_left, assert_whole, at, bench
from tests.process import has_ended
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database

__all__ = ["broker", "store"]

SHORT = (
    "--messages", "300", "--window", "100", "--tasks", "7", "--jobs", "30", "--backlog", "400", "--consumers", "3",
    "--rounds", "1", "--json",
)  # fmt: skip
#: What has a figure of processor time that may be nothing in so short a time.
CPU = ("publisher_cpu_us", "consumer_cpu_us", "idle_cpu_percent")


def measured(store: Database, broker: Broker, *words: str) -> dict[str, Any]:
    addresses = ("--blipmq", at(broker.blipmq), "--overhop", at(broker.overhop))
    said: dict[str, Any] = json.loads(bench(store, "clients", *addresses, *words, *SHORT))
    assert all(counts["lost"] == 0 for counts in said["verified"].values()), said
    assert_nothing_left(store)
    return said


def test_programs_with_the_clients_are_measured_and_each_message_is_counted(store: Database, broker: Broker) -> None:
    measures = ("stream", "confirms", "alone", "memory")
    said = measured(store, broker, "--measure", *measures)
    (system,) = said["verified"]
    assert_whole(said["results"], system, measures, absent=CPU)
    assert said["verified"][system]["messages"] == 300


@pytest.mark.long
def test_workers_are_measured_beside_celerys(store: Database, broker: Broker) -> None:
    said = measured(store, broker, "--measure", "workers")
    for system in ("Overhop, AsyncWorker", "Overhop, Worker", "Celery on Fivewire"):
        assert_whole(said["results"], system, ("workers",))
        assert said["verified"][system]["messages"] == 30


@pytest.mark.long
@pytest.mark.timeout(400)  # npm installs and builds
def test_the_clients_of_others_are_measured_in_both_languages(
    store: Database, broker: Broker, pytestconfig: pytest.Config
) -> None:
    for tool in ("RabbitMQ", "NATS", "Node.js"):
        need(pytestconfig, tool)
    measures = ("stream", "confirms", "alone", "memory")
    said = measured(store, broker, "--compare", "rabbitmq", "nats", "--javascript", "--measure", *measures)
    assert len(said["verified"]) == 6
    for name, counts in said["verified"].items():
        assert_whole(said["results"], name, measures, absent=CPU)
        assert counts["messages"] == 300, name


def test_ctrl_c_ends_the_programs_and_leaves_nothing_behind(store: Database, broker: Broker) -> None:
    words = ("--blipmq", at(broker.blipmq), "--measure", "stream", "--messages", "100000000")
    process = Bench(store, "clients", *words)
    wait_until(lambda: store.value("select count(*) from queues_openmessage") > 0, "the first message")
    family = process.family()
    assert family
    os.killpg(process.process.pid, signal.SIGINT)
    status, _, err = process.finish()
    assert status == 1, err
    assert err == "CommandError: Interrupted; what was made for the benchmark is removed.\n"
    wait_until(lambda: all(map(has_ended, family)), "the end of its programs")
    assert_nothing_left(store)


def test_a_system_that_has_no_programs_is_named(store: Database, broker: Broker) -> None:
    said = bench(store, "clients", "--compare", "overhop", status=1)
    assert said == (
        "CommandError: Clients can be compared with those of rabbitmq and nats, not with 'overhop'.\n"
    )


def test_a_client_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(clients, "find_spec", lambda package: None if package == "nats" else object())
    plan = clients.ClientsPlan(**dict.fromkeys(clients.OPTIONS, 1))
    with pytest.raises(BenchError, match="The package nats is not installed: pip install nats-py"):
        clients.open_rows(ExitStack(), ["nats=nats://a"], ("stream",), plan, Deployment(), tmp_path, False)
