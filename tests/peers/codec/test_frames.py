"""Frames: what the broker reads and writes, what a client reads."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec import frames
from peers.codec.envelope import Envelope
from peers.codec.frames import (
    Ack,
    Deliver,
    Ignored,
    Peers,
    PeersRequest,
    Register,
    Rejection,
    ack_frame,
    deliver_frame,
    deliver_frames,
    handshake,
    is_typed,
    parse_frame,
    parse_pushed,
    peers_frame,
    peers_request,
    plain_acks,
    plain_envelopes,
    register_frame,
)
from queues.formats.canonical import json_string
from tests.peers.strategies import spelled, texts
from tests.peers.vectors import FIRST, VECTORS

REGISTER = {"protocol_version": "v1", "type": "register", "token": "t", "name": "alice"}
ENVELOPE = {
    "protocol_version": "v1", "id": "1", "from": "alice", "to": "bob", "ts": "now", "source": "s", "kind": "msg",
    "body": {"a": 1}, "hmac": "00",
}  # fmt: skip


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


# The handshake


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (None, 1003, "handshake must be text"),
        (b"", 1007, "malformed handshake"),
        (b"register", 1007, "malformed handshake"),
        (dumped(REGISTER)[:-1], 1007, "malformed handshake"),
        (dumped(REGISTER | {"type": 1}), 1007, "malformed handshake"),
        (dumped(REGISTER | {"type": "ack", "token": 1}), 1007, "malformed handshake"),
        (dumped(REGISTER | {"protocol_version": 1}), 1007, "malformed handshake"),
        (dumped(REGISTER | {"name": ["alice"]}), 1007, "malformed handshake"),
        (b"[]", 1008, "first frame must be register"),
        (b"null", 1008, "first frame must be register"),
        (b"{}", 1008, "first frame must be register"),
        (dumped(REGISTER | {"type": "peers"}), 1008, "first frame must be register"),
        (dumped(REGISTER | {"type": None}), 1008, "first frame must be register"),
        (dumped(REGISTER | {"type": "Register", "protocol_version": "v2"}), 1008, "first frame must be register"),
        (FIRST.encode(), 1008, "first frame must be register"),
        (dumped({"type": "register", "token": "t", "name": "a"}), 1008, "unsupported protocol version"),
        (dumped(REGISTER | {"protocol_version": "v2", "name": ""}), 1008, "unsupported protocol version"),
        (dumped(REGISTER | {"name": ""}), 1008, "empty peer name"),
        (dumped(REGISTER | {"name": None}), 1008, "empty peer name"),
        (dumped(REGISTER | {"name": "x" * 241}), 1008, "peer name cannot be used"),
        (dumped(REGISTER | {"name": "a\0"}), 1008, "peer name cannot be used"),
        (dumped(REGISTER | {"name": "*"}), 1008, "peer name cannot be used"),
        (dumped(REGISTER | {"name": "queue:a"}), 1008, "peer name cannot be used"),
        (dumped(REGISTER | {"name": "topic:"}), 1008, "peer name cannot be used"),
    ],
)
def test_a_first_frame_that_is_no_register_is_refused_with_its_reason(
    text: bytes | None, code: int, reason: str
) -> None:
    assert handshake(text) == Rejection(code, reason)


@pytest.mark.parametrize("version", VECTORS["versions to reject"])
def test_other_versions_are_refused(version: str) -> None:
    assert handshake(dumped(REGISTER | {"protocol_version": version})) == frames.UNSUPPORTED_VERSION
    assert parse_frame(dumped(ENVELOPE | {"protocol_version": version})) == frames.OTHER_VERSION


@pytest.mark.parametrize(
    "name", ["alice", "ü" * 240, "Queue:a", "queue", "peer:a", "**", "a|b", " ", "\x01", "😀" * 240]
)
def test_a_register_is_read(name: str) -> None:
    assert handshake(dumped(REGISTER | {"name": name})) == Register("t", name)


def test_a_register_may_be_without_a_token_which_is_then_refused_as_one() -> None:
    without = {key: value for key, value in REGISTER.items() if key != "token"}
    assert handshake(dumped(without)) == Register("", "alice")
    assert handshake(dumped(without | {"token": None})) == Register("", "alice")


def test_the_reasons_that_are_decided_elsewhere_are_those_that_clients_match() -> None:
    assert [
        frames.NO_FRAME, frames.INVALID_TOKEN, frames.PERSISTENCE_FAILED, frames.NAME_CLAIMED, frames.SLOW_CONSUMER
    ] == [
        (1002, "no handshake frame"),
        (1008, "invalid bearer token"),
        (1011, "peer persistence failed"),
        (1008, "name claimed under a different token"),
        (1008, "slow consumer"),
    ]  # fmt: skip


@given(st.binary(max_size=80) | spelled())
def test_any_first_frame_is_read_or_refused(text: bytes) -> None:
    assert isinstance(handshake(text), Register | Rejection)


# Hypothesis also takes strings out of our own code, so what cannot be a name has to be left out.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=2).filter(
    lambda name: not name.startswith(("queue:", "topic:"))
)


@given(token=texts, name=NAMES)
def test_a_register_is_read_as_it_was_written(token: str, name: str) -> None:
    assert handshake(register_frame(token, name)) == Register(token, name)


# Frames of a client


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_an_ack_is_read_as_it_was_written(key: str) -> None:
    assert parse_frame(ack_frame(key)) == Ack(key)


PLAIN = st.text(st.sampled_from([chr(code) for code in range(0x20, 0x7F) if chr(code) not in '"\\<>&']), min_size=1)


@given(st.lists(PLAIN, min_size=1))
def test_plain_acks_are_read_together_as_they_were_written(keys: list[str]) -> None:
    assert plain_acks([*map(ack_frame, keys)]) == keys


OTHERS = [
    peers_request(), dumped({"type": "ack", "id": "1"}), ack_frame("1") + b" ", ack_frame("ü"), ack_frame("a\n"),
    ack_frame(""), ack_frame("x" * 1474), ack_frame("<"), ack_frame("1")[:-1] + b',"id":"2"}', b" " + ack_frame("1"),
    ack_frame("1")[:-1] + b"\n}", ack_frame("1") + b"\n", b"x\n" + ack_frame("1"), b"",
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS)
def test_acks_that_are_not_all_plain_are_not_read_together(other: bytes) -> None:
    assert plain_acks([other]) == []
    assert plain_acks([ack_frame("1"), other]) == plain_acks([ack_frame("1"), other, ack_frame("2")]) == []


def test_a_line_feed_in_one_text_does_not_make_up_for_another_text() -> None:
    assert plain_acks([ack_frame("1"), b"x\n" + ack_frame("2"), b"x"]) == []


@pytest.mark.parametrize(
    ("given", "frame"),
    [
        ({"type": "ack", "id": "1"}, Ack("1")),
        ({"type": "ack", "id": "1", "protocol_version": "v9"}, Ack("1")),
        ({"type": "ack", "id": "x" * 1473}, Ack("x" * 1473)),
        ({"type": "ack", "id": "x" * 1474}, frames.UNKNOWN_ACK),
        ({"type": "ack", "id": "x" * 512 + "|" + "😀" * 240}, Ack("x" * 512 + "|" + "😀" * 240)),
        ({"type": "ack", "id": "x" * 513 + "|" + "😀" * 240}, frames.UNKNOWN_ACK),
        ({"type": "ack", "id": "😀" * 753}, frames.UNKNOWN_ACK),
        ({"type": "ack", "id": "a\0"}, frames.UNKNOWN_ACK),
        ({"type": "ack", "id": ""}, frames.EMPTY_ACK),
        ({"type": "ack", "id": None}, frames.EMPTY_ACK),
        ({"type": "ack"}, frames.EMPTY_ACK),
        ({"type": "ack", "id": 1}, frames.WRONG_TYPE),
        (ENVELOPE | {"type": "ack"}, Ack("1")),
        ({"type": "peers"}, PeersRequest()),
        ({"type": "peers", "names": 1}, PeersRequest()),
        (REGISTER, Register("t", "alice")),
        (REGISTER | {"name": 1}, frames.WRONG_TYPE),
        ({"type": "deliver"}, frames.WRONG_DIRECTION),
        (ENVELOPE | {"type": "deliver"}, frames.WRONG_DIRECTION),
        ([], frames.NO_OBJECT),
        ("peers", frames.NO_OBJECT),
        (None, frames.NO_OBJECT),
    ],
)
def test_control_frames_are_read_or_ignored(given: object, frame: frames.Frame) -> None:
    assert parse_frame(dumped(given)) == frame


def test_a_peers_request_is_read_as_it_was_written() -> None:
    assert parse_frame(peers_request()) == PeersRequest()


@pytest.mark.parametrize("kind", ["msg", "letter", "", None, 7, ["ack"], {"ack": 1}])
def test_a_frame_of_any_other_type_is_an_envelope(kind: object) -> None:
    text = dumped(ENVELOPE | {"type": kind})
    assert parse_frame(text) == Envelope("1", "alice", "bob", "now", "s", "msg", "00", text)


def test_an_envelope_is_kept_byte_for_byte() -> None:
    text = b' \n{ "to":"bob" , "protocol_version" : "v1","id":"\\u0031", "body" :1.0}\t '
    assert parse_frame(text) == Envelope("1", "", "bob", "", "", "", "", text)


def test_an_envelope_that_the_standard_library_must_read_is_read_too() -> None:
    text = b'{"protocol_version":"v1","id":"a\\ud800","to":"bob","body":[1e400,"\\ude00"]}'
    assert parse_frame(text) == Envelope("a\ufffd", "", "bob", "", "", "", "", text)


def test_the_last_of_equal_fields_counts() -> None:
    frame = parse_frame(b'{"protocol_version":"v1","id":"1","to":"eve","to":"bob"}')
    assert isinstance(frame, Envelope)
    assert frame.to == "bob"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"protocol_version": None}, "unsupported protocol version"),
        ({"protocol_version": 1}, "unsupported protocol version"),
        ({"id": ""}, "envelope without an id"),
        ({"id": None}, "envelope without an id"),
        ({"to": ""}, "envelope without a recipient"),
        ({"to": None}, "envelope without a recipient"),
        ({"id": 1}, "field of a wrong type"),
        ({"to": ["bob"]}, "field of a wrong type"),
        ({"from": 1}, "field of a wrong type"),
        ({"ts": 1}, "field of a wrong type"),
        ({"source": {}}, "field of a wrong type"),
        ({"kind": 0}, "field of a wrong type"),
        ({"hmac": False}, "field of a wrong type"),
        ({"id": None, "hmac": 1}, "field of a wrong type"),
        ({"to": "*"}, "kind and recipient disagree"),
        ({"to": "*", "kind": None}, "kind and recipient disagree"),
        ({"to": "bob", "kind": "broadcast"}, "kind and recipient disagree"),
        ({"to": "b\0"}, "id or recipient that cannot be stored"),
        ({"to": "topic:" + "x" * 1039}, "id or recipient that cannot be stored"),
        ({"to": "😀" * 262}, "id or recipient that cannot be stored"),
        ({"id": "\0"}, "id or recipient that cannot be stored"),
        ({"id": "x" * 513}, "id or recipient that cannot be stored"),
        ({"id": "ü" * 257}, "id or recipient that cannot be stored"),
    ],
)
def test_an_envelope_that_cannot_be_routed_is_ignored(given: dict[str, Any], reason: str) -> None:
    assert parse_frame(dumped(ENVELOPE | given)) == Ignored(reason)


@pytest.mark.parametrize(
    "given",
    [
        {"id": "x" * 512}, {"id": "ü" * 256}, {"to": "*", "kind": "broadcast"}, {"kind": "letter"}, {"kind": None},
        {"from": None, "ts": None, "source": None, "hmac": None}, {"body": None}, {"more": 1}, {"to": "queue:a"},
    ],
)  # fmt: skip
def test_an_envelope_that_can_be_routed_is(given: dict[str, Any]) -> None:
    frame = parse_frame(dumped(ENVELOPE | given))
    assert isinstance(frame, Envelope)
    assert {"id": frame.id, "to": frame.to, "from": frame.sender, "kind": frame.kind} == {
        key: (ENVELOPE | given)[key] or "" for key in ("id", "to", "from", "kind")
    }


@pytest.mark.parametrize(
    ("id", "to", "key"),
    [
        ("1", "bob", "1"),
        ("<" * 512, "bob", "<" * 512),
        ("ü\n", "bob", "ü\n"),
        ("1", "*", "1|" + "\x01" * 240),
        ("<" * 512, "*", "<" * 512 + "|" + "\x01" * 240),
    ],
)
def test_an_envelope_is_taken_just_as_long_as_its_deliver_frame_fits_into_one_mebibyte(
    id: str, to: str, key: str
) -> None:
    fields = {"protocol_version": "v1", "id": id, "to": to, "kind": "broadcast" if to == "*" else "msg"}
    empty = dumped(fields)
    largest = empty + b" " * (2**20 - len(deliver_frame(key, empty)))
    assert len(deliver_frame(key, largest)) == 2**20
    assert isinstance(parse_frame(largest), Envelope)
    assert parse_frame(largest + b" ") == frames.TOO_LARGE


def test_letters_are_read_together_as_each_by_itself() -> None:
    texts = [
        dumped(ENVELOPE | {"id": id, "to": to, "kind": kind})
        for id, to, kind in [("1", "bob", "msg"), ("ü\n", "queue:a", ""), ("x" * 128, "x" * 128, "letter")]
    ]
    alone = [frame for frame in map(parse_frame, texts) if isinstance(frame, Envelope)]
    assert plain_envelopes(texts) == ([frame.id for frame in alone], [frame.to for frame in alone])
    assert [len(column) for column in plain_envelopes(texts)] == [3, 3]


UNUSUAL: list[dict[str, Any]] = [
    {"type": "ack"}, {"type": None}, {"id": ""}, {"id": 1}, {"id": "\0"}, {"id": "x" * 129}, {"to": ""}, {"to": None},
    {"to": "*"}, {"to": "b\0"}, {"to": "x" * 129}, {"kind": "broadcast"}, {"kind": 0}, {"from": None}, {"ts": 1},
    {"source": {}}, {"hmac": False}, {"protocol_version": "v2"}, {"protocol_version": ["v1"]},
    {"protocol_version": None}, {"body": "x" * 2**20},
]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        *(dumped(ENVELOPE | given) for given in UNUSUAL),
        dumped({key: value for key, value in ENVELOPE.items() if key != "hmac"}),
        dumped(ENVELOPE)[:-1] + b',"more":"\\ud800"}',
        b"", b"null", b"7", b'"id"', b"[]", b"{", dumped(ENVELOPE) + b"," + dumped(ENVELOPE),
    ],
)  # fmt: skip
def test_letters_that_are_not_all_in_the_usual_form_are_not_read_together(other: bytes) -> None:
    good = dumped(ENVELOPE)
    assert plain_envelopes([good]) == (["1"], ["bob"])
    assert plain_envelopes([other]) == plain_envelopes([good, other, good]) == ([], [])


def test_frames_of_a_type_are_known_by_their_usual_beginning() -> None:
    assert [*map(is_typed, (peers_request(), ack_frame("1"), register_frame("t", "n"), dumped(ENVELOPE)))] == [
        True, True, True, False,
    ]  # fmt: skip


@given(st.binary(max_size=80) | spelled())
def test_any_bytes_are_a_frame_or_ignored(text: bytes) -> None:
    assert isinstance(parse_frame(text), frames.Frame)
    assert isinstance(parse_pushed(text), frames.Pushed)


# Frames of the broker


@given(key=texts.filter(bool), body=spelled())
def test_a_delivery_is_read_as_it_was_written(key: str, body: bytes) -> None:
    text = dumped(ENVELOPE).replace(b'{"a": 1}', body)
    frame = deliver_frame(key, text)
    assert frame == (
        b'{"protocol_version":"v1","type":"deliver","delivery_key":' + json_string(key).encode() +
        b',"envelope":' + text + b"}"
    )  # fmt: skip
    assert json.loads(frame)["delivery_key"] == key
    assert parse_pushed(frame) == Deliver(key, Envelope("1", "alice", "bob", "now", "s", "msg", "00", text))


@given(st.lists(st.tuples(texts.filter(bool), st.binary()), min_size=1))
def test_deliveries_written_together_are_those_written_alone(given: list[tuple[str, bytes]]) -> None:
    keys, envelopes = [key for key, _ in given], [envelope for _, envelope in given]
    assert deliver_frames(keys, envelopes) == [*map(deliver_frame, keys, envelopes)]
    assert deliver_frames(["1", "2"], [b"{}", b"[]"]) == [deliver_frame("1", b"{}"), deliver_frame("2", b"[]")]


def test_whitespace_around_an_envelope_is_no_part_of_it() -> None:
    frame = parse_pushed(deliver_frame("k", b" \n" + dumped(ENVELOPE) + b"\t "))
    assert isinstance(frame, Deliver)
    assert frame.envelope.text == dumped(ENVELOPE)


@given(st.lists(texts))
def test_the_names_of_peers_are_read_as_they_were_written(names: list[str]) -> None:
    assert parse_pushed(peers_frame(names)) == Peers(names)


def test_frames_are_spelled_as_in_the_specification() -> None:
    assert register_frame("t", "alice") == json.dumps(REGISTER, separators=(",", ":")).encode()
    assert ack_frame("1|bob") == b'{"protocol_version":"v1","type":"ack","id":"1|bob"}'
    assert peers_request() == b'{"protocol_version":"v1","type":"peers"}'
    assert peers_frame(["a", "<b>"]) == b'{"protocol_version":"v1","type":"peers","names":["a","\\u003cb\\u003e"]}'


@pytest.mark.parametrize(
    ("given", "frame"),
    [
        ({"type": "peers"}, Peers([])),
        ({"type": "peers", "names": None}, Peers([])),
        ({"type": "peers", "names": "a"}, frames.WRONG_TYPE),
        ({"type": "peers", "names": ["a", 1]}, frames.WRONG_TYPE),
        ({"type": "deliver", "envelope": ENVELOPE}, frames.NO_KEY),
        ({"type": "deliver", "envelope": ENVELOPE, "delivery_key": ""}, frames.NO_KEY),
        ({"type": "deliver", "envelope": ENVELOPE, "delivery_key": 1}, frames.NO_KEY),
        ({"type": "deliver", "delivery_key": "1"}, frames.NO_OBJECT),
        ({"type": "deliver", "delivery_key": "1", "envelope": []}, frames.NO_OBJECT),
        (
            {"type": "deliver", "delivery_key": "1", "envelope": ENVELOPE | {"protocol_version": "v2"}},
            frames.OTHER_VERSION,
        ),
        ({"type": "deliver", "delivery_key": "1", "envelope": ENVELOPE | {"id": ""}}, frames.NO_ID),
        ({"type": "ack", "id": "1"}, frames.WRONG_DIRECTION),
        (ENVELOPE, frames.WRONG_DIRECTION),
        ({"type": 1}, frames.WRONG_DIRECTION),
    ],
)
def test_frames_that_a_client_cannot_use_are_ignored(given: dict[str, Any], frame: frames.Pushed) -> None:
    assert parse_pushed(dumped(given)) == frame


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"type":peers}',
        b'{"type":"deliver","delivery_key":"1","envelope":{"id":1,}}',
        b'{"type":"peers","names":[}',
    ],
)
def test_invalid_json_is_ignored_by_a_client(text: bytes) -> None:
    assert parse_pushed(text) == frames.NOT_JSON
