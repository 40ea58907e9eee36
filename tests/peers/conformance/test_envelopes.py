"""Envelopes arrive byte for byte as they were sent, and so do their signatures."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peers.codec import signing
from tests.peers.running import Join, Peer, compact, envelope, unique
from tests.peers.strategies import spelled
from tests.peers.vectors import SECRET, SIGNED, Signed
from tests.waiting import wait_until
from tests.wire.broker import Database

MIB = 1 << 20
AROUND = len(b'{"protocol_version":"v1","type":"deliver","delivery_key":"","envelope":}')


def delivered(alice: Peer, bob: Peer, *texts: bytes) -> None:
    """Send these, and see exactly them arrive."""
    alice.send(*texts)
    for text in texts:
        letter = bob.get()
        assert letter.text == text
        bob.ack(letter.key)


# Each stands for an object that begins with the required fields: version, id and recipient.
REST = {
    "nothing else": b"",
    "unknown fields": b',"kind":"msg","x":{"type":"ack"},"names":["q"],"trace":null',
    "escapes": rb',"kind":"m\u0073g","body":"\u00e9\/\b\ud83d\ude00\u0000\u2028"',
    "half a surrogate": rb',"kind":"msg","body":"\ud800 \udfff","from":"\udead"',
    "unescaped unicode": ',"kind":"msg","body":"é\u2028\u2029😀\x7f\ufeff<>&"'.encode(),
    "equal keys in the body": b',"kind":"msg","body":{"a":1,"a":2},"body":3',
    "big numbers": b',"kind":"msg","body":[1e400,-0,1.0,1E5,0.1e-999,123456789012345678901234567890,'
    b"18446744073709551616,-9223372036854775809,3.141592653589793238462643383279]",
    "deep": b',"kind":"msg","body":' + b"[" * 400 + b"]" * 400,
    "null for what is absent": b',"kind":null,"from":null,"ts":null,"body":null',
    "a type that means nothing": b',"type":"hello","kind":"msg"',
    "a type that is no string": b',"type":7,"kind":"msg"',
    "a deliver frame in the body": b',"kind":"msg","body":{"type":"deliver","delivery_key":"x","envelope":{"id":"y"}}',
}
SPELLINGS = {name: b'{"protocol_version":"v1","id":ID,"to":TO' + rest + b"}" for name, rest in REST.items()} | {
    "whitespace": b' {\n\t"protocol_version" : "v1",\r\n"id":ID , "from":"a","to":TO,"ts":"","source":"",'
    b'"kind":"msg","body":{ "z" : 1 ,  "a":[ ] },"hmac":""}\n ',
    "another order": b'{"hmac":"","body":1,"kind":"msg","to":TO,"id":ID,"protocol_version":"v1","from":"a"}',
    "equal keys": b'{"to":"absent","id":"x","protocol_version":"v1","id":ID,"kind":"msg","to":TO}',
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_an_envelope_arrives_byte_for_byte(join: Join, spelling: bytes) -> None:
    alice, bob = join("alice"), join("bob")
    delivered(alice, bob, spelling.replace(b"ID", compact(unique())).replace(b"TO", compact(bob.name)))


@pytest.mark.parametrize(
    "id", ['q"uo\\te', "é\u2028😀", "<&>", "\x01\x1f\x7f", " ", "0", "x" * 512, "é" * 256, "a|b", "*"]
)
def test_an_id_may_be_any_text_and_is_the_delivery_key(join: Join, id: str) -> None:
    alice, bob = join("alice"), join("bob")
    if len(id) > 200:  # as long, and no other test's: the broker takes an id once
        own = unique("id").encode().ljust(20)
        id = (own + id.encode()[len(own) :]).decode()
    else:
        id = unique(id)
    alice.say(bob, id=id)
    letter = bob.get()
    assert (letter.key, letter.id) == (id, id)
    bob.ack(letter.key)
    bob.peers()
    assert alice.say(bob) == join(bob.name, exact=True).get().id


def test_a_broadcast_arrives_byte_for_byte_too(join: Join) -> None:
    alice, bob, carol = join("alice"), join("bob"), join("carol")
    text = b'{ "kind":"broadcast","to":"*","protocol_version":"v1","id":%s,"body":"\\u003c<" }' % compact(unique())
    alice.send(text)
    for peer in (bob, carol):
        assert peer.get().text == text


def test_letters_from_the_store_have_the_same_bytes_as_those_from_memory(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    texts = [
        spelling.replace(b"ID", compact(unique())).replace(b"TO", compact(bob.name)) for spelling in SPELLINGS.values()
    ]
    bob.close()
    wait_until(lambda: bob.name not in alice.peers(), "bob's end")
    alice.send(*texts)
    alice.peers()
    bob = join(bob.name, exact=True)
    assert [bob.get().text for _ in texts] == texts


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bodies=st.lists(spelled(), min_size=1, max_size=10))
def test_the_body_may_be_any_json(pair: tuple[Peer, Peer], bodies: list[bytes]) -> None:
    alice, bob = pair
    delivered(
        alice, bob, *(envelope(bob.name, unique(), body="BODY").replace(b'"BODY"', b" " + body) for body in bodies)
    )


@pytest.fixture
def pair(join: Join) -> tuple[Peer, Peer]:
    return join("alice"), join("bob")


@pytest.mark.parametrize("field", ["from", "ts", "source", "hmac"])
def test_the_broker_looks_at_nothing_that_is_between_the_peers(join: Join, field: str) -> None:
    alice, bob = join("alice"), join("bob")
    delivered(alice, bob, envelope(bob.name, unique(), **{field: "whatever"}))


# Sizes.


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 1_000_000])
def test_a_body_of_any_size_arrives(join: Join, size: int) -> None:
    alice, bob = join("alice"), join("bob")
    delivered(alice, bob, envelope(bob.name, unique(), body="x" * size))


def test_an_envelope_whose_deliver_frame_has_1_mib_arrives_and_a_larger_one_is_dropped(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    for size in (MIB, MIB + 1):
        id = unique()
        alice.send(envelope(bob.name, id).ljust(size - AROUND - len(id)))
    sent = alice.say(bob)
    exact = bob.get()
    assert len(exact.text) + AROUND + len(exact.key) == MIB
    assert bob.ids(1) == [sent]


def test_a_broadcast_whose_deliver_frame_would_not_fit_is_dropped_for_everybody(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    alice.send(envelope("*", unique()).ljust(MIB - 100))
    alice.send(envelope("*", fitting := unique()).ljust(MIB - 2000))
    assert bob.ids(1) == [fitting]


def test_many_of_1_mib_arrive_in_order(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    texts = [envelope(bob.name, unique(), body="x" * 1_000_000) for _ in range(20)]
    delivered(alice, bob, *texts)


# Signatures.


@pytest.mark.parametrize("signed", SIGNED, ids=["plain", "spaces", "no body", "broadcast", "escaped", "to be escaped"])
def test_a_signature_of_another_implementation_verifies_at_the_recipient(
    join: Join, store: Database, signed: Signed
) -> None:
    alice, bob = join("alice", exact=True), join("bob", exact=True)
    store.execute("delete from queues_letterseen where id = %s", signed.fields["id"].encode())
    body = b',"body":' + signed.body if signed.body else b""
    text = compact(signed.fields)[:-1] + body + b',"hmac":"' + signed.hmac.encode() + b'"}'
    alice.send(text)
    letter = bob.get()
    bob.ack(letter.key)
    bob.peers()
    assert letter.text == text
    assert signing.verify(letter.text, SECRET)
    assert seeds_verify(letter.text, signed.canonical_body)


def seeds_verify(text: bytes, canonical_body: bytes) -> bool:
    """The signed text by section 4, step by step, for a body that is spliced in."""
    fields = json.loads(text)
    names = ("protocol_version", "id", "from", "to", "ts", "source", "kind")
    parts = [f'"{name}":{json.dumps(fields[name])}'.encode() for name in names]
    canonical = b"{" + b",".join(parts) + b',"body":' + canonical_body + b"}"
    return hmac.compare_digest(hmac.digest(SECRET.encode(), canonical, hashlib.sha256).hex(), fields["hmac"])


def test_a_wrong_signature_is_delivered_since_the_broker_does_not_know_the_secret_of_the_peers(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    alice.say(bob, hmac="f" * 64)
    letter = bob.get()
    assert not signing.verify(letter.text, SECRET)
