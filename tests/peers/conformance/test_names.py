"""Names: their owners, take-over, revoked keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.peers.running import TAKEN_OVER, Close, Join, Launch, Peer, WebBroker, closed_after, manage, register, unique
from tests.waiting import wait_until
from tests.wire.broker import KEY, Database

CLAIMED = Close(1008, "name claimed under a different token")
INVALID = Close(1008, "invalid bearer token")


def refused(broker: WebBroker, name: str, token: str) -> Close:
    return closed_after(broker, register(name, token).decode())


def test_a_name_that_is_connected_under_another_token_is_refused(broker: WebBroker, join: Join, other_key: str) -> None:
    bob = join("bob")
    assert refused(broker, bob.name, other_key) == CLAIMED
    assert bob.name in bob.peers()


def test_a_name_stays_its_tokens_also_when_it_is_not_connected(
    broker: WebBroker, join: Join, store: Database, other_key: str
) -> None:
    bob = join("bob")
    bob.close()
    assert refused(broker, bob.name, other_key) == CLAIMED
    alice = join("alice")
    sent = alice.say(bob)
    alice.peers()
    assert join(bob.name, exact=True).ids(1) == [sent]


def test_a_name_can_be_taken_by_another_token_once_an_operator_has_freed_it(
    broker: WebBroker, join: Join, store: Database, other_key: str
) -> None:
    bob = join("bob")
    bob.close()
    store.execute("update queues_mailbox set owner_id = null where name = %s", bob.name)
    again = join(bob.name, exact=True, token=other_key)
    assert bob.name in again.names
    assert refused(broker, bob.name, KEY) == CLAIMED


def test_the_same_token_takes_over_and_the_old_connection_is_closed_at_once(join: Join) -> None:
    old = join("bob")
    new = join(old.name, exact=True)
    assert old.close_seen() == TAKEN_OVER
    assert new.peers() == [old.name]


def test_a_name_is_free_for_its_token_when_the_connection_was_dropped_without_a_close(join: Join) -> None:
    bob = join("bob")
    bob.drop()
    assert join(bob.name, exact=True).peers() == [bob.name]


def test_names_are_told_apart_by_every_character(join: Join) -> None:
    names = [unique(name) for name in ("Bob", "bob", "bób", "bo b", "bob\u0301", "\U0001f41d", 'q"\\', "-")]
    peers = [join(name, exact=True) for name in names]
    assert set(peers[0].peers()) == set(names)
    sent = {peer.name: peers[0].say(peer) for peer in peers[1:]}
    for peer in peers[1:]:
        assert peer.ids(1) == [sent[peer.name]]


# Keys.


def test_a_revoked_key_closes_its_connections_and_is_not_accepted_again(
    broker: WebBroker, join: Join, store: Database
) -> None:
    key = store.add_key(unique("revoked-key"))
    bob, carol = join("bob", token=key), join("carol")
    assert manage(store, "apikey", "revoke", key).returncode == 0
    assert bob.close_seen() == Close(1008, "api key changed")
    assert refused(broker, bob.name, key) == INVALID
    wait_until(lambda: bob.name not in carol.peers(), "bob's end")


def test_a_key_may_be_shown_as_soon_as_it_was_made(join: Join, store: Database) -> None:
    for _ in range(100):
        bob = join("bob", token=None)
        bob.send(register(bob.name, store.add_key(unique("new-key"))))
        assert bob.name in bob.answer()
        assert bob.name in bob.peers()


def test_a_key_whose_patterns_are_changed_has_to_be_shown_again(join: Join, store: Database) -> None:
    key = store.add_key(unique("changed-key"))
    bob, carol = join("bob", token=key), join("carol")
    store.execute("update queues_apikey set publish = '{peer:absent}' where name = %s", key)
    assert bob.close_seen() == Close(1008, "api key changed")
    bob = join(bob.name, exact=True, token=key)
    bob.say(carol)
    bob.peers()
    assert join("alice").say(carol) == carol.get().id


def test_a_key_that_is_not_for_peerbus_is_not_accepted(broker: WebBroker, store: Database) -> None:
    key = store.add_key(unique("blipmq-key"), protocol="blipmq")
    assert refused(broker, unique("bob"), key) == INVALID


def test_a_key_for_peerbus_alone_is_accepted(join: Join, store: Database) -> None:
    key = store.add_key(unique("peerbus-key"), protocol="peerbus")
    bob = join("bob", token=key)
    assert bob.peers() == [bob.name]


def test_a_key_may_have_the_names_that_its_pattern_says(broker: WebBroker, join: Join, store: Database) -> None:
    key = store.add_key(unique("sensors-key"), consume=("peer:sensor-*",))
    assert refused(broker, unique("bob"), key).code == 1008
    sensor = join("sensor", token=key)
    assert sensor.peers() == [sensor.name]


# The reference's way, as a setting.


@pytest.fixture
def relaxed(launch: Launch) -> Iterator[WebBroker]:
    with launch(BROKER_PEERBUS_RELAXED="on") as running:
        yield running


def test_relaxed_any_token_may_take_a_name_that_is_not_connected(
    relaxed: WebBroker, join: Join, store: Database, other_key: str
) -> None:
    bob = join("bob", relaxed)
    assert refused(relaxed, bob.name, other_key) == CLAIMED
    bob.close()
    wait_until(lambda: bob.name not in join("alice", relaxed).names, "bob's end")
    again = join(bob.name, relaxed, exact=True, token=other_key)
    assert bob.name in again.peers()


def test_relaxed_any_peer_may_acknowledge_any_key(relaxed: WebBroker, join: Join) -> None:
    alice, bob = join("alice", relaxed), join("bob", relaxed)
    sent = alice.say(bob)
    assert bob.ids(1) == [sent]
    alice.ack(sent)
    alice.peers()
    again = join(bob.name, relaxed, exact=True)
    assert alice.say(again) == again.get().id


def test_a_peer_may_use_a_token_on_several_connections_with_names_of_their_own(join: Join) -> None:
    peers: list[Peer] = [join("worker") for _ in range(5)]
    assert set(peers[0].peers()) == {peer.name for peer in peers}
