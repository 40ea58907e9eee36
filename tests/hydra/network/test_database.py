"""PostgreSQL goes away under running nodes and comes back: they promise nothing twice, and no line is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import psycopg
import pytest
from pytest_django.plugin import DjangoDbBlocker

from brokersite import embedded
from brokersite.rigs.torture.database import TortureDatabase
from tests.hydra.irc.server import IrcServerProcess
from tests.hydra.network.nodes import CHANNEL, Network
from tests.hydra.network.people import Person
from tests.hydra.network.stores import publishing
from tests.hydra.network.talk import close_connections
from tests.waiting import wait_until
from tests.wire.broker import Database


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TortureDatabase]:
    """A PostgreSQL that nothing else uses, with all tables."""
    database = TortureDatabase(tmp_path_factory.mktemp("hydra"))
    try:
        database.start()
        yield database
    finally:
        database.remove()


def connect(server: TortureDatabase) -> Database:
    """Look into it."""
    at = server.server
    assert at is not None
    return Database({"host": at.host, "port": at.port, "user": at.user, "password": at.password, "dbname": at.dbname})


@contextlib.contextmanager
def unable_to_store(store: Database) -> Iterator[None]:
    """Within it, or until the server is stopped, lines from IRC cannot be stored."""
    with contextlib.closing(psycopg.connect(**store.parameters)) as blocker:
        blocker.execute("lock table hydra_recordedline in exclusive mode")
        yield


def test_nodes_go_on_when_postgresql_was_restarted(
    server: TortureDatabase, irc: IrcServerProcess, person: Person, django_db_blocker: DjangoDbBlocker
) -> None:
    store = connect(server)
    with publishing(store, django_db_blocker) as publish, Network(store, irc) as network:
        network.linked({"alpha": "", "beta": "alpha", "gamma": "alpha beta"})
        network.wait_in_term(voters=3)
        texts = []
        for number in range(2):
            terms = network.terms()
            if number:
                store.close()
                server.kill(everything=True)
            else:
                with unable_to_store(store):
                    person.say("while it goes away")
                    store.wait_for_blocked("hydra_recordedline")
                    store.close()
                    embedded.stop(server.data_dir)
                server.server = embedded.ensure_running(server.data_dir)
            store = network.store = connect(server)
            network.wait_in_term(voters=3)
            assert all(node.alive for node in network.nodes.values())
            assert all(term >= terms[name] for name, term in network.terms().items())
            texts.append(f"after restart {number}")
            publish("hydra.send", f"PRIVMSG {CHANNEL} :{texts[-1]}")
            close_connections()
            person.wait_text(texts[-1])
            person.say(f"hello again {number}")
            wait_until(lambda: any(f"hello again {number}" in line for *_, line in network.received()), "it")  # noqa: B023
        assert person.texts == texts
        assert any(line.endswith(":while it goes away") for *_, line in network.received())
        person.assert_never_two()
        lines = [line for *_, line in network.received() if person.nick in line]
        assert len(lines) == len(set(lines))
        store.close()
