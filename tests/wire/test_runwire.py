"""`manage.py runwire` itself: its options, its pages, TLS, limits, several processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from django.core.management import CommandError, call_command

from brokersite.rigs.process import free_ports
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import (
    NO_RECEIVE,
    Blip,
    Broker,
    Database,
    Packet,
    Sspq,
    create_database,
    drop_databases,
    make_url,
    message,
    nack,
    put,
    run_wire,
)
from tests.wire.net.test_tls import Authority
from wire.blipmq import codec as blipmq
from wire.sspq.codec import DEAD_RECEIVE_PACKET, RECEIVE_PACKET, encode_send

#: Seconds of the module's limits on connections: a client that stands still for less must not meet them.
LIMIT = 4.0


def free_addresses(count: int) -> list[str]:
    """Free addresses, which no client is given meanwhile."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(
        store,
        "--status",
        "127.0.0.1:0",
        BROKER_HANDSHAKE_TIMEOUT=LIMIT,
        BROKER_IDLE_TIMEOUT=LIMIT,
        BROKER_MAX_CONNECTIONS_PER_ADDRESS=20,
        BROKER_PENDING_BYTES=1 << 20,
    ) as running:
        yield running


# Options that are wrong.


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--blipmq", "nonsense"), "argument --blipmq: 'nonsense' has no port: write HOST:PORT"),
        (("--sspq", "127.0.0.1:99999"), "argument --sspq: '127.0.0.1:99999': the port must be a number from 0 to"),
        (("--sspq-also", "127.0.0.1:1"), "argument --sspq-also: '127.0.0.1:1' is not HOST:PORT=QUEUE"),
        (("--processes", "many"), "argument --processes: invalid int value: 'many'"),
        (("--overhop", "off", "--blipmq", "off", "--sspq", "off"), "Every listener is off: there is nothing to serve."),
        (("--processes", "0"), "--processes must be 1 or more."),
        (("--processes", "2", "--overhop", "127.0.0.1:0"), "With --processes the listeners need ports of their own"),
        (("--processes", "2", "--sspq", "127.0.0.1:0"), "With --processes the listeners need ports of their own"),
    ],
)
def test_a_wrong_option_is_named(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(CommandError) as caught:
        call_command("runwire", *arguments)
    assert words in str(caught.value)


def test_an_option_that_cannot_be_read_ends_with_status_2_and_one_that_cannot_be_meant_with_1(store: Database) -> None:
    status, log = run_wire(store, "--blipmq", "nonsense")
    assert status == 2
    assert log.endswith("argument --blipmq: 'nonsense' has no port: write HOST:PORT, for example 127.0.0.1:5555\n")
    assert run_wire(store, "--processes", "0") == (1, "CommandError: --processes must be 1 or more.\n")



def test_a_port_that_is_taken_is_named(store: Database) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, log = run_wire(store, "--sspq", address)
    assert status == 1
    assert log == f"CommandError: sspq can't listen on {address}: Address already in use\n"
    wait_until(lambda: store.rows("select 1 from queues_node") == [])


def test_a_database_that_cannot_be_reached_is_told(store: Database) -> None:
    parameters = store.parameters | {"host": "127.0.0.1", "port": str(free_ports(1)[0])}
    status, log = run_wire(make_url(parameters))
    assert status == 1
    assert "CommandError: The database cannot be reached: " in log
    assert "Traceback" not in log


def test_a_database_without_tables_is_told(store: Database) -> None:
    name = f"{store.parameters['dbname']}_empty"
    parameters = create_database(store.parameters, name)
    try:
        status, log = run_wire(make_url(parameters))
    finally:
        drop_databases(store.parameters, name)
    assert status == 1
    assert log.endswith("CommandError: The database has no up-to-date schema; run manage.py migrate\n")


@pytest.mark.parametrize(
    ("name", "value"),
    [("BROKER_MAX_FRAME", "huge"), ("BROKER_DRAIN_TIMEOUT", "-1"), ("BROKER_TLS_CERT", "/no/such/file.pem")],
)
def test_a_wrong_setting_is_refused_with_its_name_and_value(store: Database, name: str, value: str) -> None:
    status, log = run_wire(store, **{name: value})
    assert status == 2
    assert name in log
    assert value in log
    assert "Traceback" not in log


# Status pages.


def get(broker: Broker, path: str) -> tuple[int, str]:
    host, port = broker.addresses["status"]
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def metric(broker: Broker, name: str) -> float:
    """The sum of a metric over its labels."""
    _, page = get(broker, "/metrics")
    lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    assert lines, f"no {name} in:\n{page}"
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def test_health_and_readiness_are_served(broker: Broker) -> None:
    status, body = get(broker, "/healthz")
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    status, body = get(broker, "/readyz")
    assert (status, json.loads(body)) == (200, {"status": "ready", "reasons": []})
    assert get(broker, "/else")[0] == 404


def test_an_unready_broker_says_why(broker: Broker, store: Database) -> None:
    store.execute("delete from django_migrations where app = 'sessions'")
    try:
        wait_until(lambda: get(broker, "/readyz")[0] == 503)  # the answer before is kept for a second
        _, body = get(broker, "/readyz")
    finally:
        store.execute("insert into django_migrations (app, name, applied) values ('sessions', '0001_initial', now())")
    assert json.loads(body)["status"] == "unready"
    assert "sessions.0001_initial" in json.loads(body)["reasons"][0]


def test_a_publish_without_subscribers_is_counted(broker: Broker) -> None:
    before = metric(broker, "fivewire_dropped_total")
    with Blip(broker.blipmq) as client:
        client.publish(b"unheard", b"x", b"y", b"z")
    assert metric(broker, "fivewire_dropped_total") == before + 3


def test_a_send_that_was_cut_off_is_counted(broker: Broker) -> None:
    before = metric(broker, "fivewire_lost_publishes_total")
    with Sspq(broker.sspq) as sender:
        sender.send(encode_send(b"cut off", 3)[:-1])
        sender.hang_up()
    wait_until(lambda: metric(broker, "fivewire_lost_publishes_total") == before + 1)


def test_sends_that_are_refused_are_counted_and_told_by_the_log_once_a_minute(broker: Broker, store: Database) -> None:
    """However soon the node hears of the limit: what is not stored is counted."""
    name, held = "fivewire_lost_publishes_total", "select count(*) from queues_openmessage where queue_id = %s"
    [(queue,)] = store.rows("select id from queues_queue where name = 'sspq'")
    before, sent = metric(broker, name), 0

    def lost() -> int:
        return int(metric(broker, name) - before)

    def is_told() -> bool:
        return lost() + int(store.value(held, queue)) == sent

    store.execute("update queues_queue set max_length = 1 where id = %s", queue)
    try:
        while lost() < 4:
            put(broker.sspq, b"x")
            sent += 1
            wait_until(is_told, "the end of all")
    finally:
        store.execute("update queues_queue set max_length = null where id = %s", queue)
        with Sspq(broker.sspq) as reader:
            for _ in range(store.value(held, queue)):
                assert reader.receive().payload == b"x"
                reader.confirm()
            reader.hang_up()
    assert broker.log.count("(unstored): a message was not stored: ") == 1


def test_a_publish_without_the_right_to_it_is_counted(broker: Broker, store: Database) -> None:
    before = metric(broker, "fivewire_forbidden_total")
    store.add_key("orders alone", publish=("orders",))
    with Blip(broker.blipmq, "orders alone") as client:
        for qos in (0, 1):
            [answer] = client.ask(blipmq.encode_publish(4, qos, b"invoices", b"x"))
            assert answer == nack(4, 401, "forbidden")
    assert metric(broker, "fivewire_forbidden_total") == before + 2


def test_connections_are_counted(broker: Broker) -> None:
    before = metric(broker, "fivewire_connections_accepted_total")
    with Blip(broker.blipmq) as client:
        assert metric(broker, "fivewire_connections") >= 1
        assert client.ask() == []
    assert metric(broker, "fivewire_connections_accepted_total") == before + 1


# Limits on connections.


def test_a_client_that_does_not_finish_the_handshake_is_disconnected(broker: Broker) -> None:
    with Blip(broker.blipmq, key="") as silent, Blip(broker.blipmq, key="") as half, Sspq(broker.sspq) as mute:
        half.send(blipmq.encode_hello(1))
        assert half.read().cid == 1
        assert half.rest() == b""
        assert silent.rest() == b""
        assert mute.rest() == b""


def test_an_idle_connection_is_closed_but_not_one_that_waits_for_a_message(broker: Broker) -> None:
    with Sspq(broker.sspq) as waiting:
        waiting.send(RECEIVE_PACKET)
        with Blip(broker.blipmq) as idle:
            assert idle.rest() == b""
        assert waiting.is_silent(2)  # and has been for longer than the other one: every listener looks each second
        put(broker.sspq, b"x")
        assert waiting.read() == message(b"x", 3)
        waiting.confirm()
        waiting.hang_up()


def test_one_address_may_have_only_so_many_connections(broker: Broker) -> None:
    wait_until(lambda: metric(broker, "fivewire_connections") == 0)
    with contextlib.ExitStack() as connections:
        crowd = [connections.enter_context(Sspq(broker.sspq)) for _ in range(20)]
        for connection in crowd:
            connection.send(RECEIVE_PACKET)
        wait_until(lambda: metric(broker, "fivewire_connections") == 20)
        with Sspq(broker.sspq) as one_more:
            assert one_more.rest() == b""
        assert crowd[0].is_silent(0.05)
        for connection in crowd:
            connection.hang_up()


def test_protocols_without_keys_are_open_to_allowed_networks_only(store: Database) -> None:
    with Broker(store, BROKER_ALLOW="192.0.2.0/24") as guarded:
        with Sspq(guarded.sspq) as stranger:
            assert stranger.rest() == b""
        with Blip(guarded.blipmq) as client:
            assert client.ask() == []


def test_while_commits_wait_a_producer_is_held_back_and_then_goes_on(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq) as producer, Blip(broker.blipmq) as consumer:
        subscription = consumer.subscribe(b"pressure")
        publish = blipmq.encode_publish(5, 1, b"pressure", bytes(50_000))
        sent = 0
        with store.unwritable_messages():
            producer.socket.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                while sent < 2000:  # 100 MB, far more than the sockets' buffers hold
                    producer.send(publish)
                    sent += 1
            producer.socket.settimeout(PATIENCE)
            assert sent < 2000
        # The last one may have been cut off by the time limit.
        producer.end_of_input()
        producer.rest()
        wait_until(lambda: len(store.payloads(store.queue_of(subscription))) == sent)


# SSPQ's queues.


def test_dead_letters_that_are_switched_off_are_declined_and_the_queue_is_named(store: Database) -> None:
    arguments = ("--sspq-queue", "orders", "--sspq-no-dead-letters", "--blipmq", "off")
    with Broker(store, *arguments) as running, Sspq(running.sspq) as client:
        assert "blipmq" not in running.addresses
        client.send(encode_send(b"x", 0), DEAD_RECEIVE_PACKET)
        assert client.read() == NO_RECEIVE
        assert client.receive() == message(b"x", 0)
        assert store.payloads(store.queue("orders")) == [b"x"]
        client.confirm()
        client.hang_up()


# TLS.


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_with_certificates_both_protocols_speak_tls_only(store: Database, authority: Authority) -> None:
    cert, key = authority.issue("server")
    trusting = ssl.create_default_context(cafile=str(authority.file))

    def wrap(raw: socket.socket) -> socket.socket:
        return trusting.wrap_socket(raw, server_hostname="localhost")

    with Broker(store, BROKER_TLS_CERT=cert, BROKER_TLS_KEY=key) as running:
        with Blip(running.blipmq, wrap=wrap) as client:
            subscription = client.subscribe(b"tls")
            body = b"secret" * 200_000
            client.publish(b"tls", body)
            assert client.next(subscription).body == body
        with Sspq(running.sspq, wrap) as worker:
            worker.send(encode_send(b"x", 3), RECEIVE_PACKET)
            assert worker.read() == message(b"x", 3)
            worker.confirm()
            worker.send(encode_send(b"kept", 3), RECEIVE_PACKET)
            assert worker.read() == message(b"kept", 3)
        with Blip(running.blipmq, key="") as plain:
            plain.send(blipmq.encode_hello(1))
            assert blipmq.encode_ack(1, 0) not in plain.rest()
        with Sspq(running.sspq, wrap) as worker:
            assert worker.receive() == message(b"kept", 2)
            worker.confirm()


def test_with_a_client_authority_only_its_certificates_are_let_in(store: Database, authority: Authority) -> None:
    cert, key = authority.issue("server")
    settings = {"BROKER_TLS_CERT": cert, "BROKER_TLS_KEY": key, "BROKER_TLS_CLIENT_CA": authority.file}
    anonymous = ssl.create_default_context(cafile=str(authority.file))
    known = ssl.create_default_context(cafile=str(authority.file))
    known.load_cert_chain(*authority.issue("client"))
    with Broker(store, **settings) as running:
        with Sspq(running.sspq, lambda raw: known.wrap_socket(raw, server_hostname="localhost")) as worker:
            worker.send(encode_send(b"x", 3), RECEIVE_PACKET)
            assert worker.read() == message(b"x", 3)
            worker.confirm()
        with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
            ask_over_tls(running, anonymous)


@pytest.mark.parametrize("processes", [1, 2])
def test_sighup_shows_a_renewed_certificate_and_drops_no_connection(
    store: Database, authority: Authority, processes: int
) -> None:
    cert, key = authority.issue("server")
    trusting = ssl.create_default_context(cafile=str(authority.file))
    shown: list[int] = []

    def wrap(raw: socket.socket) -> socket.socket:
        secured = trusting.wrap_socket(raw, server_hostname="localhost")
        shown.append(serial_number(secured))
        return secured

    [address] = free_addresses(1)
    arguments = ("--overhop", "off", "--sspq", "off", "--blipmq", address, "--processes", str(processes))
    with Broker(store, *arguments, BROKER_TLS_CERT=cert, BROKER_TLS_KEY=key) as running:
        host, port = address.split(":")
        place = host, int(port)
        with Blip(place, wrap=wrap) as before:
            subscription = before.subscribe(b"renewed")
            authority.issue("server")
            running.send_signal(signal.SIGHUP)
            wait_until(lambda: running.log.count("the certificates were read again") == processes, lambda: running.log)
            for _ in range(4):  # of several processes any may take it
                with Blip(place, wrap=wrap) as after:
                    after.publish(b"renewed", b"new")
            assert len(set(shown[1:])) == 1
            assert shown[0] != shown[1]
            assert before.consume(subscription, 4) == [b"new"] * 4
            cert.write_text("no certificate")
            running.send_signal(signal.SIGHUP)
            wait_until(lambda: running.log.count("the certificates stay as they were: ") == processes)
            with Blip(place, wrap=wrap) as after:
                assert after.ask() == []
            assert shown[-1] == shown[1]
            assert before.ask() == []
        assert running.stop() == 0


def serial_number(secured: ssl.SSLSocket) -> int:
    """The number of the certificate that the other side has shown."""
    certificate = secured.getpeercert()
    assert certificate is not None
    return int(str(certificate["serialNumber"]), 16)


def test_sighup_without_certificates_ends_nothing(store: Database) -> None:
    with Broker(store) as running, Blip(running.blipmq) as client:
        running.send_signal(signal.SIGHUP)
        wait_until(lambda: "there are no certificates to read again" in running.log)
        assert client.ask() == []


def ask_over_tls(broker: Broker, context: ssl.SSLContext) -> Packet:
    """RECEIVE with a certificate, or none."""
    with Sspq(broker.sspq, lambda raw: context.wrap_socket(raw, server_hostname="localhost")) as worker:
        return worker.receive()


# Several processes.


def nodes_of(store: Database, processes: list[psutil.Process]) -> int:
    """The number of nodes among these processes."""
    return int(
        store.value("select count(*) from queues_node where pid = any(%s)", [process.pid for process in processes])
    )


def test_several_processes_share_the_ports_are_started_again_and_stopped_together(
    store: Database,
) -> None:
    blip, sspq = free_addresses(2)
    arguments = ("--processes", "2", "--overhop", "off", "--blipmq", blip, "--sspq", sspq, "--status", "127.0.0.1:0")
    with Broker(store, *arguments) as running, contextlib.ExitStack() as connections:
        assert running.lines.count("ready") == 1
        assert f"[0] blipmq {blip}" in running.lines
        assert f"[1] blipmq {blip}" in running.lines
        children = psutil.Process(running.process.pid).children()
        assert len(children) == 2
        assert nodes_of(store, children) == 2
        host, port = blip.split(":")
        clients = [connections.enter_context(Blip((host, int(port)))) for _ in range(8)]
        subscription = clients[0].subscribe(b"several")
        for n, client in enumerate(clients):
            client.publish(b"several", b"%d" % n)
        assert sorted(clients[1].consume(subscription, 8)) == [b"%d" % n for n in range(8)]
        store.wait_for_states(store.queue_of(subscription))  # an acknowledgement is not answered: seen in the store
        children[0].send_signal(signal.SIGKILL)

        def two_again() -> bool:
            now = psutil.Process(running.process.pid).children()
            return nodes_of(store, now) == 2 and nodes_of(store, children) == 1

        wait_until(two_again)
        wait_until(lambda: any("ended with status -9" in line for line in running.lines))
        with Blip((host, int(port))) as client:
            client.publish(b"several", b"after")
            assert client.consume(subscription, 1) == [b"after"]
        children = psutil.Process(running.process.pid).children()
        assert running.stop() == 0
        assert psutil.wait_procs(children, PATIENCE)[1] == []


def test_the_children_end_when_their_parent_is_killed(store: Database) -> None:
    (blip,) = free_addresses(1)
    with Broker(store, "--processes", "2", "--overhop", "off", "--blipmq", blip, "--sspq", "off") as running:
        children = psutil.Process(running.process.pid).children()
        running.process.kill()
        assert psutil.wait_procs(children, PATIENCE)[1] == []
    assert store.rows("select 1 from queues_openmessage where state = 1") == []
