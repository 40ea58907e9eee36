"""A connection that is closed for its client's bytes, or silence, is counted by reason and logged with the words."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Iterator

import msgpack  # type: ignore[import-untyped]
import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker, Database
from tests.wire.overhop.peer import Peer, framed
from wire.blipmq.codec import MAX_HANDSHAKE_SIZE
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type

FLOAT = framed(msgpack.packb({"v": 2, "t": Type.DONE, "rid": "d1", "p": {"jid": "x", "result": {"at": 1.5e12}}}))


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    times = {"BROKER_OVERHOP_UNHELLOED_MAX_LIFETIME": 1, "BROKER_HANDSHAKE_TIMEOUT": 1, "BROKER_IDLE_TIMEOUT": 1}
    with Broker(store, "--status", "127.0.0.1:0", **times) as running:
        yield running


def say(address: tuple[str, int], data: bytes, source: str = "127.0.0.1") -> None:
    """Connect from an address of this machine, say this, and read until the broker closes."""
    with socket.create_connection(address, PATIENCE, (source, 0)) as connection:
        connection.sendall(data)
        while connection.recv(65536):
            pass


def closed(broker: Broker, protocol: str, reason: str) -> int:
    """The counter of a listener for a reason."""
    host, port = broker.addresses["status"]
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    name = rf'fivewire_connections_closed_total{{listener="{protocol} [^"]*",reason="{reason}"}} ([0-9.]+)'
    return sum(int(float(count)) for count in re.findall(name, text))


BYTES: dict[str, tuple[str, bytes, str]] = {
    "overhop float": ("overhop", FLOAT, "floats are not allowed at p.result.at"),
    "overhop length": ("overhop", b"GET / HTTP/1.1\r\n\r\n", "frame length is 1195725856"),
    "overhop out of turn": ("overhop", encoder.encode(Type.PING, "1", {}), "a message of type 3 is not allowed here"),
    "blipmq length": ("blipmq", b"GET / HTTP/1.1\r\n\r\n", "frame length 1195725856"),
    "blipmq before AUTH": ("blipmq", (MAX_HANDSHAKE_SIZE + 9).to_bytes(4, "big") + b"\x03" + bytes(8), "before AUTH"),
    "sspq magic": ("sspq", b"GET / HTTP/1.1\r\n\r\n", "magic number is 0x4745"),
}


@pytest.mark.parametrize("case", BYTES)
def test_a_client_that_does_not_speak_the_protocol_is_counted_and_logged_with_what_is_wrong(
    broker: Broker, case: str
) -> None:
    protocol, data, words = BYTES[case]
    before = closed(broker, protocol, "protocol")
    source = f"127.0.0.{[*BYTES].index(case) + 2}"
    say(broker.addresses[protocol], data, source)
    wait_until(lambda: closed(broker, protocol, "protocol") == before + 1, "the count")
    assert re.search(rf"{protocol} closed 1 connection\(s\) from {source} \(protocol\): .*{words}", broker.log)


@pytest.mark.parametrize(("protocol", "reason"), [
    ("overhop", "handshake_timeout"), ("blipmq", "handshake_timeout"), ("sspq", "idle_timeout"),
])  # fmt: skip
def test_a_client_that_says_nothing_is_counted_and_logged(broker: Broker, protocol: str, reason: str) -> None:
    say(broker.addresses[protocol], b"")
    wait_until(lambda: closed(broker, protocol, reason) >= 1, "the count")
    assert f"{protocol} closed 1 connection(s) from 127.0.0.1 ({reason}): " in broker.log


def test_many_closures_of_an_address_are_one_line_a_minute(broker: Broker) -> None:
    lines = len(re.findall(r"sspq closed", broker.log))
    for _ in range(20):
        say(broker.sspq, b"nonsense")
    assert len(re.findall(r"sspq closed", broker.log)) <= lines + 1


def test_a_client_that_asks_for_it_is_told_why_its_bytes_are_refused(broker: Broker) -> None:
    with Peer(broker.overhop, register=False) as peer:
        peer.send(encoder.encode(Type.HELLO, "r1", {"explain": True}), encoder.encode(Type.REGISTER, "r2", {}), FLOAT)
        assert [peer.read().t for _ in range(2)] == [Type.HI, Type.OK]
        message = peer.read()
        assert (message.t, message.rid) == (Type.ERR, "d1")
        assert message.p == {"code": Code.PROTOCOL_VIOLATION, "msg": "floats are not allowed at p.result.at"}
        peer.ended()


def test_a_client_that_does_not_ask_is_closed_without_a_word(broker: Broker) -> None:
    with Peer(broker.overhop) as peer:
        peer.send(FLOAT)
        peer.ended()
