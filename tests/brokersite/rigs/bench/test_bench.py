"""`manage.py bench` against running brokers: every figure is there, every message counted, and nothing stays behind.

Speed is not looked at: the measurements last a tenth of a second.
"""

from __future__ import annotations

import json
import os
import signal

import pytest

from brokersite.rigs.bench.report import COLUMNS
from tests.brokersite.rigs.bench.running import Bench, assert_nothing_left, assert_whole, at, bench
from tests.peers.running import WebBroker
from tests.process import has_ended
from tests.tools import need
from tests.waiting import wait_until
from tests.wire.broker import Broker, Database, Sspq, put

SHORT = ("--seconds", "0.1", "--rounds", "1", "--rate", "500", "--connections", "3", "--subscribers", "2")
NO_ERRORS = {"lost": 0, "duplicates": 0, "foreign": 0, "unordered": 0}


def test_each_protocol_over_tcp_is_measured_and_each_message_is_counted(store: Database, broker: Broker) -> None:
    overhop, sspq = f"overhop={at(broker.overhop)}", f"sspq={at(broker.sspq)}"
    said = json.loads(
        bench(store, "blipmq", "--address", at(broker.blipmq), "--compare", overhop, sspq, *SHORT, "--json")
    )
    results, verified = said["results"], said["verified"]
    overhop, sspq = overhop.replace("=", " at "), sspq.replace("=", " at ")
    assert_whole(results, "blipmq", ("latency", "throughput", "backlog", "fanout", "connections"))
    assert_whole(results, overhop, ("latency", "throughput", "backlog", "connections"))
    unconfirmed = [name for name in COLUMNS["latency"] if name.startswith("confirm")]
    unconfirmed += ["published_per_s", "filled_per_s"]
    assert_whole(results, sspq, ("latency", "throughput", "backlog"), absent=unconfirmed)
    assert "fanout" in results
    assert sspq not in results["fanout"]
    for system in ("blipmq", overhop, sspq):
        counts = verified[system]
        assert counts.pop("messages") > 100, system
        assert counts == NO_ERRORS, system
    ratio = results["throughput"][overhop]["end_to_end_per_s"]["ratio"]["median"]
    assert ratio == pytest.approx(
        results["throughput"]["blipmq"]["end_to_end_per_s"]["median"]
        / results["throughput"][overhop]["end_to_end_per_s"]["median"],
        rel=0.01,
    )
    assert_nothing_left(store)


def test_an_audited_queue_is_measured_beside_another(store: Database, broker: Broker) -> None:
    words = ("blipmq", "--address", at(broker.blipmq), "--compare", "audited", "--measure", "throughput", *SHORT)
    page = bench(store, *words, "--markdown")
    assert page.startswith("| throughput | published/s | end to end/s |")
    assert "| blipmq, audited | " in page
    assert store.value("select count(*) from queues_audit") > 0
    assert_nothing_left(store)


@pytest.mark.long
def test_peerbus_is_measured(store: Database) -> None:
    with WebBroker(store).wait_ready() as web:
        said = json.loads(bench(store, "peerbus", "--address", at(web.address), *SHORT, "--json"))
        assert_whole(said["results"], "peerbus", ("latency", "throughput", "backlog", "connections"))
        counts = said["verified"]["peerbus"]
        assert counts.pop("messages") > 100
        assert counts == NO_ERRORS
        assert_nothing_left(store)


@pytest.mark.long
@pytest.mark.timeout(300)  # four workers, each with its start and its end
def test_celery_is_measured(store: Database) -> None:
    said = json.loads(bench(store, "celery", "--tasks", "20", "--rounds", "1", "--json", "--worker", "-c 1"))
    for system in ("Fivewire, confirms", "Fivewire, no confirms"):
        assert_whole(said["results"], system, ("celery",))
        assert said["verified"][system] == {"messages": 40} | NO_ERRORS
    assert_nothing_left(store)


@pytest.mark.long
@pytest.mark.parametrize(("system", "tool"), [("rabbitmq", "RabbitMQ"), ("nats", "NATS")])
def test_another_broker_is_measured_beside_it(
    store: Database, broker: Broker, pytestconfig: pytest.Config, system: str, tool: str
) -> None:
    need(pytestconfig, tool)
    words = ("blipmq", "--address", at(broker.blipmq), "--compare", system, *SHORT, "--json")
    said = json.loads(bench(store, *words))
    (other,) = said["verified"].keys() - {"blipmq"}
    assert_whole(said["results"], other, ("throughput", "fanout"), absent=["postgresql_cpu_us"])
    assert_whole(said["results"], other, ("latency", "backlog", "connections"))
    assert said["verified"][other]["lost"] == 0
    assert_nothing_left(store)


def test_ctrl_c_leaves_nothing_behind(store: Database, broker: Broker) -> None:
    process = Bench(store, "blipmq", "--address", at(broker.blipmq), "--seconds", "60", "--measure", "throughput")
    wait_until(lambda: store.value("select count(*) from queues_openmessage") > 0, "the first message")
    family = process.family()
    assert family
    os.killpg(process.process.pid, signal.SIGINT)
    status, _, err = process.finish()
    assert status == 1, err
    assert err == "CommandError: Interrupted; what was made for the benchmark is removed.\n"
    wait_until(lambda: all(map(has_ended, family)), "the end of its load processes")
    assert_nothing_left(store)


def test_errors_are_said_in_words(store: Database, broker: Broker) -> None:
    said = bench(store, "blipmq", "--address", "127.0.0.1:9", *SHORT, status=1)
    assert said.startswith("CommandError: Nothing listens on 127.0.0.1:9. Start the broker")
    said = bench(store, "blipmq", "--address", at(broker.blipmq), "--key", "wrong", *SHORT, status=1)
    assert said == f"CommandError: BlipMQ at {at(broker.blipmq)} answers 401: invalid API key\n"
    said = bench(store, "overhop", "--compare", "kafka", status=1)
    assert said.startswith("CommandError: 'kafka' is nothing to compare with: blipmq, overhop,")
    assert_nothing_left(store)


def test_a_queue_of_sspq_that_is_in_use_is_left_alone(store: Database, broker: Broker) -> None:
    put(broker.sspq, b"of another")
    queue = store.queue("sspq")
    store.wait_for_states(queue, ready=1)
    said = bench(store, "sspq", "--address", at(broker.sspq), *SHORT, status=1)
    assert said.startswith("CommandError: The queue 'sspq' holds 1 messages, and SSPQ has one queue for all clients")
    with Sspq(broker.sspq) as client:
        assert client.receive_message()[2] == b"of another"
        client.confirm()
    store.wait_for_states(queue)
