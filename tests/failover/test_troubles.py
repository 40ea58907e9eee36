"""A database that runs but is impaired: the broker waits, says so, and goes on by itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from brokersite.rigs.torture.database import KEY
from tests.failover.conftest import MakeServer
from tests.failover.load import Load
from tests.failover.servers import DATABASE, ROLE, Server, is_ready, page, url, wait_ready, wait_unready
from tests.hydra.network.namespaces import Namespaces, NotPossible
from tests.tools import lack
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Blip, Broker, Sspq, put
from wire.blipmq import codec as blipmq
from wire.overhop.client import Client as Overhop
from wire.overhop.errors import Unavailable

TOPIC = b"troubles"
STATUS = ("--status", "127.0.0.1:0")
#: Of the small file system, and of messages: a few of them fill what is left on a page.
SIZE, BODY = "64m", 4000
WAITING = 20
END_SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
#: Threads in which requests to change something are carried out.
MAX_THREADS = 4
#: Limits that would end the engine's statements and sessions, and Django's, if they held for them.
LIMITS = {
    "statement_timeout": "300ms", "lock_timeout": "10ms", "idle_session_timeout": "300ms",
    "idle_in_transaction_session_timeout": "300ms",
}  # fmt: skip


@pytest.fixture
def namespaces(pytestconfig: pytest.Config) -> Iterator[Namespaces]:
    """One namespace, where the machine allows it."""
    with contextlib.ExitStack() as stack:
        try:
            spaces = Namespaces(stack, 1)
        except NotPossible as error:
            lack(pytestconfig, "network namespaces", str(error))
        yield spaces


@contextlib.contextmanager
def small_disk(config: pytest.Config, server: Server) -> Iterator[Path]:
    """A small file system with the broker's tables on it."""
    place, account = server.home.root / "small", server.home.account
    place.mkdir()
    options = f"size={SIZE},mode=700" + ("" if account is None else f",uid={account.uid},gid={account.gid}")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True)
    if done.returncode:
        lack(config, "mounts", done.stderr.strip())
    try:
        with server.connect("postgres") as connection:
            connection.execute(f"create tablespace small location '{place}'".encode())
            connection.execute(f"alter database {DATABASE} set tablespace small".encode())
        yield place
        server.stop()
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path) -> Path:
    """Leave no room on a file system; the file that takes it."""
    path = place / "filling"
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while True:
            stream.write(bytes(1 << 12))
    return path


def test_a_full_disk_holds_publishes_and_all_goes_on_when_there_is_room(
    make_server: MakeServer, pytestconfig: pytest.Config
) -> None:
    server = make_server()
    server.start()
    with (
        small_disk(pytestconfig, server) as place,
        Broker(url(server), *STATUS) as broker,
        Load(broker) as load,
        Blip(broker.blipmq, KEY) as client,
        Blip(broker.blipmq, KEY) as producer,
        ThreadPoolExecutor(1) as executor,
    ):
        load.wait_for_more()
        subscription = client.subscribe(TOPIC)
        producer.publish(TOPIC, b"first")
        assert client.consume(subscription, 1) == [b"first"]
        waiting = [b"waiting %d" % n for n in range(WAITING)]
        producer.publish(TOPIC, *waiting)
        with server.connect(DATABASE) as connection:  # as autovacuum may at any time
            connection.execute(b"vacuum queues_queuetally_kept")
        filling = fill(place)
        held = [os.urandom(BODY) for _ in range(100)]
        confirmed = executor.submit(producer.publish, TOPIC, *held)
        wait_unready(broker, "the database's disk is full")
        assert not confirmed.done(), "a publish was confirmed that could not be stored"
        assert client.consume(subscription, WAITING) == waiting, "what was there can be consumed"
        filling.unlink()
        confirmed.result()
        wait_ready(broker)
        assert client.consume(subscription, len(held)) == held
        load.wait_for_more()
        load.check_nothing_is_lost()


def take_all(server: Server, others: contextlib.ExitStack) -> None:
    """Take every connection that the server has to spare."""
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            others.enter_context(psycopg.connect(**server.parameters))


@pytest.mark.long
def test_a_broker_works_on_while_others_have_all_connections_and_one_that_starts_waits_for_one(
    make_server: MakeServer,
) -> None:
    server = make_server()
    server.start()
    with Broker(url(server), *STATUS) as broker, Load(broker) as load, contextlib.ExitStack() as brokers:
        load.wait_for_more(50)
        with contextlib.ExitStack() as others:
            take_all(server, others)
            server.rows(f"alter role {ROLE} connection limit 1")  # nor is one that the broker lets go of to be had
            late = Broker(url(server))
            brokers.callback(late.stop)
            wait_until(lambda: "the database has no connection to spare" in late.log, "a word of why it waits")
            wait_until(lambda: is_ready(broker) and "the database cannot be reached" in broker.log, lambda: broker.log)
            load.wait_for_more(50)
            assert is_ready(broker)
            assert late.process.poll() is None
        server.rows(f"alter role {ROLE} connection limit -1")
        late.wait_ready()
        load.check_nothing_is_lost()
        assert "fivewire_reconnects_total 0.0" in page(broker, "/metrics")[1]


