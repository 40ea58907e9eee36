"""Frames that mean nothing are ignored, and the connection lives."""

from __future__ import annotations

import pytest

from tests.peers.running import PEERS, Join, ack, envelope, pending, register, unique
from tests.peers.web.serving import BINARY, CONTINUATION, PING, TEXT, frame
from tests.wire.broker import Database

MEANINGLESS = [
    b"", b" ", b"x", b"{", b"}", b"{}", b"[]", b"null", b"1", b'"peers"', b"[{}]", b"\x00", b"{}{}", b"NaN",
    b'{"type":"peers"} {"type":"peers"}',
    b'{"type":null}', b'{"type":1}', b'{"type":{}}', b'{"type":""}', b'{"type":"Peers"}', b'{"type":"nonsense"}',
    b'{"protocol_version":"v1","type":"deliver"}',
    b'{"protocol_version":"v1","type":"deliver","delivery_key":"x","envelope":{"protocol_version":"v1","id":"x","to":"*"}}',
    b"[" * 100_000, b'{"a":' * 50_000, b'"' + b"\\" * 99_999 + b'"', b"-" * 1000, b"1" * 10_000,
    '{"id":"é","to":"\ud7ff"}'.encode(),
]  # fmt: skip


@pytest.mark.parametrize("text", MEANINGLESS, ids=lambda text: repr(text[:30]))
def test_a_text_that_means_nothing_is_ignored(join: Join, text: bytes) -> None:
    alice, bob = join("alice"), join("bob")
    alice.send(text, text)
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]
    assert alice.peers() == [alice.name, bob.name]


def test_binary_messages_and_pings_are_ignored_whatever_is_in_them(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    lost = unique("binary")
    alice.socket.send(envelope(bob.name, lost))
    alice.socket.send(PEERS)
    alice.socket.ping(envelope(bob.name, "m1")[:100])
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]
    assert alice.peers() == [alice.name, bob.name]


def test_a_ping_between_the_fragments_of_a_message_is_answered(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    text = envelope(bob.name, unique())
    pieces = frame(text[:9], TEXT, False) + frame(b"?", PING) + frame(text[9:], CONTINUATION)
    alice.socket.socket.sendall(pieces + frame(b"", BINARY))
    assert bob.get().text == text


def test_a_second_register_is_ignored(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    other = unique("other")
    alice.send(register(other), register(bob.name), register(alice.name, "wrong"), register(alice.name))
    assert alice.peers() == [alice.name, bob.name]
    assert store.rows("select 1 from queues_mailbox where name = %s", other) == []
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


def test_a_deliver_from_a_client_is_ignored(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    inner = envelope(bob.name, unique("inner"))
    alice.send(b'{"protocol_version":"v1","type":"deliver","delivery_key":"k","envelope":%s}' % inner)
    alice.send(b'{"type":"deliver",' + envelope(bob.name, unique("disguised"))[1:])
    marker = alice.say(bob)
    assert bob.ids(1) == [marker]


def test_an_envelope_with_a_control_type_is_the_control_frame(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    sent = alice.say(bob)
    bob.get()
    bob.send(b'{"type":"ack",' + envelope(alice.name, sent)[1:])
    assert bob.peers() == [alice.name, bob.name]
    assert pending(store, bob.name) == []
    assert not alice.letters


# peers


def test_peers_lists_all_connected_peers_sorted_including_the_asking_one(join: Join) -> None:
    names = sorted(join(name).name for name in ("zoe", "adam", "Émile", "emil", "Zed", "_x", "10", "9"))
    asker = join("mid")
    assert asker.peers() == sorted([*names, asker.name])


@pytest.mark.parametrize(
    "request_",
    [
        b'{"type":"peers"}', b'{"protocol_version":"v1","type":"peers","names":null}',
        b'{"protocol_version":"v1","type":"peers","names":["x"]}', b'{"protocol_version":"v9","type":"peers"}',
        b' { "type" : "p\\u0065ers" } ',
    ],
)  # fmt: skip
def test_a_request_may_have_names_and_any_version(join: Join, request_: bytes) -> None:
    alice = join("alice")
    alice.send(request_)
    assert alice.answer() == [alice.name]


def test_each_request_is_answered_once_and_in_order(join: Join) -> None:
    alice = join("alice")
    alice.send(*[PEERS] * 500)
    assert [alice.answer() for _ in range(500)] == [[alice.name]] * 500
    alice.send(ack("nothing"))
    assert alice.peers() == [alice.name]


def test_an_answer_comes_when_everything_sent_before_it_is_stored(join: Join, store: Database) -> None:
    alice, bob = join("alice"), join("bob")
    store.execute("update queues_queue set paused = true where name = %s", f"_peer/{bob.name}")
    for _ in range(20):
        sent = [alice.say(bob) for _ in range(100)]
        alice.peers()
        assert pending(store, bob.name)[-100:] == sent


def test_a_name_is_in_the_answer_until_its_connection_has_ended(join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    assert alice.peers() == [alice.name, bob.name]
    carol = join("carol")
    bob.close()
    while bob.name in alice.peers():
        pass
    assert alice.peers() == [alice.name, carol.name]
