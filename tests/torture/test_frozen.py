"""A database that stands still in the middle of a commit: no client is told that the commit is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
import pytest

from brokersite.rigs.process import HOST
from brokersite.rigs.torture.database import KEY, TortureDatabase
from brokersite.rigs.torture.listeners import ListenerProcess
from tests.waiting import PATIENCE
from wire.blipmq.client import Client
from wire.sspq.client import Client as SspqClient

#: A commit of messages waits in its deferred trigger, that is inside the commit, until this lock is free.
LOCK = 4711
HOLD_COMMITS = f"""
    create function torture_hold() returns trigger language plpgsql as $$
    begin
        perform pg_advisory_xact_lock_shared({LOCK});
        return null;
    end $$;
    create constraint trigger torture_hold after insert on queues_message
        deferrable initially deferred for each row execute function torture_hold();
"""
LET_COMMITS_GO = "drop trigger torture_hold on queues_message; drop function torture_hold()"
WRITER_WAITS = f"""
    select exists (
        select from pg_locks l join pg_stat_activity a using (pid)
        where l.locktype = 'advisory' and l.objid = {LOCK} and not l.granted
            and a.application_name = 'fivewire writer'
    )
"""
WRITER = "select pid from pg_stat_activity where application_name = 'fivewire writer'"
STORED = "select count(*) from queues_openmessage m join queues_queue q on q.id = m.queue_id where q.name like %s"
#: Seconds for which an answer that must not come is waited for.
QUIET = 1.0


@pytest.fixture
def listener(torture_database: TortureDatabase) -> Iterator[ListenerProcess]:
    listener = ListenerProcess(0, torture_database, "frozen")
    listener.start()
    try:
        listener.wait_until_ready()
        yield listener
    finally:
        listener.end()


@pytest.fixture
def held(torture_database: TortureDatabase) -> Iterator[psycopg.Connection]:
    """A connection that holds up every commit of messages until it unlocks."""
    with torture_database.connect() as connection:
        connection.execute(HOLD_COMMITS.encode())
        connection.execute(f"select pg_advisory_lock({LOCK})".encode())
        yield connection
        connection.execute("select pg_advisory_unlock_all()")
        connection.execute(LET_COMMITS_GO.encode())


def stored(database: TortureDatabase, pattern: str) -> int:
    with database.connect() as connection:
        row = connection.execute(STORED, (pattern,)).fetchone()
        assert row is not None
        return int(row[0])


def test_no_pong_comes_while_the_writer_is_frozen_in_its_commit(
    torture_database: TortureDatabase, listener: ListenerProcess, held: psycopg.Connection
) -> None:
    with ThreadPoolExecutor(1) as executor, Client(HOST, listener.blipmq, KEY) as client:
        subscription = client.subscribe("frozen-topic")
        client.publish("frozen-topic", b"held")
        ponged = executor.submit(client.flush)
        torture_database.wait_for(WRITER_WAITS, PATIENCE)
        (writer,) = held.execute(WRITER).fetchone() or (0,)
        with torture_database.frozen([writer]):
            held.execute(f"select pg_advisory_unlock({LOCK})".encode())
            assert not wait([ponged], QUIET).done, "a PONG came before the commit could have ended"
            assert stored(torture_database, "%/frozen-topic") == 0
        ponged.result(PATIENCE)
        assert stored(torture_database, "%/frozen-topic") == 1
        message = client.poll(subscription, timeout=PATIENCE)
        assert message is not None
        assert message.body == b"held"
        client.ack(message)


def test_no_message_comes_while_all_of_the_database_is_frozen(
    torture_database: TortureDatabase, listener: ListenerProcess
) -> None:
    with SspqClient(HOST, listener.sspq) as client:
        answered = threading.Event()

        def receive() -> bytes:
            message = client.receive(timeout=PATIENCE)
            answered.set()
            assert message is not None
            client.confirm()
            return message.payload

        with ThreadPoolExecutor(1) as executor:
            with torture_database.frozen():
                client.send(b"held")
                payload = executor.submit(receive)
                assert not answered.wait(QUIET), "the message came before it could have been committed"
            assert payload.result(PATIENCE) == b"held"
