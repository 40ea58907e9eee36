"""The beginning of a connection, and every refusal: code, reason and the order of the checks."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from tests.peers.running import (
    PEERS,
    Close,
    Join,
    Launch,
    WebBroker,
    ack,
    close_of,
    closed_after,
    connected,
    envelope,
    register,
    unique,
)
from tests.peers.vectors import VECTORS
from tests.peers.web.serving import BINARY, CONTINUATION, TEXT, frame
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Database, Raw

NO_FRAME = Close(1002, "no handshake frame")
NOT_TEXT = Close(1003, "handshake must be text")
MALFORMED = Close(1007, "malformed handshake")
NOT_REGISTER = Close(1008, "first frame must be register")
VERSION = Close(1008, "unsupported protocol version")
EMPTY_NAME = Close(1008, "empty peer name")
TOKEN = Close(1008, "invalid bearer token")
CLAIMED = Close(1008, "name claimed under a different token")
TOO_BIG = 1009
MIB = 1 << 20


# The table, row by row. A frame that is wrong in two ways is closed for the one that is checked first.


@pytest.mark.parametrize("first", [b"", b"{}", b"\x00\xff", register("bob")])
def test_a_first_frame_that_is_binary(broker: WebBroker, first: bytes) -> None:
    assert closed_after(broker, first) == NOT_TEXT


@pytest.mark.parametrize(
    "first",
    ["", " ", "x", "{", "{}{}", "{'type':'register'}", '{"type":"register",}', "\ufeff{}", "NaN", '"\t"', "{}\0"],
)
def test_a_first_frame_that_is_not_json(broker: WebBroker, first: str) -> None:
    assert closed_after(broker, first) == MALFORMED


@pytest.mark.parametrize(
    "first",
    [
        b"{}", b"null", b"[]", b"1", b'"register"',
        PEERS, ack("m1"), envelope("bob", "m1"),
        register("bob", type="Register"), register("bob", type=""), register("bob", type=None),
        register("bob", type="deliver"), register("", "wrong", type="peers", protocol_version="v2"),
    ],
)  # fmt: skip
def test_a_first_frame_that_is_no_register(broker: WebBroker, first: bytes) -> None:
    assert closed_after(broker, first.decode()) == NOT_REGISTER


@pytest.mark.parametrize("version", [*VECTORS["versions to reject"], " v1", "v1 ", "1", None])
def test_a_register_of_another_version(broker: WebBroker, version: str | None) -> None:
    assert closed_after(broker, register(unique(), protocol_version=version).decode()) == VERSION


def test_the_version_is_looked_at_before_the_name_and_the_token(broker: WebBroker) -> None:
    assert closed_after(broker, register("", "wrong", protocol_version="v2").decode()) == VERSION


@pytest.mark.parametrize("token", [KEY, "wrong"])
@pytest.mark.parametrize("name", ["", None])
def test_a_register_without_a_name_whatever_the_token_is(broker: WebBroker, name: str | None, token: str) -> None:
    first = register("", token, name=name)
    assert closed_after(broker, first.decode()) == EMPTY_NAME


@pytest.mark.parametrize("token", ["wrong", "", None, KEY.upper(), KEY + " ", " " + KEY, KEY + "\0", "x" * 100_000])
def test_a_register_with_a_token_that_is_not_accepted(broker: WebBroker, token: str | None) -> None:
    assert closed_after(broker, register(unique(), token=token).decode()) == TOKEN


def test_a_register_with_a_token_that_is_no_text(broker: WebBroker) -> None:
    assert closed_after(broker, register(unique(), "?").decode().replace("?", r"\ud800")) == TOKEN


def test_the_token_is_checked_before_the_name(broker: WebBroker, join: Join) -> None:
    assert closed_after(broker, register(join("bob").name, "wrong").decode()) == TOKEN


def test_a_name_that_another_token_has(broker: WebBroker, join: Join, other_key: str) -> None:
    assert closed_after(broker, register(join("bob").name, other_key).decode()) == CLAIMED


@pytest.mark.parametrize("field", ["type", "protocol_version", "token", "name"])
def test_a_register_with_a_field_that_is_no_string(broker: WebBroker, field: str) -> None:
    assert closed_after(broker, register("bob", **{field: 5}).decode()) in (MALFORMED, NOT_REGISTER)


@pytest.mark.parametrize("name", ["*", "x" * 10_000, "nul\0", "queue:jobs", "topic:news"])
def test_a_name_that_no_peer_can_have(broker: WebBroker, name: str) -> None:
    code, reason = closed_after(broker, register(name).decode())
    assert code == 1008
    assert "name" in reason


# Time.


@pytest.fixture
def hasty(launch: Launch) -> Iterator[WebBroker]:
    """A broker that does not wait long for the register."""
    with launch(BROKER_PEERBUS_HANDSHAKE_TIMEOUT=4) as running:
        yield running


def test_no_frame_in_time(hasty: WebBroker) -> None:
    assert closed_after(hasty) == NO_FRAME


def test_pings_and_half_a_message_are_no_frame(hasty: WebBroker) -> None:
    with hasty.connect() as client:
        client.ping()
        client.socket.sendall(frame(register("bob"), TEXT, False))
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(PATIENCE)
    assert close_of(caught.value) == NO_FRAME


def test_a_registered_peer_may_be_silent(hasty: WebBroker, join: Join) -> None:
    bob = join("bob", hasty)
    assert closed_after(hasty) == NO_FRAME  # that is longer than the limit
    assert bob.peers() == [bob.name]


# Registers that are accepted.


@pytest.mark.parametrize("path", ["/ws/peerbus", "/", "/ws/peerbus/", "/any/other?path=1", "/admin/", "/%00"])
def test_any_path_is_peerbus(broker: WebBroker, join: Join, path: str) -> None:
    bob = join("bob", path=path)
    assert bob.peers() == [bob.name]


@pytest.mark.parametrize("origin", ["http://elsewhere.example", "null"])
def test_a_client_may_come_from_any_origin(broker: WebBroker, origin: str) -> None:
    with broker.connect(origin=origin) as client:
        client.send(register(unique()), text=True)
        assert b'"peers"' in client.recv(decode=False)


@pytest.mark.parametrize(
    "spelling",
    [
        '{"name":NAME,"token":TOKEN,"type":"register","protocol_version":"v1"}',
        ' \n{ "protocol_version" : "v1" , "type" : "register","token":TOKEN,\t"name":NAME }\r\n',
        '{"protocol_version":"v1","type":"register","token":TOKEN,"name":NAME,"client":{"more":[1,2.5,null]}}',
        r'{"protocol_version":"\u00761","type":"regis\u0074er","token":TOKEN,"name":NAME}',
        '{"type":"peers","protocol_version":"v1","type":"register","token":TOKEN,"name":"x","name":NAME}',
    ],
    ids=["order", "whitespace", "unknown fields", "escapes", "the last of equal keys counts"],
)
def test_a_register_may_be_spelled_as_json_allows(broker: WebBroker, spelling: str) -> None:
    name = unique("bob")
    text = spelling.replace("NAME", f'"{name}"').replace("TOKEN", f'"{KEY}"')
    with broker.connect() as client:
        client.send(text)
        assert name in client.recv()


def test_a_register_in_fragments_is_one_frame(broker: WebBroker) -> None:
    first = register(unique())
    with broker.connect() as client:
        client.socket.sendall(frame(first[:10], TEXT, False) + frame(first[10:20], CONTINUATION, False))
        client.socket.sendall(frame(first[20:], CONTINUATION))
        assert b'"peers"' in client.recv(decode=False)


def test_the_answer_to_register_lists_all_connected_peers(join: Join) -> None:
    alice = join("alice")
    assert alice.names == [alice.name]
    bob = join("bob")
    assert bob.names == [alice.name, bob.name]


def test_frames_right_behind_the_register_count_in_order(broker: WebBroker, join: Join) -> None:
    bob, name, sent = join("bob"), unique("hasty"), [unique() for _ in range(50)]
    with broker.connect() as client:
        messages = [register(name), *(envelope(bob.name, id) for id in sent), PEERS]
        client.socket.sendall(b"".join(map(frame, messages)))
        assert client.recv() == client.recv()
    assert bob.ids(50) == sent


def test_frames_right_behind_a_refused_register_do_not_count(broker: WebBroker, join: Join) -> None:
    alice, bob = join("alice"), join("bob")
    with broker.connect() as client:
        messages = [register(unique("refused"), "wrong"), envelope(bob.name, unique("not")), PEERS]
        client.socket.sendall(b"".join(map(frame, messages)))
        with pytest.raises(ConnectionClosed) as caught:
            client.recv(PATIENCE)
    assert close_of(caught.value) == TOKEN
    sent = alice.say(bob)
    assert bob.ids(1) == [sent]


# Sizes.


def test_a_register_of_1_mib_is_read_and_a_larger_one_is_too_big(broker: WebBroker) -> None:
    name = unique("large")
    text = register(name).decode()
    with broker.connect() as client:
        client.send(text.ljust(MIB))
        assert name in client.recv()
    assert closed_after(broker, text.ljust(MIB + 1)).code == TOO_BIG


def test_a_message_of_1_mib_is_read_and_a_larger_one_is_too_big(join: Join) -> None:
    alice = join("alice")
    alice.send(PEERS.ljust(MIB))
    assert alice.answer() == [alice.name]
    alice.send(PEERS.ljust(MIB + 1))
    assert alice.close_seen().code == TOO_BIG


def test_a_message_that_is_too_big_in_fragments_is_too_big(join: Join) -> None:
    alice = join("alice")
    piece = b" " * (MIB // 4)
    pieces = [frame(piece, TEXT, False), *[frame(piece, CONTINUATION, False)] * 3, frame(b" ", CONTINUATION)]
    alice.socket.socket.sendall(b"".join(pieces))
    assert alice.close_seen().code == TOO_BIG


def test_a_binary_message_that_is_too_big_is_too_big(join: Join) -> None:
    alice = join("alice")
    alice.socket.socket.sendall(frame(bytes(MIB + 1), BINARY))
    assert alice.close_seen().code == TOO_BIG


def test_text_that_is_not_utf_8_is_closed_with_1007(join: Join) -> None:
    alice = join("alice")
    alice.socket.socket.sendall(frame(b'{"type":"peers","x":"\xff"}'))
    assert alice.close_seen().code == 1007


# Clients that are no WebSocket clients.


def test_an_http_request_is_the_sites_business(broker: WebBroker) -> None:
    with Raw(broker.address) as raw:
        raw.send(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert raw.rest().startswith(b"HTTP/1.1 200")


def test_a_connection_that_never_asks_for_a_websocket_hurts_nobody(broker: WebBroker, join: Join) -> None:
    with Raw(broker.address) as raw:
        raw.send(b"\x16\x03\x01 not http at all\r\n\r\n")
        assert raw.rest().startswith((b"HTTP/1.1 400", b""))
    bob = join("bob")
    assert bob.peers() == [bob.name]


def test_a_key_has_only_so_many_connections_and_another_key_has_its_own(
    store: Database, launch: Launch, other_key: str, join: Join
) -> None:
    with launch(BROKER_MAX_CONNECTIONS_PER_KEY=2) as broker:
        first = join("few", broker)
        join("few", broker)
        assert closed_after(broker, register(unique()).decode()) == Close(1013, "too many connections with this token")
        join("other", broker, token=other_key)
        host, port = broker.address
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE) as page:
            assert 'fivewire_over_quota_total{of="connections"} 1.0' in page.read().decode()
        first.close()
        wait_until(lambda: first.name not in connected(store))
        join("few", broker)
