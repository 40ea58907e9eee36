"""Connections that are not authenticated, and what connections hold that is not a frame yet: both have limits."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.waiting import wait_until
from tests.wire.broker import Blip, Broker, Database, Frame, Raw, Sspq, nack
from tests.wire.overhop.peer import Peer
from tests.wire.test_runwire import metric
from wire.blipmq import codec
from wire.overhop.codec.names import Type
from wire.sspq.codec import MAGIC, SEND

MIB = 1 << 20
#: Bytes that the broker here holds of partial frames, and of a frame.
BUDGET, FRAME = 16 * MIB, 4 * MIB
#: Connections that a test makes at most.
MOST = 10_000
#: Half of an AUTH: bytes that each of them sends.
HALF = codec.encode_hello(1) + struct.pack(">IBQH", 9 + 2 + 65_535, codec.AUTH, 7, 65_535) + bytes(40_000)


@pytest.fixture(scope="module")
def descriptors() -> Iterator[int]:
    """Raise the limit of descriptors, for this process and the brokers it starts, and yield it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard if hard != resource.RLIM_INFINITY else MOST * 2
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def broker(store: Database, descriptors: int) -> Iterator[Broker]:
    with Broker(
        store,
        "--status",
        "127.0.0.1:0",
        BROKER_PARTIAL_BYTES=BUDGET,
        BROKER_MAX_FRAME=FRAME,
        BROKER_OVERHOP_MAX_ENVELOPE=FRAME,
        BROKER_MAX_CONNECTIONS=2 * MOST,
        BROKER_MAX_CONNECTIONS_PER_ADDRESS=2 * MOST,
        BROKER_MAX_UNAUTHENTICATED=2 * MOST,
        BROKER_HANDSHAKE_TIMEOUT=600,
    ) as running:
        yield running


def is_open(connection: Raw) -> bool:
    """Whether the broker has not closed a connection on which it has nothing to say."""
    connection.socket.setblocking(False)
    try:
        return connection.socket.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    finally:
        connection.socket.setblocking(True)


def test_ten_thousand_strangers_with_half_a_frame_each_take_no_more_memory_than_the_budget(
    broker: Broker, descriptors: int
) -> None:
    process = psutil.Process(broker.process.pid)
    with Blip(broker.blipmq) as known, contextlib.ExitStack() as stack:
        subscription = known.subscribe(b"before")
        before = process.memory_info().rss
        count = min(MOST, descriptors - 500)
        for _ in range(count):
            stranger = stack.enter_context(socket.create_connection(broker.blipmq))
            with contextlib.suppress(ConnectionError):
                stranger.sendall(HALF)
        known.publish(b"before", b"still served")
        assert known.consume(subscription, 1) == [b"still served"]
        assert count * len(HALF) > 2 * BUDGET or count < 1000
        # The held bytes, twice while a buffer grows; and 4 KiB for each connection that the broker has had.
        assert process.memory_info().rss - before < 2 * BUDGET + 32 * MIB + count * 4096
    assert "(partial_bytes)" in broker.log


