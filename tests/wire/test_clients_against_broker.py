"""The client classes against a running broker, blocking and asyncio, on both event loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import KEY, Broker, Database
from tests.wire.scripted import CLIENT_KINDS, clients
from wire.blipmq import client as blipmq
from wire.sspq import client as sspq

Connect = Callable[..., Any]


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, "--sspq-also", "127.0.0.1:0=second", "--sspq-no-dead-letters") as running:
        yield running


@pytest.fixture(params=CLIENT_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def blip(broker: Broker, kind: str) -> Iterator[Connect]:
    """Make a connected BlipMQ client."""
    with clients(kind, blipmq.Client, blipmq.AsyncClient) as make:
        yield lambda key=KEY: make(*broker.blipmq, key)


@pytest.fixture
def simple(broker: Broker, kind: str) -> Iterator[Connect]:
    """Make a connected SSPQ client."""
    with clients(kind, sspq.Client, sspq.AsyncClient) as make:
        yield lambda: make(*broker.sspq)


def test_publish_flush_poll_ack(blip: Connect, store: Database) -> None:
    with blip() as client:
        subscription = client.subscribe("tour/✓")
        client.publish("tour/✓", b"hi")
        client.flush()
        message = client.poll(subscription, timeout=PATIENCE)
        assert message == blipmq.Message("tour/✓", b"hi", 1, subscription, 1)
        client.ack(message)
        client.flush()
        assert client.poll(subscription) is None
        client.ack(message)
        with pytest.raises(blipmq.NackError, match="404 unknown subscription or delivery tag"):
            client.flush()
    store.wait_for_states(store.queue_of(subscription))


def test_a_thousand_messages_in_bursts_come_once_and_in_order(blip: Connect) -> None:
    with blip() as publisher, blip() as consumer:
        subscription = consumer.subscribe("bursts")
        publisher.publish_many("bursts", (b"%d" % n for n in range(1000)))
        publisher.flush()
        bodies: list[bytes] = []
        while len(bodies) < 1000:
            messages = consumer.poll_many(subscription, 100, timeout=PATIENCE)
            assert messages
            consumer.ack(*messages)
            bodies += [message.body for message in messages]
        assert bodies == [b"%d" % n for n in range(1000)]
        assert consumer.poll(subscription) is None


def test_iterating_over_messages_ends_when_none_comes(blip: Connect) -> None:
    with blip() as client:
        subscription = client.subscribe("iterate")
        client.publish("iterate", b"a")
        client.publish("iterate", b"b")
        client.flush()
        bodies: list[bytes] = []
        for message in client.messages(subscription, timeout=PATIENCE):
            client.ack(message)
            bodies.append(message.body)
            if len(bodies) == 2:
                break
        assert bodies == [b"a", b"b"]
        assert list(client.messages(subscription, timeout=0.1)) == []


def test_messages_published_before_closing_are_durable(blip: Connect, store: Database) -> None:
    with blip() as client:
        subscription = client.subscribe("closing")
    with blip() as client:
        client.publish("closing", b"x")
    assert store.payloads(store.queue_of(subscription)) == [b"x"]


def test_a_refused_publish_is_named_by_flush_and_the_others_are_durable(
    blip: Connect, kind: str, store: Database
) -> None:
    with blip() as client:
        subscription = client.subscribe(kind)
        store.change_queue(store.queue_of(subscription), max_length=1)
        client.publish(kind, b"fits")
        refused = client.publish(kind, b"does not")
        with pytest.raises(blipmq.NackError, match="503 queue full") as caught:
            client.flush()
        assert caught.value.correlation_id == refused
        assert store.payloads(store.queue_of(subscription)) == [b"fits"]
        client.flush()


def test_a_wrong_key_is_told(blip: Connect) -> None:
    with pytest.raises(blipmq.NackError, match="401 invalid API key"), blip("wrong"):
        pass


def test_send_receive_confirm(simple: Connect, store: Database) -> None:
    with simple() as client:
        client.send(b"hello")
        message = client.receive(timeout=PATIENCE)
        assert message == sspq.Message(b"hello", 3)
        client.confirm()
        assert client.receive(timeout=0.1) is None
    store.wait_for_states(store.queue("sspq"))


def test_iterating_confirms_each_message(simple: Connect, store: Database) -> None:
    with simple() as sender:
        for n in range(50):
            sender.send(b"%d" % n)
        sender.send(b"end")
    received: list[bytes] = []
    with simple() as client:
        for message in client.messages(timeout=PATIENCE):
            if message.payload == b"end":
                client.confirm()
                break
            received.append(message.payload)
        assert received == [b"%d" % n for n in range(50)]
        assert list(client.messages(timeout=0.1)) == []
    store.wait_for_states(store.queue("sspq"))


def test_closing_gives_an_unconfirmed_message_back(simple: Connect) -> None:
    with simple() as client:
        client.send(b"x", retries=1)
        assert client.receive(timeout=PATIENCE) == sspq.Message(b"x", 1)
    with simple() as client:
        assert client.receive(timeout=PATIENCE) == sspq.Message(b"x", 0)
        client.confirm()


def test_dead_letters_that_are_switched_off_are_declined(simple: Connect) -> None:
    with simple() as client:
        with pytest.raises(sspq.Declined):
            client.dead_receive(timeout=PATIENCE)
        client.send(b"x")
        assert client.receive(timeout=PATIENCE) == sspq.Message(b"x", 3)
        client.confirm()


def test_each_sspq_listener_serves_its_own_queue(broker: Broker, store: Database) -> None:
    addresses = [line.split()[1] for line in broker.lines if line.startswith("sspq ")]
    assert len(addresses) == 2
    host, port = addresses[1].split(":")
    with sspq.Client(host, int(port)) as client:
        client.send(b"for the second")
        assert client.receive(timeout=PATIENCE) == sspq.Message(b"for the second", 3)
        assert store.payloads(store.queue("second")) == [b"for the second"]
        client.confirm()
    wait_until(lambda: not store.states(store.queue("second")))
