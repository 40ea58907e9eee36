"""Quotas of one client: a request for more is refused with a reason, and others are served."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Address, Blip, Broker, Database, Raw, Sspq, nack
from tests.wire.overhop.peer import Peer, error_code
from tests.wire.test_runwire import metric
from wire.blipmq import codec
from wire.overhop.codec import encoder
from wire.overhop.codec.names import Code, Type
from wire.sspq.codec import encode_send

MIB = 1 << 20


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    for key in ("few", "flood", "many"):
        store.add_key(key)
    with Broker(
        store,
        "--status",
        "127.0.0.1:0",
        BROKER_MAX_CONNECTIONS_PER_KEY=3,
        BROKER_BLIPMQ_MAX_SUBSCRIPTIONS_PER_KEY=2,
        BROKER_PENDING_BYTES_PER_CLIENT=MIB,
        BROKER_PENDING_BYTES=64 * MIB,
        BROKER_OVERHOP_MAX_QUEUES=4,
        BROKER_OVERHOP_MAX_SUBSCRIPTIONS=2,
    ) as running:
        yield running


def is_accepted(client: Blip) -> bool:
    """Whether the key `few` is good now."""
    client.send(codec.encode_auth(2, "few"))
    return client.read().kind == codec.ACK


def test_a_key_has_only_so_many_connections_and_another_key_has_its_own(broker: Broker) -> None:
    with Blip(broker.blipmq, "few") as first, Blip(broker.blipmq, "few"), Blip(broker.blipmq, "few"):
        with Blip(broker.blipmq, key="") as fourth:
            fourth.send(codec.encode_hello(1), codec.encode_auth(2, "few"), codec.encode_ping(3))
            assert fourth.read().cid == 1
            assert fourth.read() == nack(2, 503, "too many connections with this API key")
            assert fourth.read() == nack(3, 401, "unauthenticated")
            with Blip(broker.blipmq) as other:
                assert other.ask() == []
            first.close()
            wait_until(lambda: is_accepted(fourth))
        assert metric(broker, "fivewire_over_quota_total") >= 1


def test_a_key_makes_only_so_many_subscriptions_until_one_is_removed(broker: Broker, store: Database) -> None:
    with Blip(broker.blipmq, "many") as client:
        kept = [client.subscribe(b"quota") for _ in range(2)]
        refused = nack(7, 503, "The API key has as many as it may: 2 subscriptions")
        assert client.ask(codec.encode_subscribe(7, b"quota", 1)) == [refused]
        client.publish(b"quota", b"x")
        assert client.consume(kept[0], 1) == [b"x"]
        store.execute("delete from queues_subscription where id = %s", kept[1])
        assert client.subscribe(b"quota") not in kept
        assert client.ask(codec.encode_subscribe(7, b"quota", 1)) == [refused]


def test_clients_make_only_so_many_queues(broker: Broker) -> None:
    with Peer(broker.overhop) as client:
        answers = [client.reply(client.request(Type.ADDQUEUE, name=f"quota{n}")) for n in range(5)]
        assert [message.t for message in answers[:3]] == [Type.OK] * 3  # and there is that of SSPQ
        assert [error_code(message) for message in answers[3:]] == [Code.FORBIDDEN] * 2
        assert "clients may make no more" in answers[3].p["msg"]


def test_a_worker_subscribes_to_only_so_many_queues(broker: Broker) -> None:
    with Peer(broker.overhop) as client:
        sids = [client.subscribe(name) for name in ("sspq", "_system")]
        assert client.refused(Type.SUBSCRIBE, q="sspq") is Code.FORBIDDEN
        client.ask(Type.UNSUBSCRIBE, sid=sids[1])
        client.subscribe("_system")


FLOODS = {
    "blipmq": codec.encode_publish(8, 1, b"flood", bytes(10_000)),
    "sspq": encode_send(bytes(10_000), 3),
    "overhop": encoder.encode(Type.ENQUEUE, "r", {"q": "sspq", "job_payload": bytes(10_000)}),
}
FLOODERS: dict[str, Callable[[Address], Raw]] = {
    "blipmq": lambda address: Blip(address, "flood"),
    "sspq": Sspq,
    "overhop": Peer,
}


def pour(connection: Raw, frame: bytes, enough: Callable[[], bool]) -> int:
    """Send a frame again and again until the broker takes nothing and there is `enough`; how many bytes it was."""
    left, sent = memoryview(frame), 0
    connection.socket.settimeout(0.2)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            count = connection.socket.send(left)
        except TimeoutError:
            if enough():
                return sent
        else:
            sent += count
            left = left[count:] or memoryview(frame)
    raise AssertionError(f"not enough after {sent} bytes")


@pytest.fixture(scope="module")
def subscribed(broker: Broker) -> None:
    """A subscriber of `flood`, so that its messages are stored."""
    with Blip(broker.blipmq) as client:
        client.subscribe(b"flood")


@pytest.mark.usefixtures("subscribed")
@pytest.mark.parametrize("protocol", FLOODS)
def test_a_flood_that_waits_for_the_database_stops_its_own_connection_only(
    broker: Broker, store: Database, protocol: str
) -> None:
    with Blip(broker.blipmq) as neighbour, FLOODERS[protocol](broker.addresses[protocol]) as flooder:
        before = metric(broker, "fivewire_over_quota_total")
        with store.unwritable_messages():
            sent = pour(flooder, FLOODS[protocol], lambda: metric(broker, "fivewire_over_quota_total") > before)
            assert sent < 48 * MIB  # its share, and what the sockets hold
            assert neighbour.ask() == []
        neighbour.publish(b"flood", b"and what others publish is stored")
        flooder.reset()
