"""Clients that do not read cost the broker nothing but their own connection, and lose nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.lengths import lengths
from tests.peers.durability.conftest import Start
from tests.peers.durability.memory import MIB, SMALL, Watch
from tests.peers.running import Close, Letter, Peer, RawPeer, WebBroker, connected, pending
from tests.waiting import wait_until
from tests.wire.broker import Database

SLOW = Close(1008, "slow consumer")

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def giver(store: Database) -> Iterator[WebBroker]:
    """A broker for the senders."""
    with WebBroker(store) as running:
        yield running


def to_the_close(peer: RawPeer) -> tuple[list[Letter], Close]:
    """Everything that a slow client finds when it reads again."""
    letters = []
    while isinstance(found := peer.get(), Letter):
        letters.append(found)
    return letters, found


@pytest.mark.parametrize("count", lengths(short=100, long=200))
def test_a_client_that_stops_reading_while_many_megabytes_are_due(
    start: Start, giver: WebBroker, store: Database, count: int
) -> None:
    broker = start(BROKER_PEERBUS_SLOW_TIMEOUT=5)
    alice, witness = Peer(giver, "alice"), Peer(broker, "witness")
    with RawPeer(broker, "bob", buffer=SMALL) as bob:
        watch = Watch(broker)
        sent = [alice.say("bob", "x" * 500_000) for _ in range(count)]
        alice.peers()
        wait_until(lambda: watch.grown() and "bob" not in connected(store), "bob's end")
        assert watch.grown() < 16 * MIB
        letters, close = to_the_close(bob)
        assert close == SLOW
        assert [letter.id for letter in letters] == sent[: len(letters)]
        assert 0 < len(letters) < 50
        bob.hang_up()
    assert alice.say(witness) == witness.get().id
    assert pending(store, "bob") == sent
    again = Peer(broker, "bob")
    assert consume_watched(again, watch, count) == sent
    assert watch.grown() < 16 * MIB
    for peer in (alice, witness, again):
        peer.close()


def consume_watched(peer: Peer, watch: Watch, count: int) -> list[str]:
    """Get and acknowledge so many one by one; their ids."""
    ids = []
    for _ in range(count):
        letter = peer.get()
        peer.ack(letter.key)
        ids.append(letter.id)
        watch.grown()
    peer.peers()
    return ids


@pytest.mark.long
def test_many_slow_clients_at_once_do_not_hold_up_one_that_reads(
    start: Start, giver: WebBroker, store: Database
) -> None:
    broker = start(BROKER_PEERBUS_SLOW_TIMEOUT=5, BROKER_PEERBUS_WINDOW_BYTES=65536)
    alice, reader = Peer(giver, "alice"), Peer(broker, "reader")
    slow = [RawPeer(broker, f"slow-{n}", buffer=SMALL) for n in range(10)]
    watch = Watch(broker)
    sent = [alice.say("*", "x" * 500_000) for _ in range(16)]
    assert consume_watched(reader, watch, 16) == sent
    wait_until(lambda: watch.grown() and connected(store) == ["alice", "reader"], "the end of the slow ones")
    assert watch.grown() < 32 * MIB
    for peer in slow:
        letters, close = to_the_close(peer)
        assert close == SLOW
        assert [letter.id for letter in letters] == sent[: len(letters)]
        peer.hang_up()
        again = Peer(broker, peer.name)
        assert again.consume(16) == sent
        again.close()
    alice.close()
    reader.close()


@pytest.mark.long
def test_a_client_that_reads_a_little_now_and_then_is_not_closed(start: Start, giver: WebBroker) -> None:
    broker = start(BROKER_PEERBUS_SLOW_TIMEOUT=5, BROKER_PEERBUS_WINDOW_BYTES=65536)
    alice = Peer(giver, "alice")
    with RawPeer(broker, "walker", buffer=SMALL) as walker:
        sent = [alice.say("walker", "x" * 100_000) for _ in range(100)]
        alice.peers()
        received = []
        for _ in sent:
            letter = walker.letter()
            received.append(letter.id)
            time.sleep(0.1)  # so that all of it takes longer than a client may read nothing
        assert received == sent
        walker.hang_up()
    alice.close()


def test_a_client_that_does_not_acknowledge_gets_no_more_than_its_window(start: Start, giver: WebBroker) -> None:
    broker = start(BROKER_PEERBUS_WINDOW=100)
    alice, bob = Peer(giver, "alice"), Peer(broker, "hoarder")
    sent = [alice.say(bob) for _ in range(300)]
    alice.peers()
    letters = [bob.get() for _ in range(100)]
    bob.peers()
    assert not bob.letters
    bob.ack(*(letter.key for letter in letters[:50]))
    assert [letter.id for letter in letters] + bob.ids(50) == sent[:150]
    bob.peers()
    assert not bob.letters
    alice.close()
    bob.close()
