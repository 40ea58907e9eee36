"""Acknowledgements and what the audit chain says of them."""

from __future__ import annotations

import pytest

from queues.audit.events import AuditEvent
from tests.peers.running import Join, Peer, WebBroker, chain, compact, events, pending, stored_keys, unique
from tests.waiting import wait_until
from tests.wire.broker import Database


def test_until_the_ack_a_message_stays_and_comes_again_with_the_next_connection(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say(bob) for _ in range(3)]
    assert bob.ids(3) == sent
    bob.ack(sent[1])
    bob.peers()
    assert pending(store, bob.name) == [sent[0], sent[2]]
    assert join(bob.name, exact=True).ids(2) == [sent[0], sent[2]]


def test_an_acked_message_is_gone_for_ever(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say(bob)
    bob.consume(1)
    assert pending(store, bob.name) == []
    again = join(bob.name, exact=True)
    assert alice.say(bob) == again.get().id


def test_acks_may_come_in_any_order(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say(bob) for _ in range(50)]
    assert bob.ids(50) == sent
    bob.ack(*sent[::-2], *sent[::2])
    bob.peers()
    assert pending(store, bob.name) == [id for id in sent if id not in sent[::-2] + sent[::2]]


@pytest.mark.parametrize("id", [b'""', b"null", b"0", b"{}", b'["x"]', b"true"])
def test_an_ack_with_an_empty_id_or_none_is_ignored(join: Join, store: Database, id: bytes) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    before = len(chain(store))
    bob.send(b'{"protocol_version":"v1","type":"ack","id":%s}' % id, b'{"protocol_version":"v1","type":"ack"}')
    assert bob.name in bob.peers()
    assert pending(store, bob.name) == [sent]
    assert len(chain(store)) == before


def test_an_unknown_ack_and_a_second_one_are_no_ops(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    bob.ack(unique("unknown"), sent, sent, sent)
    bob.peers()
    bob.ack(sent)
    assert bob.name in bob.peers()
    assert pending(store, bob.name) == []
    assert stored_keys(store).count(sent) == 1


@pytest.mark.parametrize("key", ["nul\0", "x" * 100_000, "'; drop table queues_message; --", "%s", "😀\ud7ff"])
def test_an_ack_of_an_impossible_key_is_a_no_op(join: Join, key: str) -> None:
    bob = join("bob")
    bob.ack(key)
    assert bob.name in bob.peers()


def test_a_peer_whose_ack_key_is_long_in_bytes_does_not_stop_the_node(join: Join, store: Database) -> None:
    mallory, bob = join("mallory"), join("bob")
    nodes = store.rows("select id from queues_node order by id")
    for key in ("😀" * 753, "x" * 512 + "|" + "😀" * 240, "é" * 737):
        mallory.ack(key)
    assert mallory.name in mallory.peers()
    assert bob.say(mallory) == mallory.get().id
    assert store.rows("select id from queues_node order by id") == nodes


def test_an_ack_needs_no_version_and_minds_no_unknown_fields(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    bob.send(b' {"extra":[1],"id":%s,"type":"ack"} ' % compact(sent))
    bob.peers()
    assert pending(store, bob.name) == []


def test_a_key_is_acknowledged_by_its_recipient_only(join: Join, store: Database) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    direct, everybody = alice.say(bob), alice.say("*")
    bob.ids(2)
    for peer in (alice, carol):
        peer.ack(direct, everybody, f"{everybody}|{bob.name}")
        peer.peers()
    assert pending(store, bob.name) == [direct, f"{everybody}|{bob.name}"]


def test_a_late_ack_on_the_next_connection_counts(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    again = join(bob.name, exact=True)
    again.ack(sent)
    again.peers()
    assert pending(store, bob.name) == []
    last = join(bob.name, exact=True)
    assert alice.say(bob) == last.get().id


def test_an_ack_of_what_waits_in_the_store_and_was_not_delivered_counts(
    broker: WebBroker, join: Join, store: Database
) -> None:
    alice, bob = join("alice"), join("bob")
    store.execute("update queues_queue set paused = true where name = %s", f"_peer/{bob.name}")
    sent = wait_until(lambda: undelivered(alice, bob, store), "the pause")
    bob.letters.clear()
    bob.ack(sent)
    bob.peers()
    assert sent not in pending(store, bob.name)


def undelivered(alice: Peer, bob: Peer, store: Database) -> str | None:
    """A message that is stored and was not delivered, once the pause has been heard of."""
    sent = alice.say(bob)
    alice.peers()
    bob.peers()
    return None if sent in {letter.id for letter in bob.letters} else sent


def test_thousands_of_acks_at_once(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say(bob) for _ in range(5000)]
    assert bob.consume(5000) == sent
    assert pending(store, bob.name) == []


# The audit chain.


def test_send_delivery_and_acknowledgement_are_in_the_chain(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.consume(1)
    assert events(store, sent) == [
        AuditEvent("send", sent, alice.name, bob.name),
        AuditEvent("deliver", sent, alice.name, bob.name),
        AuditEvent("ack", sent, bob.name, ""),
    ]


def test_a_broadcast_has_a_send_row_for_each_recipient(join: Join, store: Database) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    sent = alice.say("*")
    assert bob.ids(1) == carol.ids(1)
    alice.peers()
    for peer in (bob, carol):
        key = f"{sent}|{peer.name}"
        assert events(store, key) == [
            AuditEvent("send", key, alice.name, peer.name), AuditEvent("deliver", key, alice.name, peer.name)
        ]  # fmt: skip
    assert events(store, sent) == []


def test_each_redelivery_adds_a_deliver_row(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    for _ in range(3):
        assert bob.ids(1) == [sent]
        bob = join(bob.name, exact=True)
    bob.consume(1)
    assert [event.event for event in events(store, sent)] == ["send", *["deliver"] * 4, "ack"]


def test_every_ack_that_is_not_empty_adds_a_row_and_a_duplicate_or_dropped_envelope_none(
    join: Join, store: Database
) -> None:
    alice, bob = join("alice"), join("bob")
    sent, unknown, dropped = alice.say(bob), unique("unknown"), unique("dropped")
    alice.say(bob, id=sent)
    alice.say(unique("absent"), id=dropped)
    alice.peers()
    bob.get()
    bob.ack(unknown, sent, sent)
    bob.peers()
    assert events(store, unknown) == [AuditEvent("ack", unknown, bob.name, "")]
    assert [event.event for event in events(store, sent)] == ["send", "deliver", "ack", "ack"]
    assert events(store, dropped) == []


def test_the_chain_is_right_and_its_send_rows_are_the_messages_stored(store: Database) -> None:
    sends = sorted(event.id for event in chain(store) if event.event == "send" and ":" not in event.recipient)
    assert sends == sorted(stored_keys(store))
    assert sends
