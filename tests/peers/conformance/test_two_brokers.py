"""Two brokers on one database are one peerbus."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.peers.running import (
    PEERS,
    TAKEN_OVER,
    Close,
    ComeAgain,
    Join,
    Launch,
    RawPeer,
    WebBroker,
    closed_after,
    envelope,
    pending,
    register,
    unique,
)
from tests.waiting import wait_until
from tests.wire.broker import KEY, Database


@pytest.fixture
def far(other_broker: WebBroker) -> WebBroker:
    return other_broker


def test_peers_names_those_of_both(join: Join, far: WebBroker) -> None:
    names = sorted([join("alice").name, join("bob", far).name, join("carol").name])
    asker = join("dave", far)
    assert asker.names == [*names, asker.name]
    assert asker.peers() == [*names, asker.name]


def test_messages_and_broadcasts_cross(join: Join, far: WebBroker) -> None:
    alice, bob, carol, dave = join("alice"), join("bob", far), join("carol"), join("dave", far)
    sent = [alice.say("*" if n % 2 else bob) for n in range(200)]
    assert bob.ids(200) == sent
    for peer in (carol, dave):
        letters = [peer.get() for _ in range(100)]
        assert [letter.key for letter in letters] == [f"{id}|{peer.name}" for id in sent[1::2]]
    assert bob.say(alice) == alice.get().id


def test_a_connection_elsewhere_takes_over_and_gets_what_was_not_acknowledged(join: Join, far: WebBroker) -> None:
    alice, old = join("alice"), join("bob")
    sent = [alice.say(old) for _ in range(10)]
    assert old.ids(10) == sent
    old.ack(sent[3])
    old.peers()
    new = join(old.name, far, exact=True)
    assert old.close_seen() == TAKEN_OVER
    assert new.ids(9) == [id for id in sent if id != sent[3]]
    assert alice.peers().count(old.name) == 1


def test_a_sender_that_moves_keeps_its_order(join: Join, broker: WebBroker, far: WebBroker) -> None:
    bob, sender = join("bob"), join("sender")
    sent = []
    for round in range(20):
        sent += [sender.say(bob) for _ in range(25)]
        sender.peers()
        sender = join(sender.name, broker if round % 2 else far, exact=True)
    assert bob.ids(500) == sent


def test_nothing_of_an_old_connection_is_stored_behind_what_the_new_one_sends(join: Join, launch: Launch) -> None:
    bob, marks = join("bob"), []
    with launch() as stalled:
        for _ in range(10):
            with connected(stalled, unique("sender")) as old, quiet_and_frozen(stalled, old):
                old.send_texts(*(envelope(bob.name, unique("late")) for _ in range(50)))
                new = join(old.name, exact=True)
                marks.append(new.say(bob))
                new.peers()
        with connected(stalled, unique("last")) as last:
            last.send_texts(envelope(bob.name, mark := unique()))
            marks.append(mark)
            assert bob.ids(11) == marks


def connected(broker: WebBroker, name: str) -> RawPeer:
    """A connection to a broker that stood still: other nodes may have ended its sessions, and it says "come again"."""
    return wait_until(lambda: _accepted(broker, name), "a connection")  # type: ignore[no-any-return]


def _accepted(broker: WebBroker, name: str) -> RawPeer | None:
    try:
        return RawPeer(broker, name)
    except ComeAgain:
        return None


@contextmanager
def quiet_and_frozen(broker: WebBroker, peer: RawPeer) -> Iterator[None]:
    """A broker whose last connection this is does nothing more, and stands still meanwhile."""
    peer.send_texts(PEERS)
    peer.read()
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


def test_an_id_is_known_to_both(join: Join, far: WebBroker) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol", far)
    sent = alice.say(bob)
    alice.peers()
    carol.say(bob, id=sent)
    marker = carol.say(bob)
    assert bob.ids(2) == [sent, marker]


def test_a_name_is_claimed_for_both(join: Join, far: WebBroker, other_key: str) -> None:
    bob = join("bob")
    assert closed_after(far, register(bob.name, other_key).decode()) == Close(
        1008, "name claimed under a different token"
    )


def test_a_key_is_revoked_for_both(join: Join, broker: WebBroker, far: WebBroker, store: Database) -> None:
    key = store.add_key(unique("everywhere-key"))
    peers = [join("near", token=key), join("far", far, token=key)]
    store.execute("update queues_apikey set revoked_at = now() where name = %s", key)
    for peer in peers:
        assert peer.close_seen() == Close(1008, "api key changed")
    for one in (broker, far):
        assert closed_after(one, register(unique(), key).decode()) == Close(1008, "invalid bearer token")
    assert KEY != key


def test_the_ack_of_a_peer_counts_wherever_it_is_connected(join: Join, far: WebBroker, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    moved = join(bob.name, far, exact=True)
    moved.ack(sent)
    moved.peers()
    assert pending(store, bob.name) == []


def test_when_one_stops_its_peers_are_told_and_the_other_has_everything(
    join: Join, launch: Launch, server: str
) -> None:
    with launch() as passing:
        alice, bob = join("alice"), join("bob", passing)
        sent = [alice.say(bob) for _ in range(10)]
        assert bob.ids(10) == sent
        bob.ack(sent[0])
        bob.peers()
        # uvicorn raises the signal again when it has shut down
        assert passing.stop() == (0 if server == "daphne" else -signal.SIGTERM)
        # uvicorn closes WebSockets itself, unless the application is faster
        closes = {Close(1001, "going away")} | ({Close(1012, "")} if server == "uvicorn" else set())
        assert bob.close_seen() in closes
    wait_until(lambda: bob.name not in alice.peers(), "bob's end")
    sent.append(alice.say(bob))
    assert join(bob.name, exact=True).ids(10) == sent[1:]


def test_when_one_is_killed_its_peers_are_soon_gone_and_the_other_has_everything(join: Join, launch: Launch) -> None:
    passing = launch().wait_ready()
    alice, bob = join("alice"), join("bob", passing)
    sent = [alice.say(bob) for _ in range(10)]
    assert bob.ids(10) == sent
    passing.stop(9)
    wait_until(lambda: bob.name not in alice.peers(), "bob's end")
    sent.append(alice.say(bob))
    assert join(bob.name, exact=True).ids(11) == sent
