"""SSPQ against a running broker: every packet, every rule of the slot, every end of a connection."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until
from tests.wire.broker import DEAD, NO_RECEIVE, Blip, Broker, Database, Sspq, message, put
from tests.wire.overhop.peer import Peer
from wire.overhop.codec.names import Type
from wire.sspq import codec
from wire.sspq.codec import CONFIRM_PACKET, DEAD_RECEIVE_PACKET, RECEIVE_PACKET, encode_send

VECTORS = json.loads((Path(__file__).parents[2] / "vectors.json").read_text())["sspq"]
BYTES = {name: bytes.fromhex(text) for name, text in VECTORS.items()}

LARGEST = 2 << 20  # bytes a payload may have here


@pytest.fixture(scope="module")
def broker(store: Database) -> Iterator[Broker]:
    with Broker(store, BROKER_MAX_FRAME=LARGEST) as running:
        yield running


@pytest.fixture(scope="module")
def queue(broker: Broker, store: Database) -> int:
    """The id of the queue that is served."""
    return store.queue("sspq")


@pytest.fixture(autouse=True)
def _empty(broker: Broker, store: Database, queue: int) -> Iterator[None]:
    """Each test begins with an empty queue, whatever the one before has left."""
    yield

    def emptied() -> bool:
        store.execute("delete from queues_message where queue_id = %s and state = 3", queue)
        if not store.states(queue):
            return True
        with Sspq(broker.sspq) as cleaner:
            cleaner.send(RECEIVE_PACKET)
            if not cleaner.is_silent(0.05):
                cleaner.confirm()
            cleaner.hang_up()
        return False

    wait_until(emptied)


@pytest.fixture
def client(broker: Broker) -> Iterator[Sspq]:
    with Sspq(broker.sspq) as connection:
        yield connection
        connection.hang_up()


@pytest.fixture
def other(broker: Broker) -> Iterator[Sspq]:
    with Sspq(broker.sspq) as connection:
        yield connection
        connection.hang_up()


# The published vectors.


def test_the_published_bytes_are_understood_and_answered_byte_for_byte(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    with Sspq(broker.sspq) as first:
        first.send(BYTES["SEND retries 1 hello"], BYTES["RECEIVE"])
        assert first.take(13) == BYTES["SEND retries 1 hello"]
        first.hang_up()
    client.send(BYTES["RECEIVE"])
    assert client.take(13) == BYTES["second delivery after a disconnect"]
    client.send(BYTES["CONFIRM"])
    store.wait_for_states(queue)
    put(broker.sspq, b"hello", retries=0)
    with Sspq(broker.sspq) as last:
        last.receive()
        last.hang_up()
    store.wait_for_states(queue, dead=1)
    client.send(BYTES["DEAD_RECEIVE"])
    assert client.take(13) == BYTES["second delivery after a disconnect"]
    client.send(BYTES["CONFIRM"])
    store.wait_for_states(queue)


# Sending.


def test_send_is_not_answered(client: Sspq, store: Database, queue: int) -> None:
    client.send(encode_send(b"x", 3))
    wait_until(lambda: store.payloads(queue) == [b"x"])
    assert client.is_silent()


def test_connect_send_close_at_once_keeps_everything_in_order(broker: Broker, client: Sspq) -> None:
    payloads = [b"%d" % n for n in range(300)]
    with Sspq(broker.sspq) as sender:
        sender.send(*(encode_send(payload, 3) for payload in payloads))
    received = []
    for _ in payloads:
        received.append(client.receive().payload)
        client.confirm()
    assert received == payloads


def test_send_may_come_while_holding_and_while_waiting(client: Sspq) -> None:
    client.send(encode_send(b"a", 3), RECEIVE_PACKET)
    assert client.read() == message(b"a", 3)
    client.send(encode_send(b"b", 3))
    client.send(CONFIRM_PACKET, RECEIVE_PACKET)
    assert client.read() == message(b"b", 3)
    client.send(CONFIRM_PACKET, RECEIVE_PACKET)
    client.send(encode_send(b"c", 3))
    assert client.read() == message(b"c", 3)
    client.confirm()


def test_a_first_send_long_after_connecting_is_kept(store: Database) -> None:
    with Broker(store, "--sspq-queue", "late", BROKER_HANDSHAKE_TIMEOUT=0.2) as patient, Sspq(patient.sspq) as sender:
        with Blip(patient.blipmq, key="") as stranger:
            assert stranger.rest() == b""  # who came later, to a protocol with a handshake, has run out of time
        sender.send(encode_send(b"late", 3), RECEIVE_PACKET)
        assert sender.read() == message(b"late", 3)
        sender.confirm()
        sender.hang_up()


def test_a_send_cut_off_by_the_end_of_the_stream_is_not_stored(broker: Broker, client: Sspq) -> None:
    for cut in (1, 3, 8, 12):
        with Sspq(broker.sspq) as sender:
            sender.send(encode_send(b"whole", 3), encode_send(b"cut off", 3)[:cut])
            sender.hang_up()
    for _ in range(4):
        assert client.receive() == message(b"whole", 3)
        client.confirm()
    client.send(RECEIVE_PACKET)
    assert client.is_silent()


def test_an_empty_payload_is_a_message(client: Sspq) -> None:
    client.send(encode_send(b"", 3), RECEIVE_PACKET)
    assert client.read() == message(b"", 3)
    client.confirm()


def test_a_payload_of_1_mib_survives_byte_for_byte(client: Sspq) -> None:
    payload = bytes(range(256)) * 4096
    client.send(encode_send(payload, 3), RECEIVE_PACKET)
    assert client.read() == message(payload, 3)
    client.confirm()


def test_a_payload_over_the_maximum_closes_and_what_came_before_is_kept(broker: Broker, client: Sspq) -> None:
    with Sspq(broker.sspq) as sender:
        sender.send(encode_send(b"before", 3), struct.pack(">HBBI", 0x5599, codec.SEND, 3, LARGEST + 1))
        assert sender.rest() == b""
    assert client.receive() == message(b"before", 3)
    client.confirm()


def test_a_payload_of_the_maximum_passes(client: Sspq) -> None:
    payload = b"x" * LARGEST
    client.send(encode_send(payload, 3), RECEIVE_PACKET)
    assert client.read() == message(payload, 3)
    client.confirm()


def test_a_session_cut_at_every_byte_is_the_same_session(client: Sspq) -> None:
    for byte in encode_send(b"cut", 7) + RECEIVE_PACKET:
        client.send(bytes((byte,)))
    assert client.read() == message(b"cut", 7)
    for byte in CONFIRM_PACKET + encode_send(b"next", 8) + RECEIVE_PACKET:
        client.send(bytes((byte,)))
    assert client.read() == message(b"next", 8)
    client.confirm()


def test_a_message_that_cannot_be_stored_ends_the_connection_and_no_other_is_lost(
    broker: Broker, client: Sspq, store: Database
) -> None:
    with store.refusing(b"poison"), Sspq(broker.sspq) as sender:
        sender.send(encode_send(b"a", 3), encode_send(b"poison", 3), encode_send(b"b", 3))
        assert sender.rest() == b""
    for payload in (b"a", b"b"):
        assert client.receive() == message(payload, 3)
        client.confirm()


# Retries.


@pytest.mark.parametrize(
    ("sent", "delivered"), [(0, [0]), (1, [1, 0]), (3, [3, 2, 1, 0]), (254, [254, 253]), (255, [255, 255, 255])]
)
def test_the_retry_counter_tells_the_redeliveries_that_remain(
    broker: Broker, store: Database, queue: int, sent: int, delivered: list[int]
) -> None:
    put(broker.sspq, b"x", retries=sent)
    for retries in delivered:
        with Sspq(broker.sspq) as consumer:
            assert consumer.receive() == message(b"x", retries)
            consumer.hang_up()
    if delivered[-1] == 0:
        store.wait_for_states(queue, dead=1)
    else:
        assert store.states(queue)[DEAD] == 0


def test_an_unconfirmed_message_goes_to_the_tail(broker: Broker, client: Sspq) -> None:
    put(broker.sspq, b"a", b"b", b"c")
    with Sspq(broker.sspq) as first:
        assert first.receive() == message(b"a", 3)
        first.hang_up()
    order = []
    for _ in range(3):
        order.append(client.receive())
        client.confirm()
    assert order == [message(b"b", 3), message(b"c", 3), message(b"a", 2)]


def test_a_reset_connection_returns_its_message_too(broker: Broker, client: Sspq) -> None:
    put(broker.sspq, b"x")
    with Sspq(broker.sspq) as first:
        assert first.receive() == message(b"x", 3)
        first.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert client.receive() == message(b"x", 2)
    client.confirm()


# Dead letters.


def make_dead(broker: Broker, store: Database, queue: int, *payloads: bytes) -> None:
    """Dead letters, by a consumer that disconnects."""
    for payload in payloads:
        put(broker.sspq, payload, retries=0)
        with Sspq(broker.sspq) as consumer:
            assert consumer.receive() == message(payload, 0)
            consumer.hang_up()
    store.wait_for_states(queue, dead=len(payloads))


def test_dead_letters_come_oldest_first_with_retry_0_and_confirm_removes_them(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    make_dead(broker, store, queue, b"a", b"b")
    assert client.dead_receive() == message(b"a", 0)
    client.send(CONFIRM_PACKET, DEAD_RECEIVE_PACKET)
    assert client.read() == message(b"b", 0)
    client.confirm()
    store.wait_for_states(queue)


def test_a_dead_letter_whose_reader_disconnects_goes_unchanged_behind_the_others(
    broker: Broker, store: Database, queue: int
) -> None:
    make_dead(broker, store, queue, b"a", b"b")
    kept = "select origin_id, attempts, error, dead_at from queues_message where queue_id = %s order by origin_id"
    before = store.rows(kept, queue)
    for payload in (b"a", b"b", b"a"):
        with Sspq(broker.sspq) as reader:
            assert reader.dead_receive() == message(payload, 0)
            reader.hang_up()
        store.wait_for_states(queue, dead=2)
    assert store.rows(kept, queue) == before


def test_dead_letters_come_in_the_order_of_their_death(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    put(broker.sspq, b"first sent", b"second sent", retries=0)
    with Sspq(broker.sspq) as slow, Sspq(broker.sspq) as quick:
        assert slow.receive() == message(b"first sent", 0)
        assert quick.receive() == message(b"second sent", 0)
        quick.hang_up()
        store.wait_for_states(queue, leased=1, dead=1)
        slow.hang_up()
    store.wait_for_states(queue, dead=2)
    for payload in (b"second sent", b"first sent"):
        assert client.dead_receive() == message(payload, 0)
        client.confirm()
    store.wait_for_states(queue)


def test_a_dead_receive_waits_for_the_next_dead_letter(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    client.send(DEAD_RECEIVE_PACKET)
    assert client.is_silent()
    put(broker.sspq, b"x", retries=0)
    with Sspq(broker.sspq) as consumer:
        assert consumer.receive() == message(b"x", 0)
        consumer.hang_up()
    assert client.read() == message(b"x", 0)
    client.confirm()


def test_a_dead_receive_gets_what_another_reader_gave_back(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    make_dead(broker, store, queue, b"x")
    with Sspq(broker.sspq) as reader:
        assert reader.dead_receive() == message(b"x", 0)
        client.send(DEAD_RECEIVE_PACKET)
        assert client.is_silent()
        reader.hang_up()
    assert client.read() == message(b"x", 0)
    client.confirm()


def test_receive_gets_no_dead_letters_and_dead_receive_no_live_messages(
    broker: Broker, client: Sspq, other: Sspq, store: Database, queue: int
) -> None:
    make_dead(broker, store, queue, b"dead")
    client.send(RECEIVE_PACKET)
    assert client.is_silent()
    assert other.dead_receive() == message(b"dead", 0)
    other.confirm()
    store.wait_for_states(queue)
    other.send(DEAD_RECEIVE_PACKET)
    put(broker.sspq, b"live")
    assert client.read() == message(b"live", 3)
    client.confirm()
    assert other.is_silent()


# The slot.


def test_receive_waits_on_an_empty_queue(client: Sspq, other: Sspq) -> None:
    client.send(RECEIVE_PACKET)
    assert client.is_silent(0.5)
    other.send(encode_send(b"x", 3))
    assert client.read() == message(b"x", 3)
    client.confirm()


def test_waiters_are_served_first_come_first_served(broker: Broker, store: Database) -> None:
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(Sspq(broker.sspq)) for _ in range(5)]
        clock = stack.enter_context(Blip(broker.blipmq))
        for waiter in waiting:
            waiter.send(RECEIVE_PACKET)
            assert clock.ask() == []  # the broker's one loop has seen it, too, before what the next sends
        put(broker.sspq, *(b"%d" % n for n in range(5)))
        assert [waiter.read().payload for waiter in waiting] == [b"%d" % n for n in range(5)]
        for waiter in waiting:
            waiter.confirm()
            waiter.hang_up()


def test_a_waiter_that_hangs_up_is_passed_over(broker: Broker, client: Sspq) -> None:
    with Sspq(broker.sspq) as gone:
        gone.send(RECEIVE_PACKET)
        client.send(RECEIVE_PACKET)
        gone.hang_up()
    put(broker.sspq, b"x")
    assert client.read() == message(b"x", 3)
    client.confirm()


def test_a_further_receive_while_one_waits_or_a_message_is_held_does_nothing(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    client.send(RECEIVE_PACKET, RECEIVE_PACKET, DEAD_RECEIVE_PACKET)
    put(broker.sspq, b"a", b"b")
    assert client.read() == message(b"a", 3)
    client.send(RECEIVE_PACKET, DEAD_RECEIVE_PACKET)
    assert client.is_silent()
    client.send(CONFIRM_PACKET, RECEIVE_PACKET)
    assert client.read() == message(b"b", 3)
    client.confirm()
    store.wait_for_states(queue)


def test_confirm_with_nothing_held_is_ignored(client: Sspq, store: Database, queue: int) -> None:
    client.send(CONFIRM_PACKET, encode_send(b"x", 3), CONFIRM_PACKET, RECEIVE_PACKET, CONFIRM_PACKET)
    assert client.read() == message(b"x", 3)
    assert store.states(queue).total() == 1
    client.confirm()
    client.confirm()
    store.wait_for_states(queue)


def test_confirm_and_the_next_receive_may_come_in_one_packet(broker: Broker, client: Sspq) -> None:
    put(broker.sspq, b"a", b"b", b"c")
    assert client.receive() == message(b"a", 3)
    for payload in (b"b", b"c"):
        client.send(CONFIRM_PACKET + RECEIVE_PACKET)
        assert client.read() == message(payload, 3)
    client.confirm()


def test_a_confirm_in_one_packet_with_its_receive_removes_nothing(client: Sspq, store: Database, queue: int) -> None:
    client.send(encode_send(b"unseen", 3), RECEIVE_PACKET, CONFIRM_PACKET)
    assert client.read() == message(b"unseen", 3)
    client.send(encode_send(b"next", 3), RECEIVE_PACKET)  # still holding: does nothing
    wait_until(lambda: store.states(queue).total() == 2)
    assert client.is_silent()
    client.send(CONFIRM_PACKET, RECEIVE_PACKET, CONFIRM_PACKET)
    assert client.read() == message(b"next", 3)
    client.confirm()
    store.wait_for_states(queue)


def test_each_message_goes_to_one_consumer_only(broker: Broker, client: Sspq, other: Sspq) -> None:
    put(broker.sspq, b"a", b"b")
    assert {client.receive().payload, other.receive().payload} == {b"a", b"b"}
    client.confirm()
    other.confirm()


# Bytes that are wrong.


@pytest.mark.parametrize("data", [b"\x55\x98", b"\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x99\x55" + bytes(6)])
def test_a_bad_magic_number_closes_and_the_message_held_goes_back(broker: Broker, client: Sspq, data: bytes) -> None:
    put(broker.sspq, b"x")
    with Sspq(broker.sspq) as wrong:
        assert wrong.receive() == message(b"x", 3)
        wrong.send(encode_send(b"also kept", 3), data)
        assert wrong.rest() == b""
    first = client.receive()
    client.send(CONFIRM_PACKET, RECEIVE_PACKET)
    assert {first, client.read()} == {message(b"x", 2), message(b"also kept", 3)}
    client.confirm()


@pytest.mark.parametrize("kind", [0xFF, 0x00, 0x5F])
def test_a_packet_of_unknown_type_is_skipped_with_its_payload(client: Sspq, kind: int) -> None:
    unknown = codec.encode(kind, 9, b"\x55\x99\x5e" * 1000)
    client.send(encode_send(b"a", 3), unknown, RECEIVE_PACKET, unknown)
    assert client.read() == message(b"a", 3)
    client.send(unknown, CONFIRM_PACKET, unknown, encode_send(b"b", 3), RECEIVE_PACKET)
    assert client.read() == message(b"b", 3)
    client.confirm()


def test_a_payload_on_other_packets_and_a_no_receive_from_a_client_mean_nothing(client: Sspq) -> None:
    client.send(
        encode_send(b"x", 3), codec.encode(codec.NO_RECEIVE, 0, b"what"), codec.encode(codec.RECEIVE, 5, b"payload")
    )
    assert client.read() == message(b"x", 3)
    client.send(codec.encode(codec.CONFIRM, 5, b"payload"), encode_send(b"y", 3), RECEIVE_PACKET)
    assert client.read() == message(b"y", 3)
    client.confirm()


# NO_RECEIVE.


def test_a_paused_queue_that_refuses_answers_no_receive(client: Sspq, other: Sspq, store: Database, queue: int) -> None:
    client.send(RECEIVE_PACKET)
    assert client.is_silent(0.05)
    store.change_queue(queue, paused=True, refuse_when_paused=True)
    assert client.read() == NO_RECEIVE
    other.send(encode_send(b"x", 3), RECEIVE_PACKET)
    assert other.read() == NO_RECEIVE
    store.change_queue(queue, paused=False, refuse_when_paused=False)

    def delivered() -> bool:
        return client.receive() == message(b"x", 3)

    wait_until(delivered)
    client.confirm()


def test_a_paused_queue_that_does_not_refuse_lets_wait(
    broker: Broker, client: Sspq, other: Sspq, store: Database, queue: int
) -> None:
    with Peer(broker.overhop) as operator:
        operator.ask(Type.PAUSE, q="sspq")  # which the broker obeys once it is answered
    other.send(encode_send(b"x", 3))
    client.send(RECEIVE_PACKET)
    assert client.is_silent(0.3)
    store.change_queue(queue, paused=False)
    assert client.read() == message(b"x", 3)
    client.confirm()


# The barrier.


def test_the_answer_to_receive_means_that_everything_sent_before_is_committed(
    client: Sspq, store: Database, queue: int
) -> None:
    client.send(encode_send(b"first", 3), RECEIVE_PACKET)
    assert client.read() == message(b"first", 3)
    for n in range(30):
        client.send(encode_send(b"%d" % n, 3), CONFIRM_PACKET, RECEIVE_PACKET)
        client.read()
        assert b"%d" % n in store.payloads(queue)
    client.confirm()


def test_the_answer_to_receive_waits_for_the_commit_of_what_was_sent_before(
    broker: Broker, client: Sspq, store: Database, queue: int
) -> None:
    put(broker.sspq, b"old", b"older")
    with Sspq(broker.sspq) as warm:
        warm.receive()
        warm.confirm()
        with store.unwritable_messages():
            client.send(encode_send(b"new", 3), RECEIVE_PACKET)
            store.wait_for_blocked("queues_publish_version")
            assert client.is_silent()
        assert client.read().payload == b"older"
        client.confirm()
        warm.hang_up()
    assert b"new" in store.payloads(queue)


# A queue that goes.


def test_a_queue_that_is_deleted_and_made_again_is_served_again(store: Database) -> None:
    with (
        Broker(store, "--sspq-queue", "comes-and-goes") as broker,
        Peer(broker.overhop) as operator,
        Sspq(broker.sspq) as consumer,
    ):
        put(broker.sspq, b"before")
        assert consumer.receive_message().payload == b"before"
        consumer.confirm()
        wait_until(lambda: not store.states(store.queue("comes-and-goes")))
        operator.ask(Type.RMQUEUE, q="comes-and-goes")
        wait_until(lambda: consumer.receive() == NO_RECEIVE)
        operator.ask(Type.ADDQUEUE, name="comes-and-goes")
        put(broker.sspq, b"after")
        assert consumer.receive_message().payload == b"after"
        consumer.confirm()
        consumer.hang_up()
