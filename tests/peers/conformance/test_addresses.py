"""Envelopes to queues and topics, what API keys allow, and routes that bring messages to peers."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import pytest

from peers.codec import signing
from tests.peers.running import Join, Launch, envelope, events, manage, pending, unique
from tests.peers.vectors import SECRET
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import DEAD, Blip, Broker, Database
from wire.overhop.client import Client, OverhopError


@pytest.fixture(scope="module")
def wire(store: Database) -> Iterator[Broker]:
    """The listeners of the other protocols, on the same database."""
    with Broker(store) as running:
        yield running


def make_queue(store: Database, name: str) -> int:
    store.execute(
        "insert into queues_queue (name, uuid, max_attempts, retry_backoff, ack_timeout)"
        " values (%s, gen_random_uuid(), 3, interval '0', interval '60 s')",
        name,
    )
    return store.queue(name)


def add_route(store: Database, source: str, target: str) -> None:
    store.execute("insert into queues_route (source, target) values (%s, %s)", source, target)


# To queues and topics.


def test_an_envelope_to_a_queue_arrives_there_byte_for_byte_and_in_order(join: Join, store: Database) -> None:
    name = unique("orders")
    queue, alice = make_queue(store, name), join("alice")
    texts = [b" " + envelope(f"queue:{name}", unique(), alice.name, {"n": n}) for n in range(50)]
    alice.send(*texts)
    alice.peers()
    assert store.payloads(queue) == texts
    contents = store.rows("select distinct content from queues_message where queue_id = %s", queue)
    assert contents == [(3,)]  # a letter still


def test_an_envelope_to_a_topic_reaches_its_subscribers(join: Join, wire: Broker) -> None:
    topic, alice = unique("news"), join("alice")
    with Blip(wire.blipmq) as subscriber:
        subscription = subscriber.subscribe(topic.encode())
        texts = [envelope(f"topic:{topic}", unique(), alice.name, n) for n in range(10)]
        alice.send(*texts)
        alice.peers()
        assert subscriber.consume(subscription, 10) == texts


def test_an_id_counts_once_also_for_queues(join: Join, store: Database) -> None:
    name = unique("once")
    queue, alice, bob = make_queue(store, name), join("alice"), join("bob")
    id = alice.say(f"queue:{name}")
    alice.say(f"queue:{name}", id=id)
    alice.peers()
    alice.say(f"queue:{name}", id=id)
    alice.say(bob, id=id)
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]
    assert len(store.payloads(queue)) == 1
    assert [(event.event, event.recipient) for event in events(store, id)] == [("send", f"queue:{name}")]


def test_a_queue_that_does_not_exist_drops_and_a_broadcast_to_a_queue_too(join: Join, store: Database) -> None:
    name = unique("queue")
    alice, bob = join("alice"), join("bob")
    lost = alice.say(f"queue:{name}")
    alice.say("queue:")
    alice.say("topic:")
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]
    queue = make_queue(store, name)
    alice.say(f"queue:{name}", kind="broadcast")
    alice.say(f"queue:{name}", id=lost)
    alice.peers()
    assert [json.loads(payload)["id"] for payload in store.payloads(queue)] == [lost]


def test_messages_to_peers_and_queues_in_turns_are_all_stored(join: Join, store: Database) -> None:
    name = unique("both")
    queue, alice, bob = make_queue(store, name), join("alice"), join("bob")
    sent = [alice.say(f"queue:{name}" if n % 2 else bob) for n in range(1000)]
    assert bob.ids(500) == sent[::2]
    alice.peers()
    assert [json.loads(payload)["id"] for payload in store.payloads(queue)] == sent[1::2]


def test_a_mailbox_cannot_be_reached_by_the_name_of_its_queue(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say(f"queue:_peer/{bob.name}", "not an envelope of bob's")
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]
    alice.peers()
    assert pending(store, bob.name) == [marker]


def test_a_mailbox_cannot_be_reached_over_another_protocol(join: Join, store: Database, wire: Broker) -> None:
    bob = join("bob")
    with Client(*wire.overhop, timeout=PATIENCE) as giver, pytest.raises(OverhopError):
        giver.enqueue(f"_peer/{bob.name}", "not a letter")
    assert store.states(store.queue(f"_peer/{bob.name}")) == {}


# Rights of keys.


def test_a_key_may_write_to_the_peers_and_queues_that_its_patterns_say(join: Join, store: Database) -> None:
    jobs, other = unique("jobs"), unique("other")
    queues = [make_queue(store, name) for name in (jobs, other)]
    bob, carol, root = join("bob"), join("carol"), join("root")
    key = store.add_key(unique("narrow-key"), publish=(f"peer:{bob.name}", jobs))
    alice = join("alice", token=key)
    sent = [alice.say(to) for to in (carol, "*", bob, f"queue:{other}", f"queue:{jobs}", alice)]
    assert bob.ids(1) == [sent[2]]
    alice.peers()
    assert not alice.letters
    assert root.say(carol) == carol.get().id
    assert [len(store.payloads(queue)) for queue in queues] == [1, 0]


def test_a_key_may_broadcast_when_its_patterns_match_every_peer(join: Join, store: Database) -> None:
    bob = join("bob")
    alice = join("alice", token=store.add_key(unique("broadcast-key"), publish=("peer:*",)))
    assert alice.say("*") == bob.get().id


def test_a_pattern_for_queues_is_none_for_peers(join: Join, store: Database) -> None:
    bob, root = join("bob"), join("root")
    alice = join("alice", token=store.add_key(unique("queue-key"), publish=("b*", "orders")))
    alice.say(bob)
    alice.peers()
    assert root.say(bob) == bob.get().id


# Routes.


def gateway_letter(text: bytes) -> dict[str, Any]:
    """The fields of an envelope that the gateway has signed."""
    fields: dict[str, Any] = json.loads(text)
    assert signing.verify(text, SECRET)
    canonical = text[: text.rindex(b',"hmac"')] + b"}"
    assert hmac.digest(SECRET.encode(), canonical, hashlib.sha256).hex() == fields["hmac"]
    assert list(fields) == ["protocol_version", "id", "from", "to", "ts", "source", "kind", "body", "hmac"]
    return fields


def test_a_routed_message_reaches_a_peer_signed_and_verifies(join: Join, store: Database, wire: Broker) -> None:
    topic, bob = unique("prices"), join("bob")
    add_route(store, f"topic:{topic}", f"peer:{bob.name}")
    bodies = [b"12.50", "grün <&>".encode(), b"\xff\x00", b'{"a": 1}']
    with Blip(wire.blipmq) as publisher:
        publisher.publish(topic.encode(), *bodies)
    letters = [bob.get() for _ in bodies]
    fields = [gateway_letter(letter.text) for letter in letters]
    assert [each["body"] for each in fields] == ["12.50", "grün <&>", {"base64": "/wA="}, '{"a": 1}']
    assert {(each["to"], each["kind"], each["from"]) for each in fields} == {(bob.name, "msg", "fivewire")}
    assert [letter.key for letter in letters] == [each["id"] for each in fields]
    bob.ack(*(letter.key for letter in letters[:2]))
    bob.peers()
    again = join(bob.name, exact=True)
    assert [again.get() for _ in range(2)] == letters[2:]  # the same bytes each time
    assert [event.event for event in events(store, letters[2].key)] == ["send", "deliver", "deliver"]


def test_values_cross_to_a_peer_as_values(join: Join, store: Database) -> None:
    name, bob = unique("values"), join("bob")
    make_queue(store, name)
    add_route(store, f"queue:{name}", f"peer:{bob.name}")
    alice = join("alice")
    sent = alice.say(f"queue:{name}", {"n": [1, 2.5, "é<"]})
    fields = gateway_letter(bob.get().text)
    assert fields["id"] != sent
    assert (fields["body"]["id"], fields["body"]["body"]) == (sent, {"n": [1, 2.5, "é<"]})


def test_msgpack_crosses_to_a_peer_as_json(join: Join, store: Database, wire: Broker) -> None:
    name, bob = unique("jobs"), join("bob")
    add_route(store, f"queue:{name}", f"peer:{bob.name}")
    with Client(*wire.overhop, timeout=PATIENCE) as giver:
        giver.create_queue(name)
        giver.enqueue(name, {"job": [1, b"\xff", "é"]})
    assert gateway_letter(bob.get().text)["body"] == {"job": [1, {"base64": "/w=="}, "é"]}


def test_a_route_reaches_a_peer_that_is_offline_when_it_returns(join: Join, store: Database, wire: Broker) -> None:
    topic, bob, alice = unique("later"), join("bob"), join("alice")
    bob.close()
    wait_until(lambda: bob.name not in alice.peers(), "bob's end")
    assert manage(store, "route", "add", f"topic:{topic}", f"peer:{bob.name}").returncode == 0
    with Blip(wire.blipmq) as publisher:
        publisher.publish(topic.encode(), b"1", b"2")
    sent = alice.say(bob)
    again = join(bob.name, exact=True)
    letters = [again.get() for _ in range(3)]
    assert [gateway_letter(letter.text)["body"] for letter in letters[:2]] == ["1", "2"]
    assert letters[2].id == sent


def test_a_routed_message_is_a_dead_letter_without_the_secret(join: Join, store: Database, launch: Launch) -> None:
    name = unique("unsigned")
    with launch() as secretless:
        bob, alice = join("bob", secretless), join("alice", secretless)
        make_queue(store, name)
        add_route(store, f"queue:{name}", f"peer:{bob.name}")
        alice.say(f"queue:{name}")
        mailbox = store.queue(f"_peer/{bob.name}")
        wait_until(lambda: store.states(mailbox) == {DEAD: 1}, "the dead letter")
        error = store.value("select error from queues_message where queue_id = %s", mailbox)
        assert "PEERBUS_HMAC_SECRET" in error
        assert alice.say(bob) == bob.get().id
        bob.close()
        alice.close()


def test_a_message_too_large_for_an_envelope_is_a_dead_letter(join: Join, store: Database, wire: Broker) -> None:
    topic, bob = unique("large"), join("bob")
    add_route(store, f"topic:{topic}", f"peer:{bob.name}")
    with Blip(wire.blipmq) as publisher:
        publisher.publish(topic.encode(), b"x" * (1 << 20), b"small")
    assert gateway_letter(bob.get().text)["body"] == "small"
    wait_until(lambda: store.states(store.queue(f"_peer/{bob.name}"))[DEAD] == 1, "the dead letter")
