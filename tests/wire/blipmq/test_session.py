"""BlipMQ against a running broker: the handshake, every refusal, every end of a connection, byte for byte."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests.wire.broker import KEY, Blip, Broker, Database, Frame, nack
from wire.blipmq import codec
from wire.blipmq.codec import ACK, MAX_FRAME_SIZE, NACK, PONG, PUBLISH
from wire.blipmq.delivery import TURN

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["blipmq"]
SEED = {name: bytes.fromhex(text) for name, text in VECTORS["seed"].items()}
MORE = {name: bytes.fromhex(text) for name, text in VECTORS["more"].items()}

HELLO = codec.encode_hello(1)
AUTH = codec.encode_auth(2, KEY)
OK_HELLO, OK_AUTH = Frame(ACK, 1, bytes(8)), Frame(ACK, 2, bytes(8))


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store) as running:
        yield running


@pytest.fixture
def stranger(broker: Broker) -> Iterator[Blip]:
    """A connection that has said nothing yet."""
    with Blip(broker.blipmq, key="") as connection:
        yield connection


@pytest.fixture
def client(broker: Broker) -> Iterator[Blip]:
    """An authenticated connection."""
    with Blip(broker.blipmq) as connection:
        yield connection


# The published vectors.


def test_the_published_bytes_are_understood_and_answered_byte_for_byte(stranger: Blip, store: Database) -> None:
    stranger.send(SEED["HELLO v1 cid 1"])
    assert stranger.take(21) == MORE["ACK(0) cid 1"]
    stranger.send(SEED["AUTH dev-key cid 2"])
    assert stranger.take(21) == codec.encode_ack(2, 0)
    # Subscription 42 is the next one, so that the published ACK is the very answer.
    store.execute("select setval('queues_subscription_id_seq', 41)")
    stranger.send(SEED["SUBSCRIBE demo qos1 cid 3"])
    assert stranger.take(21) == SEED["ACK sub 42 cid 3"]
    stranger.send(SEED["PUBLISH demo qos1 hi cid 4"])
    (delivery,) = wait_until(lambda: stranger.ask(MORE["POLL sub 42 cid 5"]))
    assert codec.encode(*delivery) == MORE["delivery qos1 tag 1 demo hi"]
    stranger.send(SEED["ACK sub 42 cid 3"])
    assert stranger.read() == nack(3, 404, "unknown subscription or delivery tag")
    stranger.send(MORE["bad PUBLISH cid 400 (empty topic)"])
    assert stranger.read() == nack(400, 400, "empty topic")
    stranger.send(codec.encode_ack(12345, 99))
    assert stranger.take(53) == MORE["NACK 404 cid 12345"]


def test_published_refusals_are_sent_byte_for_byte(stranger: Blip) -> None:
    stranger.send(codec.encode_ping(9))
    assert stranger.take(32) == MORE["NACK 401 unauthenticated cid 9"]
    stranger.send(codec.encode_hello(1, 2))
    assert stranger.take(45) == MORE["NACK 426 cid 1"]


# The handshake.


@pytest.mark.parametrize(
    "frame",
    [
        codec.encode_publish(9, 1, b"t", b"x"),
        codec.encode_subscribe(9, b"t", 1),
        codec.encode_ack(9, 1),
        codec.encode_poll(9, 1),
        codec.encode_ping(9),
        codec.encode(codec.PUBLISH, 9, b"malformed"),
    ],
    ids=["PUBLISH", "SUBSCRIBE", "ACK", "POLL", "PING", "malformed PUBLISH"],
)
def test_everything_before_authentication_is_unauthenticated(stranger: Blip, frame: bytes) -> None:
    stranger.send(frame, HELLO, frame, AUTH)
    assert stranger.read() == nack(9, 401, "unauthenticated")
    assert stranger.read() == OK_HELLO
    assert stranger.read() == nack(9, 401, "unauthenticated")
    assert stranger.read() == OK_AUTH


def test_a_publish_before_authentication_is_not_stored(stranger: Blip, client: Blip) -> None:
    subscription = client.subscribe(b"early")
    stranger.send(codec.encode_publish(9, 1, b"early", b"x"), HELLO, AUTH)
    assert [stranger.read().cid for _ in range(3)] == [9, 1, 2]
    assert stranger.ask() == []
    assert client.poll(subscription) is None


def test_auth_before_hello_is_refused_whatever_its_payload(stranger: Blip) -> None:
    stranger.send(AUTH, codec.encode(codec.AUTH, 3, b"\xff"))
    assert stranger.read() == nack(2, 400, "HELLO not performed")
    assert stranger.read() == nack(3, 400, "HELLO not performed")


def test_a_wrong_version_may_be_retried(stranger: Blip) -> None:
    stranger.send(codec.encode_hello(5, 2), AUTH, HELLO, AUTH)
    assert stranger.read() == nack(5, 426, "unsupported protocol version")
    assert stranger.read() == nack(2, 400, "HELLO not performed")
    assert [stranger.read(), stranger.read()] == [OK_HELLO, OK_AUTH]


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x00\x01\x00"])
def test_a_hello_that_is_not_two_bytes_is_invalid_and_may_be_retried(stranger: Blip, payload: bytes) -> None:
    stranger.send(codec.encode(codec.HELLO, 6, payload), HELLO)
    assert stranger.read() == nack(6, 400, "invalid HELLO payload")
    assert stranger.read() == OK_HELLO


@pytest.mark.parametrize("payload", [b"", b"\x00", b"\x00\x04key", b"\x00\x02key", b"\x00\x01\xff"])
def test_a_malformed_auth_is_invalid_and_may_be_retried(stranger: Blip, payload: bytes) -> None:
    stranger.send(HELLO, codec.encode(codec.AUTH, 6, payload), AUTH)
    assert stranger.read() == OK_HELLO
    assert stranger.read() == nack(6, 400, "invalid AUTH payload")
    assert stranger.read() == OK_AUTH


def test_hello_twice_is_refused_before_and_after_authentication(stranger: Blip) -> None:
    stranger.send(HELLO, codec.encode_hello(5), AUTH, codec.encode_hello(6), codec.encode_hello(7, 2))
    assert stranger.read() == OK_HELLO
    assert stranger.read() == nack(5, 400, "HELLO already performed")
    assert stranger.read() == OK_AUTH
    assert stranger.read() == nack(6, 400, "HELLO already performed")
    assert stranger.read() == nack(7, 400, "HELLO already performed")


def test_auth_twice_is_refused_whatever_its_payload(client: Blip) -> None:
    frames = client.ask(codec.encode_auth(5, KEY), codec.encode(codec.AUTH, 6, b"\xff"))
    assert frames == [nack(5, 400, "already authenticated"), nack(6, 400, "already authenticated")]


def test_a_wrong_key_may_be_retried(stranger: Blip) -> None:
    stranger.send(HELLO, codec.encode_auth(5, "wrong"), codec.encode_ping(6), AUTH)
    assert stranger.read() == OK_HELLO
    assert stranger.read() == nack(5, 401, "invalid API key")
    assert stranger.read() == nack(6, 401, "unauthenticated")
    assert stranger.read() == OK_AUTH


def test_a_key_of_another_protocol_is_invalid_here(stranger: Blip, store: Database) -> None:
    store.add_key("for overhop", protocol="overhop")
    store.add_key("for blipmq", protocol="blipmq")
    stranger.send(HELLO, codec.encode_auth(5, "for overhop"), codec.encode_auth(6, "for blipmq"))
    assert stranger.read() == OK_HELLO
    assert stranger.read() == nack(5, 401, "invalid API key")
    assert stranger.read() == Frame(ACK, 6, bytes(8))


# Payloads, in the documents' order of checks.


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "invalid PUBLISH payload"),
        (b"\x01\x00", "invalid PUBLISH payload"),
        (b"\x01\x00\x05demo", "invalid PUBLISH payload"),
        (b"\x07\x00\x05demo", "invalid PUBLISH payload"),
        (b"\x01\x00\x01\xff", "invalid PUBLISH payload"),
        (b"\x01\x00\x00body", "empty topic"),
        (b"\x07\x00\x00body", "empty topic"),
        (b"\x02\x00\x04demobody", "invalid QoS value"),
    ],
)
def test_a_bad_publish_is_refused_with_its_correlation_id(client: Blip, payload: bytes, message: str) -> None:
    assert client.ask(codec.encode(codec.PUBLISH, 11, payload)) == [nack(11, 400, message)]


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"", "invalid SUBSCRIBE payload"),
        (b"\x00", "invalid SUBSCRIBE payload"),
        (b"\x00\x04demo", "invalid SUBSCRIBE payload"),
        (b"\x00\x01\xff\x01", "invalid SUBSCRIBE payload"),
        (b"\x00\x00\x01", "empty topic"),
        (b"\x00\x00\x07", "empty topic"),
        (b"\x00\x04demo\x02", "invalid QoS value"),
    ],
)
def test_a_bad_subscribe_is_refused_and_makes_no_subscription(
    client: Blip, store: Database, payload: bytes, message: str
) -> None:
    before = store.value("select count(*) from queues_subscription")
    assert client.ask(codec.encode(codec.SUBSCRIBE, 12, payload)) == [nack(12, 400, message)]
    assert store.value("select count(*) from queues_subscription") == before


@pytest.mark.parametrize(("kind", "name"), [(codec.ACK, "ACK"), (codec.POLL, "POLL")])
def test_ack_and_poll_want_eight_bytes_that_are_not_zero(client: Blip, kind: int, name: str) -> None:
    frames = client.ask(
        codec.encode(kind, 13, b""),
        codec.encode(kind, 14, bytes(7)),
        codec.encode(kind, 15, b"\x01" * 9),
        codec.encode(kind, 16, bytes(8)),
    )
    invalid = f"invalid {name} payload"
    assert frames == [
        nack(13, 400, invalid),
        nack(14, 400, invalid),
        nack(15, 400, invalid),
        nack(16, 400, "subscription_id must be non-zero"),
    ]


@pytest.mark.parametrize("id", [999_999_999, 1 << 63, (1 << 64) - 1])
def test_an_unknown_subscription_is_silent_for_poll_and_404_for_ack(client: Blip, id: int) -> None:
    assert client.ask(codec.encode_poll(5, id)) == []
    assert client.ask(codec.encode_ack(6, id)) == [nack(6, 404, "unknown subscription or delivery tag")]


@pytest.mark.parametrize("tag", [0, 5, 1 << 63, (1 << 64) - 1])
def test_an_ack_of_an_unknown_tag_is_404_with_that_tag(client: Blip, tag: int) -> None:
    subscription = client.subscribe(b"tags")
    answer = nack(tag, 404, "unknown subscription or delivery tag")
    assert client.ask(codec.encode_ack(tag, subscription)) == [answer]


def test_refusals_come_in_the_order_of_the_requests(client: Blip) -> None:
    subscription = client.subscribe(b"order")
    frames = client.ask(
        codec.encode_ack(71, subscription),
        codec.encode(codec.ACK, 72, bytes(8)),
        codec.encode_ack(73, 999_999_999),
        codec.encode_publish(74, 1, b"", b""),
        codec.encode_ack(75, subscription),
        codec.encode_ping(76),
        codec.encode(codec.ACK, 77, b""),
    )
    assert [frame.cid for frame in frames] == [71, 72, 73, 74, 75, 76, 77]


def test_ping_is_answered_with_its_correlation_id_and_nothing_else(client: Blip) -> None:
    largest = (1 << 64) - 1
    assert client.ask(codec.encode_ping(largest), codec.encode_ping(0)) == [Frame(PONG, largest), Frame(PONG, 0)]


def test_pong_and_nack_from_a_client_are_ignored(client: Blip) -> None:
    assert client.ask(codec.encode_pong(5), codec.encode_nack(6, 400, "what"), codec.encode(codec.NACK, 7, b"?")) == []


# Framing.


@pytest.mark.parametrize(
    "data",
    [
        bytes(4),
        (8).to_bytes(4, "big"),
        (MAX_FRAME_SIZE + 1).to_bytes(4, "big"),
        b"\xff" * 4,
        codec.HEADER.pack(9, 0, 1),
        codec.HEADER.pack(9, 10, 1),
        codec.HEADER.pack(9, 255, 1),
    ],
    ids=["length 0", "length 8", "over 16 MiB", "length 2**32-1", "type 0", "type 10", "type 255"],
)
def test_a_frame_error_closes_the_connection_without_a_word(client: Blip, data: bytes) -> None:
    client.send(data)
    assert client.rest() == b""


def test_frames_before_a_frame_error_are_answered_and_kept(client: Blip, broker: Broker) -> None:
    subscription = client.subscribe(b"before the error")
    client.send(codec.encode_publish(4, 1, b"before the error", b"kept"), codec.encode_ping(5), bytes(4))
    assert client.rest() == codec.encode_pong(5)
    with Blip(broker.blipmq) as other:
        assert other.next(subscription).body == b"kept"


def test_a_whole_session_cut_at_every_byte_is_the_same_session(stranger: Blip) -> None:
    session = (HELLO, AUTH, codec.encode_subscribe(3, b"cut", 1), codec.encode_publish(4, 1, b"cut", b"hi"))
    for byte in b"".join(session):
        stranger.send(bytes((byte,)))
    assert [stranger.read(), stranger.read()] == [OK_HELLO, OK_AUTH]
    subscription = stranger.read().subscription
    frames: list[Frame] = []
    while not frames:
        for byte in codec.encode_poll(5, subscription):
            stranger.send(bytes((byte,)))
        frames = stranger.ask()
    assert [frame.body for frame in frames] == [b"hi"]


def test_a_whole_session_in_one_packet_is_answered_in_order(stranger: Blip, store: Database) -> None:
    next_id = store.value("select nextval('queues_subscription_id_seq')") + 1
    stranger.send(
        HELLO,
        AUTH,
        codec.encode_subscribe(3, b"packet", 1),
        codec.encode_publish(4, 1, b"packet", b"one"),
        codec.encode_publish(5, 1, b"packet", b"two"),
        codec.encode_publish(6, 1, b"packet", b"three"),
        codec.encode_publish(7, 2, b"packet", b"bad"),
        codec.encode_ping(8),
    )
    frames = [stranger.read() for _ in range(5)]
    assert [(frame.kind, frame.cid) for frame in frames] == [(ACK, 1), (ACK, 2), (ACK, 3), (NACK, 7), (PONG, 8)]
    assert stranger.next(next_id).body == b"one"  # with it all three have come into memory
    poll = codec.encode_poll(9, next_id)
    acks = [codec.encode_ack(tag, next_id) for tag in (1, 2, 3)]
    frames = stranger.ask(poll, acks[0], poll, acks[1], codec.encode_ping(10), acks[2], acks[2], poll)
    assert [(frame.kind, frame.cid) for frame in frames] == [(PUBLISH, 2), (PUBLISH, 3), (PONG, 10), (NACK, 3)]


def test_half_a_frame_at_the_end_of_the_stream_is_dropped_and_the_rest_answered(client: Blip) -> None:
    client.send(codec.encode_ping(5), codec.encode_ping(6)[:-1])
    client.end_of_input()
    assert client.rest() == codec.encode_pong(5)


def test_requests_before_the_end_of_input_are_still_answered(client: Blip) -> None:
    client.send(codec.encode_subscribe(3, b"last words", 1), codec.encode_ping(4))
    client.end_of_input()
    assert client.read().kind == ACK
    assert client.rest() == codec.encode_pong(4)


def test_thousands_of_frames_that_take_turns_are_answered_in_order_also_before_the_end_of_input(client: Blip) -> None:
    refused = codec.encode_publish(7, 1, b"", b"")
    client.send(*(refused + codec.encode_ping(n) for n in range(3 * TURN)))
    client.end_of_input()
    for n in range(3 * TURN):
        assert client.read() == nack(7, 400, "empty topic")
        assert client.read() == Frame(PONG, n)
    assert client.rest() == b""


def test_messages_of_a_client_that_publishes_and_hangs_up_are_all_kept(client: Blip, broker: Broker) -> None:
    subscription = client.subscribe(b"hang up")
    with Blip(broker.blipmq) as publisher:
        publisher.send(*(codec.encode_publish(4, 1, b"hang up", b"%d" % n) for n in range(500)))
    assert client.consume(subscription, 500) == [b"%d" % n for n in range(500)]


def test_a_frame_of_16_mib_passes_and_comes_back_byte_for_byte(client: Blip) -> None:
    subscription = client.subscribe(b"big")
    body = bytes(range(256)) * (MAX_FRAME_SIZE // 256)
    body = body[: MAX_FRAME_SIZE - 9 - 3 - len(b"big")]
    client.publish(b"big", body)
    delivery = client.next(subscription)
    assert delivery.body == body
    client.ack(delivery.cid, subscription)


# Rights.


def test_a_key_is_held_to_its_rights(broker: Broker, client: Blip, store: Database) -> None:
    store.add_key("orders only", publish=("orders.*",), consume=("invoices.*",))
    mine, other = client.subscribe(b"invoices.eu"), client.subscribe(b"orders.eu")
    client.publish(b"orders.eu", b"secret")
    with Blip(broker.blipmq, "orders only") as limited:
        assert limited.ask(codec.encode_publish(3, 1, b"orders.us", b"x")) == []
        assert limited.ask(codec.encode_publish(4, 1, b"invoices.eu", b"x")) == [nack(4, 401, "forbidden")]
        assert limited.ask(codec.encode_publish(4, 0, b"invoices.eu", b"x")) == [nack(4, 401, "forbidden")]
        assert limited.ask(codec.encode_subscribe(5, b"orders.eu", 1)) == [nack(5, 401, "forbidden")]
        assert limited.subscribe(b"invoices.us") > 0
        assert limited.ask(codec.encode_poll(6, mine)) == []
        assert limited.ask(codec.encode_poll(7, other)) == [nack(7, 401, "forbidden")]
        delivery = client.next(other)
        assert limited.ask(codec.encode_ack(delivery.cid, other)) == [nack(delivery.cid, 401, "forbidden")]
    assert client.poll(mine) is None
    client.ack(delivery.cid, other)


def test_a_right_that_is_missing_is_told_after_what_is_malformed(broker: Broker, store: Database) -> None:
    store.add_key("no rights", publish=(), consume=())
    with Blip(broker.blipmq, "no rights") as powerless:
        frames = powerless.ask(codec.encode_publish(3, 1, b"", b""), codec.encode_subscribe(4, b"t", 2))
        assert frames == [nack(3, 400, "empty topic"), nack(4, 400, "invalid QoS value")]


def test_a_revoked_key_ends_its_live_connections_within_a_second_and_no_others(
    broker: Broker, client: Blip, store: Database
) -> None:
    store.add_key("to be revoked")
    with Blip(broker.blipmq, "to be revoked") as revoked:
        assert revoked.ask() == []
        store.execute("update queues_apikey set revoked_at = now() where name = 'to be revoked'")
        revoked.socket.settimeout(5)  # more than a second: a machine may stand still
        assert revoked.rest() == b""
    with Blip(broker.blipmq, key="") as again:
        again.send(HELLO, codec.encode_auth(5, "to be revoked"))
        assert again.read() == OK_HELLO
        assert again.read() == nack(5, 401, "invalid API key")
    assert client.ask() == []


def test_a_right_that_is_taken_away_holds_at_once_for_new_connections(broker: Broker, store: Database) -> None:
    store.add_key("demoted")
    with Blip(broker.blipmq, "demoted") as before:
        assert before.subscribe(b"demoted") > 0
        store.execute("update queues_apikey set consume = '{}' where name = 'demoted'")
        assert before.rest() == b""
    with Blip(broker.blipmq, "demoted") as after:
        assert after.ask(codec.encode_subscribe(5, b"demoted", 1)) == [nack(5, 401, "forbidden")]


def test_an_address_that_tries_wrong_versions_and_keys_waits_longer_each_time(store: Database) -> None:
    with Broker(store) as broker, Blip(broker.blipmq, key="") as guesser, Blip(broker.blipmq) as honest:
        started = time.monotonic()
        guesser.send(*(codec.encode_hello(n, 2) for n in range(4)), HELLO)
        guesser.send(*(codec.encode_auth(n, f"guess {n}") for n in range(2)))
        assert honest.ask() == []
        assert [guesser.read().cid for _ in range(7)] == [0, 1, 2, 3, 1, 0, 1]
        assert time.monotonic() - started > 0.6  # 0.1 s, then 0.2 s, then 0.4 s, a little of it forgiven
