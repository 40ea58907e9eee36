"""Recipients of each kind of envelope."""

from __future__ import annotations

from typing import Any

import pytest

from queues.audit.events import AuditEvent
from tests.peers.running import Join, Peer, envelope, events, pending, unique
from tests.waiting import wait_until
from tests.wire.broker import Database


def leave(peer: Peer, witness: Peer) -> None:
    """Disconnect, and wait until the broker has noticed."""
    peer.close()
    wait_until(lambda: peer.name not in witness.peers(), f"the end of {peer.name}")


# Direct.


def test_a_direct_message_goes_to_its_recipient_alone(join: Join) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    sent = [alice.say(bob), alice.say(carol), alice.say(bob)]
    assert bob.ids(2) == [sent[0], sent[2]]
    assert carol.ids(1) == [sent[1]]
    alice.peers()
    assert not alice.letters


def test_the_delivery_key_of_a_direct_message_is_its_id(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    letter = bob.get()
    assert letter.key == letter.id == sent


def test_a_peer_may_write_to_itself(join: Join) -> None:
    alice = join("alice")
    assert alice.say(alice) == alice.get().id


def test_a_message_to_a_known_peer_that_is_offline_waits_for_it(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    leave(bob, alice)
    sent = [alice.say(bob) for _ in range(3)]
    alice.peers()
    assert join(bob.name, exact=True).ids(3) == sent


def test_a_message_to_a_name_that_was_never_registered_is_dropped_without_backfill(join: Join) -> None:
    alice, name = join("alice"), unique("absent")
    lost = alice.say(name)
    alice.peers()
    late = join(name, exact=True)
    sent = alice.say(late)
    assert late.ids(1) == [sent]
    assert alice.say(late, id=lost) == late.get().id  # it was never stored, so it may be sent again


def test_routing_is_by_the_bound_name_whatever_from_says(join: Join, store: Database) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    sent = alice.say("*", **{"from": bob.name})
    assert [bob.get().id, carol.get().id] == [sent, sent]
    alice.peers()
    assert not alice.letters
    direct = alice.say(bob, **{"from": carol.name})
    assert bob.get().fields["from"] == carol.name
    assert events(store, direct)[0] == AuditEvent("send", direct, alice.name, bob.name)


# Broadcast.


def test_a_broadcast_goes_to_all_connected_peers_but_its_sender(join: Join) -> None:
    alice, *others = [join(name) for name in ("alice", "bob", "carol", "dave")]
    sent = alice.say("*")
    for peer in others:
        letter = peer.get()
        assert (letter.id, letter.key) == (sent, f"{sent}|{peer.name}")
        assert (letter.fields["to"], letter.fields["kind"]) == ("*", "broadcast")
    alice.peers()
    assert not alice.letters


def test_a_broadcast_does_not_go_to_known_peers_that_are_offline(join: Join, store: Database) -> None:
    alice, bob, gone = join("alice"), join("bob"), join("gone")
    leave(gone, alice)
    sent = alice.say("*")
    assert bob.ids(1) == [sent]
    assert pending(store, gone.name) == []
    direct = alice.say(gone)
    alice.peers()
    assert join(gone.name, exact=True).ids(1) == [direct]


def test_a_peer_that_registers_after_a_broadcast_does_not_get_it(join: Join) -> None:
    alice = join("alice")
    alice.say("*")
    alice.peers()
    late = join("late")
    assert alice.say(late) == late.get().id


def test_a_recipient_of_a_broadcast_that_leaves_before_its_ack_gets_it_later(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say("*")
    bob.get()
    leave(bob, alice)
    letter = join(bob.name, exact=True).get()
    assert (letter.id, letter.key) == (sent, f"{sent}|{bob.name}")


def test_each_copy_of_a_broadcast_is_acknowledged_by_itself(join: Join, store: Database) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    sent = alice.say("*")
    bob.consume(1)
    assert carol.ids(1) == [sent]
    assert pending(store, bob.name) == []
    assert pending(store, carol.name) == [f"{sent}|{carol.name}"]


def test_the_original_id_does_not_acknowledge_a_copy_of_a_broadcast(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say("*")
    bob.get()
    bob.ack(sent)
    bob.peers()
    assert pending(store, bob.name) == [f"{sent}|{bob.name}"]


def test_a_broadcast_without_other_connected_peers_goes_nowhere(join: Join) -> None:
    alice = join("alice")
    sent = alice.say("*")
    assert alice.peers() == [alice.name]
    bob = join("bob")
    alice.say("*", id=sent)
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


@pytest.mark.parametrize("kind", ["msg", "", "Broadcast", "broadcast ", None, ...])
def test_an_envelope_to_everybody_of_another_kind_than_broadcast_is_dropped(join: Join, kind: Any) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say("*", kind=kind)
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


def test_a_broadcast_to_a_name_is_dropped(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say(bob, kind="broadcast")
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


@pytest.mark.parametrize("kind", ["", "Broadcast", "broadcast ", "whatever", None, ...])
def test_an_envelope_to_a_name_of_any_other_kind_is_delivered(join: Join, kind: Any) -> None:
    alice, bob = join("alice"), join("bob")
    assert alice.say(bob, kind=kind) == bob.get().id


def test_messages_and_broadcasts_of_one_sender_come_in_their_order(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = [alice.say("*" if n % 3 else bob) for n in range(300)]
    assert bob.ids(300) == sent


# Unroutable messages.


@pytest.mark.parametrize(
    "changed",
    [
        {"id": ""}, {"id": None}, {"id": ...}, {"id": 7}, {"id": ["x"]},
        {"to": ""}, {"to": None}, {"to": ...}, {"to": 7}, {"to": ["BOB"]},
        {"protocol_version": "v2"}, {"protocol_version": ""}, {"protocol_version": ...}, {"protocol_version": 1},
        {"kind": 7}, {"from": {}}, {"ts": 1}, {"source": []}, {"hmac": 0},
        {"id": "nul\0"}, {"id": "x" * 600}, {"to": "BOB\0"},
    ],
)  # fmt: skip
def test_an_envelope_that_is_none_is_dropped_and_the_connection_lives(join: Join, changed: dict[str, Any]) -> None:
    alice, bob = join("alice"), join("bob")
    fields = {"to": bob.name, "id": unique()} | changed
    if isinstance(to := fields["to"], str):
        fields["to"] = to.replace("BOB", bob.name)
    alice.send(envelope(fields.pop("to"), fields.pop("id"), **fields))
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


# Ids.


def test_a_duplicate_id_is_a_no_op_and_the_first_stands(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob, "first")
    alice.say(bob, "second", id=sent)
    alice.peers()
    alice.say(bob, "third", id=sent)
    marker = alice.say(bob)
    letters = [bob.get(), bob.get()]
    assert [(letter.id, letter.fields["body"]) for letter in letters] == [(sent, "first"), (marker, None)]


def test_a_duplicate_id_in_the_same_moment_is_stored_once(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    id = unique()
    alice.send(*[envelope(bob.name, id)] * 200)
    marker = alice.say(bob)
    assert bob.ids(2) == [id, marker]


def test_a_duplicate_id_is_a_no_op_also_after_it_was_acknowledged(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    assert bob.consume(1) == [sent]
    alice.say(bob, id=sent)
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


def test_ids_are_unique_over_all_senders_recipients_and_kinds(join: Join) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    direct, everybody = alice.say(bob), alice.say("*")
    alice.peers()
    carol.say(bob, "again", id=direct)
    alice.say(carol, "again", id=direct)
    carol.say("*", "again", id=everybody)
    carol.say(bob, "again", id=everybody)
    carol.peers()
    markers = [alice.say(bob), alice.say(carol), carol.say(bob)]
    assert bob.ids(4) == [direct, everybody, markers[0], markers[2]]
    assert carol.ids(2) == [everybody, markers[1]]


def test_an_id_counts_as_seen_after_the_sender_has_reconnected(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    alice.peers()
    again = join(alice.name, exact=True)
    again.say(bob, id=sent)
    marker = again.say(bob)
    assert bob.ids(2) == [sent, marker]


# Order.


def test_each_senders_messages_come_in_the_order_of_sending(join: Join) -> None:
    senders, bob = [join("sender") for _ in range(4)], join("bob")
    sent: dict[str, list[str]] = {sender.name: [] for sender in senders}
    for n in range(2000):
        sender = senders[n % 4]
        sent[sender.name].append(sender.say(bob))
    received: dict[str, list[str]] = {sender.name: [] for sender in senders}
    for _ in range(2000):
        letter = bob.get()
        received[letter.fields["from"]].append(letter.id)
    assert received == sent


def test_order_holds_over_what_was_waiting_and_what_is_sent_meanwhile(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    leave(bob, alice)
    sent = [alice.say(bob, "x" * 500) for _ in range(3000)]
    alice.peers()
    bob = join(bob.name, exact=True)
    sent += [alice.say(bob) for _ in range(1000)]
    assert bob.ids(4000) == sent