def test_a_client_that_is_authenticated_keeps_its_half_frame_when_strangers_take_too_much(broker: Broker) -> None:
    with Blip(broker.blipmq) as known, contextlib.ExitStack() as stack:
        subscription = known.subscribe(b"patience")
        frame = codec.encode_publish(7, 1, b"patience", bytes(FRAME - 100))
        known.send(frame[: FRAME // 2])
        before = metric(broker, "fivewire_connections_closed_total")
        for _ in range(BUDGET // len(HALF)):
            stack.enter_context(Raw(broker.blipmq)).send(HALF)
        wait_until(lambda: metric(broker, "fivewire_connections_closed_total") > before)
        known.send(frame[FRAME // 2 :])
        assert len(known.next(subscription).body) == FRAME - 100


@pytest.fixture
def hold(broker: Broker) -> Callable[[Raw, bytes], None]:
    """Sends a part of a frame and waits until the broker holds it."""

    def send(connection: Raw, data: bytes) -> None:
        held = metric(broker, "fivewire_partial_bytes")
        connection.send(data)
        wait_until(lambda: metric(broker, "fivewire_partial_bytes") >= held + len(data))

    wait_until(lambda: metric(broker, "fivewire_partial_bytes") == 0)
    return send


#: Nearly whole frames in each protocol.
PUBLISH = struct.pack(">IBQ", FRAME, codec.PUBLISH, 77)
ENVELOPE = FRAME.to_bytes(4, "big")
PACKET = struct.pack(">HBBI", MAGIC, SEND, 3, FRAME)
LESS, MORE = bytes(FRAME - 20_000), bytes(FRAME - 10_000)

Hold = Callable[[Raw, bytes], None]


def test_a_blipmq_client_that_holds_most_is_told_so_and_closed(broker: Broker, hold: Hold) -> None:
    with contextlib.ExitStack() as stack:
        hungry = stack.enter_context(Blip(broker.blipmq))
        hold(hungry, PUBLISH + MORE)
        for _ in range(3):
            hold(stack.enter_context(Sspq(broker.sspq)), PACKET + LESS)
        stack.enter_context(Sspq(broker.sspq)).send(PACKET, LESS)
        assert hungry.read() == nack(77, 503, "too many incomplete frames")
        assert hungry.rest() == b""


def test_an_overhop_client_that_holds_most_is_told_so_and_closed(broker: Broker, hold: Hold) -> None:
    with contextlib.ExitStack() as stack:
        hungry = stack.enter_context(Peer(broker.overhop))
        hold(hungry, ENVELOPE + MORE)
        for _ in range(3):
            hold(stack.enter_context(Blip(broker.blipmq)), PUBLISH + LESS)
        stack.enter_context(Blip(broker.blipmq)).send(PUBLISH, LESS)
        message = hungry.read()
        assert (message.t, message.rid, message.p["code"]) == (Type.ERR, "0", "UNAVAILABLE")
        hungry.ended()


def test_an_sspq_client_that_holds_most_is_closed(broker: Broker, hold: Hold) -> None:
    with contextlib.ExitStack() as stack:
        hungry = stack.enter_context(Sspq(broker.sspq))
        hold(hungry, PACKET + MORE)
        for _ in range(3):
            hold(stack.enter_context(Blip(broker.blipmq)), PUBLISH + LESS)
        stack.enter_context(Blip(broker.blipmq)).send(PUBLISH, LESS)
        assert hungry.rest() == b""


def test_a_frame_that_no_handshake_needs_is_refused_before_authentication(broker: Broker) -> None:
    with Blip(broker.blipmq, key="") as stranger:
        stranger.send(struct.pack(">IBQ", FRAME, codec.PUBLISH, 7))
        assert stranger.read() == nack(7, 401, "unauthenticated")
        assert stranger.rest() == b""
    with Blip(broker.blipmq, key="") as hasty:  # who is authenticated by what came with it
        body = bytes(FRAME - 100)
        hasty.send(codec.encode_hello(1), codec.encode_auth(2, "dev-key"), codec.encode_publish(3, 1, b"t", body))
        assert [hasty.read() for _ in range(2)] == [Frame(codec.ACK, cid, bytes(8)) for cid in (1, 2)]
        assert hasty.ask() == []


def test_of_too_many_unauthenticated_connections_the_oldest_is_closed_and_authenticated_ones_stay(
    store: Database
) -> None:
    with (
        Broker(store, BROKER_MAX_UNAUTHENTICATED=3, BROKER_HANDSHAKE_TIMEOUT=600) as broker,
        Blip(broker.blipmq) as known,
        Sspq(broker.sspq) as sender,
        contextlib.ExitStack() as stack,
    ):
        oldest = stack.enter_context(Blip(broker.blipmq, key=""))
        others = [stack.enter_context(Peer(broker.overhop, register=False)) for _ in range(2)]
        for other in others:
            other.hello()
        newest = stack.enter_context(Blip(broker.blipmq))
        assert oldest.rest() == b""
        assert newest.ask() == known.ask() == []
        assert is_open(others[0])
        assert is_open(sender)
        assert "blipmq closed 1 connection(s), the last from 127.0.0.1 (max_unauthenticated)" in broker.log