def test_limits_of_the_role_neither_end_a_session_nor_lose_what_was_confirmed(make_server: MakeServer) -> None:
    server = make_server()
    server.start()
    with Broker(url(server), *STATUS) as broker, Load(broker) as load:
        load.wait_for_more(50)
        for name, value in LIMITS.items():
            server.rows(f"alter role {ROLE} set {name} = '{value}'")
        server.rows(END_SESSIONS, ROLE)
        load.wait_for_more()
        load.check_nothing_is_lost()
        server.wait_for(
            "select bool_and(now() - state_change > interval '1 s') from pg_stat_activity"
            " where application_name in ('fivewire writer', 'fivewire listener')"
        )
        assert is_ready(broker)
        assert "fivewire_reconnects_total 1.0" in page(broker, "/metrics")[1]


def test_a_host_behind_a_black_hole_is_waited_for_and_all_goes_on_when_it_answers(
    make_server: MakeServer, namespaces: Namespaces
) -> None:
    server = make_server()
    server.host, here = namespaces.second_host(), f"{namespaces.rest}.1:0"
    server.start(listen=server.host)
    addresses = ("--blipmq", here, "--status", here)
    inside = namespaces.inside(1)
    with (
        Broker(url(server), *addresses, inside=inside, BROKER_DATABASE_TIMEOUT=5) as broker,
        Blip(broker.blipmq, KEY) as producer,
        Blip(broker.blipmq, KEY) as consumer,
        ThreadPoolExecutor(1) as executor,
    ):
        subscription = consumer.subscribe(TOPIC)
        bodies = [b"%d" % n for n in range(2 * WAITING)]
        producer.publish(TOPIC, *bodies[:WAITING])
        namespaces.swallow(1, server.host)
        confirmed = executor.submit(producer.publish, TOPIC, *bodies[WAITING:])
        # Which connection is found lost first decides the words behind it.
        wait_unready(broker, "is reconnecting")
        assert not confirmed.done()
        namespaces.deliver(1, server.host)
        confirmed.result()
        wait_ready(broker)
        assert consumer.consume(subscription, len(bodies)) == bodies
        assert "the database is away" in broker.log


def test_a_database_that_freezes_under_load_is_silent_until_it_is_left_and_no_task_is_forgotten(
    make_server: MakeServer,
) -> None:
    server = make_server()
    server.start()
    environment = {"BROKER_DATABASE_TIMEOUT": 6, "BROKER_STALL_TIMEOUT": 1}
    with Broker(url(server), *STATUS, **environment) as broker, Load(broker) as load:
        load.wait_for_more(50)
        with server.frozen():
            wait_unready(broker, "is reconnecting")
            said = [line for line in broker.log.splitlines() if "The database:" in line]
            assert len(said) == 1, "its silence begins once, and is not over"
        wait_ready(broker)
        load.wait_for_more(50)
        load.check_nothing_is_lost()
        assert "was never retrieved" not in broker.log


def refused(broker: Broker, frame: bytes) -> bool:
    """Whether a frame of a client that has just logged in is refused."""
    with Blip(broker.blipmq, KEY) as client:
        client.send(frame)
        return client.read().kind == blipmq.NACK


def no_queue(broker: Broker, name: str) -> bool:
    """Whether a queue cannot be made."""
    with Overhop(*broker.overhop, timeout=PATIENCE) as client:
        try:
            client.create_queue(name)
        except Unavailable:
            return True
    return False


def test_a_client_logs_in_and_what_is_stored_is_consumed_while_a_synchronous_standby_is_away(
    make_server: MakeServer,
) -> None:
    server = make_server()
    server.start()
    environment = {"BROKER_PUBLISH_TIMEOUT": 3, "BROKER_STALL_TIMEOUT": 1}
    with Broker(url(server), *STATUS, **environment) as broker, Blip(broker.blipmq, KEY) as first:
        subscription = first.subscribe(TOPIC)
        first.publish(TOPIC, b"stored")
        put(broker.sspq, b"stored")
        server.wait_for("select count(*) = 2 from queues_openmessage where payload = 'stored'")
        server.rows("alter system set synchronous_standby_names = 'nosuch'")
        server.rows("select pg_reload_conf()")
        with ThreadPoolExecutor(MAX_THREADS + 2) as executor:
            waiting = [
                executor.submit(refused, broker, frame)
                for frame in (blipmq.encode_subscribe(7, b"new", 1), blipmq.encode_publish(7, 1, TOPIC, b"held"))
            ]
            waiting += [executor.submit(no_queue, broker, f"new-{n}") for n in range(MAX_THREADS)]
            wait_unready(broker, "a synchronous standby has not confirmed it")
            with Blip(broker.blipmq, KEY) as second:
                assert second.consume(subscription, 1) == [b"stored"]
            with Overhop(*broker.overhop) as jobs:
                jobs.queues()
            with Sspq(broker.sspq) as sspq:
                assert sspq.receive_message().payload == b"stored"
            for each in waiting:
                assert each.result(), "what writes is refused in time"
        server.rows("alter system reset synchronous_standby_names")
        server.rows("select pg_reload_conf()")
        wait_ready(broker)
        first.publish(TOPIC, b"again")
