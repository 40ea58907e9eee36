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
from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker

TOPIC = b"troubles"
STATUS = ("--status", "127.0.0.1:0")
#: Of the small file system, and of messages: a few of them fill what is left on a page.
SIZE, BODY = "64m", 4000
WAITING = 20
END_SESSIONS = "select pg_terminate_backend(pid) from pg_stat_activity where usename = %s"
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
