"""PostgreSQL is away for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from brokersite import embedded
from brokersite.rigs.torture.database import TortureDatabase
from tests.peers.durability.conftest import Start
from tests.peers.running import PEERS, Close, Peer, WebBroker, close_of, closed_after, register
from tests.waiting import wait_until
from tests.wire.broker import Database

FAILED = Close(1011, "peer persistence failed")

pytestmark = pytest.mark.timeout(600)


class Away:
    """A PostgreSQL that a test stops and starts."""

    def __init__(self, server: TortureDatabase) -> None:
        self.server = server

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        before, self.server.server = self.server.server, embedded.ensure_running(self.server.data_dir)
        assert before is not None
        assert before.port == self.server.server.port


@pytest.fixture
def server(postgres: TortureDatabase, store: Database) -> Iterator[Away]:
    away = Away(postgres)
    yield away
    away.start()
    store.close()
    store.__init__(store.parameters)  # type: ignore[misc]


def registered(broker: WebBroker, name: str) -> Peer | None:
    """The peer, once the broker has its store again."""
    try:
        return Peer(broker, name)
    except ConnectionClosed as closed:
        if close_of(closed) != FAILED:
            raise
        return None


def test_a_register_while_the_store_is_away_is_refused_and_may_be_repeated(start: Start, server: Away) -> None:
    broker = start()
    Peer(broker, "alice").close()
    server.stop()
    assert closed_after(broker, register("alice").decode()) == FAILED
    assert closed_after(broker, register("alice", "wrong").decode()) == FAILED
    # Checks without the store come first.
    assert closed_after(broker, register("").decode()) == Close(1008, "empty peer name")
    server.start()
    wait_until(lambda: registered(broker, "alice"), "the store's return").close()


def test_a_broker_that_starts_without_its_store_serves_when_it_is_there(start: Start, server: Away) -> None:
    server.stop()
    broker = start()
    assert closed_after(broker, register("alice").decode()) == FAILED
    server.start()
    wait_until(lambda: registered(broker, "alice"), "the store's return").close()


def test_connected_peers_stay_and_what_they_sent_meanwhile_is_stored_when_it_is_back(
    start: Start, server: Away
) -> None:
    broker = start()
    alice, bob = Peer(broker, "alice"), Peer(broker, "bob")
    before = alice.say(bob)
    assert bob.get().key == before
    server.stop()
    sent = [alice.say(bob) for _ in range(100)]
    bob.ack(before)
    alice.send(PEERS)
    server.start()
    assert alice.answer() == ["alice", "bob"]
    assert bob.consume(100) == sent
    alice.close()
    bob.close()


def test_when_it_is_away_for_too_long_peers_are_closed_and_what_was_confirmed_is_there(
    start: Start, server: Away
) -> None:
    broker = start(BROKER_PUBLISH_TIMEOUT=0.5)
    alice, bob = Peer(broker, "alice"), Peer(broker, "bob")
    confirmed = [alice.say(bob) for _ in range(10)]
    alice.peers()
    server.stop()
    with contextlib.suppress(ConnectionClosed):  # while PostgreSQL was stopping
        alice.say(bob)
        alice.send(PEERS)
    assert alice.close_seen().code == 1011
    assert bob.close_seen().code == 1011
    server.start()
    again = wait_until(lambda: registered(broker, "bob"), "the store's return")
    assert again.consume(10) == confirmed
    again.close()
