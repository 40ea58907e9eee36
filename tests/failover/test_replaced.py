"""A primary that was replaced and runs on, as when Patroni dies and its PostgreSQL lives: `DATABASE_URL` names both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db.utils import OperationalError
from psycopg.conninfo import conninfo_to_dict

from brokersite.databases import database_settings
from brokersite.rigs.torture.database import KEY
from hydra.storage.database import connect
from queues.celery.transport.errors import DatabaseUnavailable
from queues.celery.transport.store_connection import StoreConnection
from queues.database.hosts import cluster_of
from queues.etl.errors import DatabaseAway
from queues.etl.job.database import JobConnection
from queues.postgresql.base import DatabaseWrapper
from tests.failover.conftest import MakeServer
from tests.failover.servers import Server, notes, page, url, wait_ready, wait_unready
from tests.process import Process
from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker

TOPIC = b"replaced"
STATUS = ("--status", "127.0.0.1:0")
STORED = "select count(*) from queues_openmessage where convert_from(payload, 'UTF8') like %s"
STILL_WRITES = "A primary that was replaced still takes writes"


@pytest.fixture
def pair(make_server: MakeServer) -> tuple[Server, Server]:
    """A primary, and a standby that follows it."""
    primary, standby = make_server(), make_server()
    primary.start()
    standby.start_as_standby(primary, "other")
    return primary, standby


def test_a_broker_leaves_a_primary_that_was_replaced_and_never_goes_back_to_it(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    with Broker(url(primary, standby), *STATUS) as broker, Blip(broker.blipmq, KEY) as client:
        client.subscribe(TOPIC)
        client.publish(TOPIC, b"before")
        standby.promote()
        wait_until(lambda: "the primary was replaced" in broker.log, lambda: broker.log)
        wait_ready(broker)
        client.publish(TOPIC, *(b"after %d" % n for n in range(5)))
        assert standby.rows(STORED, "after %") == [(5,)]
        wait_until(lambda: any(STILL_WRITES in note for note in notes(broker)), lambda: str(notes(broker)))
        assert f"127.0.0.1:{primary.port} takes writes although it was replaced" in broker.log
        assert '\nfivewire_trouble{what="replaced"} 1.0\n' in page(broker, "/metrics")[1]
        with Broker(url(primary, standby)) as late, Blip(late.blipmq, KEY) as other:
            other.publish(TOPIC, b"late")
        assert standby.rows(STORED, "late") == [(1,)], "a new process goes to the highest timeline"

        standby.kill()
        wait_unready(broker, "replaced by another one")
        assert primary.rows(STORED, "after %") == [(0,)]
        waiting = Broker(url(primary, standby))
        wait_until(lambda: "was replaced by another one" in waiting.log, "a new process that waits, too")
        standby.start()
        waiting.wait_ready()
        assert waiting.stop() == 0
        wait_ready(broker)
        primary.stop()
        wait_until(lambda: not any(STILL_WRITES in note for note in notes(broker)), "the note's end")


def test_a_publish_that_a_replaced_primary_cannot_replicate_is_confirmed_by_the_new_one(
    make_server: MakeServer,
) -> None:
    primary, standby = make_server(), make_server()
    primary.start(synchronous_standby_names="other")
    standby.start_as_standby(primary, "other")
    primary.wait_for("select exists (select from pg_stat_replication where sync_state = 'sync')")
    with (
        Broker(url(primary, standby), *STATUS) as broker,
        Blip(broker.blipmq, KEY) as client,
        ThreadPoolExecutor(1) as executor,
    ):
        client.subscribe(TOPIC)
        client.publish(TOPIC, b"before")
        standby.promote()
        executor.submit(client.publish, TOPIC, b"after").result()
        assert standby.rows(STORED, "after") == [(1,)]


@contextmanager
def django_connection(address: str) -> Iterator[DatabaseWrapper]:
    given = {**settings.DATABASES["default"], **database_settings(address)}
    connection = DatabaseWrapper(given, "replaced")
    try:
        yield connection
    finally:
        connection.close()


def test_every_part_that_holds_a_connection_leaves_a_primary_that_was_replaced(
    pair: tuple[Server, Server], django_db_blocker: Any
) -> None:
    primary, standby = pair
    address = url(primary, standby)
    cluster = cluster_of(address)
    assert cluster is not None
    given = {name: str(value) for name, value in conninfo_to_dict(address).items() if value is not None}
    with (
        django_db_blocker.unblock(),
        asyncio.Runner() as loop,
        django_connection(address) as site,
        django_connection(address) as writer,
    ):
        celery, job, keeper = StoreConnection(address, 5), JobConnection(given), loop.run(connect(address, "test"))
        try:
            for connection in (site, writer):
                connection.ensure_connection()
                assert connection.connection.info.port == primary.port
            standby.promote()
            with transaction_of(writer):
                cluster.look()
                with pytest.raises(OperationalError, match="replaced"):
                    writer.cursor()
            with site.cursor() as cursor:
                cursor.execute("show port")
                assert cursor.fetchone() == (str(standby.port),)
            assert not celery.usable
            with pytest.raises(DatabaseUnavailable, match="replaced"):
                celery.query("migrated")
            with pytest.raises(DatabaseAway, match="replaced"):
                job.rows("select 1")
            with pytest.raises(psycopg.OperationalError, match="replaced"):
                keeper.check_primary()
            for _ in range(2):
                again = JobConnection(given)
                assert f":{standby.port}/" in again.jdbc_url
                again.close()
        finally:
            celery.close()
            job.close()
            loop.run(keeper.close())


@contextmanager
def transaction_of(connection: DatabaseWrapper) -> Iterator[None]:
    """A transaction that ends undone."""
    connection.set_autocommit(False)
    try:
        yield
    finally:
        connection.close()


def test_a_command_publishes_to_the_primary_that_has_replaced_another(pair: tuple[Server, Server]) -> None:
    primary, standby = pair
    standby.promote()
    code = (
        "import django; django.setup(); from queues.api import publish;"
        " from queues.models import Queue; Queue.objects.create(name='replaced'); publish('replaced', b'command')"
    )
    environment = {"DATABASE_URL": url(primary, standby), "DJANGO_SETTINGS_MODULE": "brokersite.settings"}
    command = Process(sys.executable, "-c", code, environment=environment)
    assert command.wait() == 0, command.log
    assert standby.rows(STORED, "command") == [(1,)]
    assert primary.rows(STORED, "command") == [(0,)]
