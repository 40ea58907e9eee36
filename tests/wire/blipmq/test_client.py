"""The BlipMQ clients against exact bytes: blocking, on asyncio and on uvloop."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from tests.waiting import PATIENCE
from tests.wire.scripted import CLIENT_KINDS, Expect, Hangup, ScriptedServer, Send, clients
from wire.blipmq import client as client_sync
from wire.blipmq import client_async, client_core, codec
from wire.blipmq.client import AsyncClient, Client, Message, NackError
from wire.blipmq.client_core import SEND_AT, ClientCore, Window
from wire.client.errors import ConnectionLost, ProtocolViolation, ReplyTimeout

FIRST = 1 << 63  # the client's correlation ids count from here
HELLO_AND_AUTH = "0000000b0180000000000000000001" + "0000001202800000000000000100076465762d6b6579"
GREETING = (
    Expect(bytes.fromhex(HELLO_AND_AUTH)),
    Send(codec.encode_ack(FIRST, 0) + codec.encode_ack(FIRST + 1, 0)),
)
ID = FIRST + 2  # the first after the greeting


@pytest.fixture(params=CLIENT_KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a connected client of each kind: `with connect(server) as client`."""
    with clients(request.param, Client, AsyncClient) as make:
        # The server plays its script once: a client that comes again would wait for it.
        yield lambda server, **kwargs: make(server.host, server.port, "dev-key", **{"reconnect": False} | kwargs)


def publish(correlation_id: int, body: bytes, qos: int = 1, topic: bytes = b"demo") -> bytes:
    return codec.encode_publish(correlation_id, qos, topic, body)


def expect_poll(first: int, subscription: int = 42, count: int = 1) -> Expect:
    polls = b"".join(codec.encode_poll(first + n, subscription) for n in range(count))
    return Expect(polls + codec.encode_ping(first + count))


def test_a_client_greets_and_leaves(connect: Any) -> None:
    with ScriptedServer(*GREETING) as server, connect(server):
        pass


@pytest.mark.parametrize(
    ("answers", "code", "message"),
    [
        (
            codec.encode_nack(FIRST, *codec.UNSUPPORTED_VERSION)
            + codec.encode_nack(FIRST + 1, *codec.HELLO_NOT_PERFORMED),
            426,
            "unsupported protocol version",
        ),
        (
            codec.encode_ack(FIRST, 0) + codec.encode_nack(FIRST + 1, *codec.INVALID_API_KEY),
            401,
            "invalid API key",
        ),
    ],
)
def test_a_refused_greeting_is_raised_and_the_connection_closed(
    connect: Any, answers: bytes, code: int, message: str
) -> None:
    with ScriptedServer(GREETING[0], Send(answers)) as server:
        with pytest.raises(NackError, match=message) as caught, connect(server):
            pytest.fail("connected")
        assert caught.value.code == code


def test_a_publish_goes_out_at_once_and_flush_waits_for_the_pong(connect: Any) -> None:
    script = (
        Expect(publish(ID, b"hi")),
        Expect(publish(ID + 1, b"", qos=0) + codec.encode_ping(ID + 2)),
        Send(codec.encode_pong(ID + 2)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        assert client.publish("demo", b"hi") == ID
        assert client.publish(b"demo", b"", qos=0) == ID + 1
        client.flush()


def test_a_single_publish_does_not_wait_for_flush(connect: Any) -> None:
    script = (Expect(publish(ID, b"hi")),)
    with ScriptedServer(*GREETING, *script) as server, suppress(ZeroDivisionError), connect(server) as client:
        client.publish("demo", b"hi")
        assert server.played.wait(PATIENCE)
        raise ZeroDivisionError  # leaves without a flush


def test_a_batch_goes_out_in_order_and_whole_without_a_flush(connect: Any) -> None:
    bodies = [bytes(SEND_AT // 2), b"hi", bytes(SEND_AT), b""]
    script = (Expect(b"".join(publish(ID + n, body) for n, body in enumerate(bodies))),)
    with ScriptedServer(*GREETING, *script) as server, suppress(ZeroDivisionError), connect(server) as client:
        assert client.publish_many("demo", iter(bodies)) == [ID, ID + 1, ID + 2, ID + 3]
        assert server.played.wait(PATIENCE)
        raise ZeroDivisionError  # leaves without a flush


def test_of_a_batch_what_comes_before_a_message_that_is_too_large_is_sent(connect: Any) -> None:
    script = (Expect(publish(ID, b"hi") + codec.encode_ping(ID + 1)), Send(codec.encode_pong(ID + 1)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with pytest.raises(codec.FrameTooLarge):
            client.publish_many("demo", [b"hi", bytes(codec.MAX_FRAME_SIZE), b"never"])
        client.flush()


def test_leaving_the_context_flushes(connect: Any) -> None:
    script = (Expect(publish(ID, b"hi") + codec.encode_ping(ID + 1)), Send(codec.encode_pong(ID + 1)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.publish("demo", b"hi")


def test_leaving_the_context_with_an_error_sends_nothing_more(connect: Any) -> None:
    script = (Expect(publish(ID, b"hi")),)
    with ScriptedServer(*GREETING, *script) as server, suppress(ZeroDivisionError), connect(server) as client:
        client.publish("demo", b"hi")
        raise ZeroDivisionError


def test_flush_raises_what_was_refused_and_names_the_messages(connect: Any) -> None:
    refused = codec.encode_nack(ID, *codec.FORBIDDEN) + codec.encode_nack(ID + 2, *codec.QUEUE_FULL)
    script = (
        Expect(b"".join(publish(ID + n, b"hi") for n in range(3)) + codec.encode_ping(ID + 3)),
        Send(refused + codec.encode_pong(ID + 3)),
        Expect(codec.encode_ping(ID + 4)),
        Send(codec.encode_pong(ID + 4)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        for _ in range(3):
            client.publish("demo", b"hi")
        with pytest.raises(NackError, match=r"^401 forbidden$") as caught:
            client.flush()
        [other] = caught.value.others
        assert caught.value.correlation_id == ID
        assert (other.code, other.message, other.correlation_id) == (503, "queue full", ID + 2)
        client.flush()  # said once, not again


def test_a_confirmed_publish_returns_when_it_is_durable_or_raises_its_own_refusal(connect: Any) -> None:
    script = (
        Expect(publish(ID, b"not waited for") + publish(ID + 1, b"durable") + codec.encode_ping(ID + 2)),
        Send(codec.encode_nack(ID, *codec.QUEUE_FULL) + codec.encode_pong(ID + 2)),
        Expect(publish(ID + 3, b"refused") + codec.encode_ping(ID + 4)),
        Send(codec.encode_nack(ID + 3, *codec.FORBIDDEN) + codec.encode_pong(ID + 4)),
        Expect(codec.encode_ping(ID + 5)),
        Send(codec.encode_pong(ID + 5)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.publish("demo", b"not waited for")
        assert client.publish("demo", b"durable", confirm=True) == ID + 1
        with pytest.raises(NackError, match=r"^401 forbidden$"):
            client.publish("demo", b"refused", confirm=True)
        with pytest.raises(NackError, match=r"^503 queue full$") as caught:
            client.flush()
        assert (caught.value.correlation_id, caught.value.others) == (ID, ())


def test_a_publish_without_a_promise_cannot_be_confirmed(connect: Any) -> None:
    with ScriptedServer(*GREETING) as server, connect(server) as client, pytest.raises(ValueError, match="QoS 0"):
        client.publish("demo", b"x", 0, confirm=True)


def test_a_confirmed_publish_on_a_lost_connection_is_raised_once(connect: Any) -> None:
    script = (Expect(publish(ID, b"perhaps") + codec.encode_ping(ID + 1)), Hangup())
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client, pytest.raises(ConnectionLost):
        client.publish("demo", b"perhaps", confirm=True)  # leaving the context does not raise it again


def test_subscribe_returns_the_id(connect: Any) -> None:
    script = (Expect(codec.encode_subscribe(ID, b"demo", 1)), Send(codec.encode_ack(ID, 42)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        assert client.subscribe("demo") == 42


def test_a_refused_subscribe_is_raised_and_the_client_goes_on(connect: Any) -> None:
    script = (
        Expect(codec.encode_subscribe(ID, b"secret", 0)),
        Send(codec.encode_nack(ID, *codec.FORBIDDEN)),
        Expect(codec.encode_subscribe(ID + 1, "öl".encode(), 1)),
        Send(codec.encode_ack(ID + 1, 7)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with pytest.raises(NackError, match=r"^401 forbidden$"):
            client.subscribe(b"secret", qos=0)
        assert client.subscribe("öl") == 7


def test_a_polled_message_is_acknowledged_by_its_tag(connect: Any) -> None:
    script = (
        expect_poll(ID),
        Send(publish(1, b"hi") + codec.encode_pong(ID + 1)),
        Expect(bytes.fromhex("00000011050000000000000001000000000000002a")),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        message = client.poll(42)
        assert message == Message("demo", b"hi", 1, 42, 1)
        client.ack(message)


def test_an_empty_subscription_gives_none_when_the_pong_comes(connect: Any) -> None:
    script = (expect_poll(ID), Send(codec.encode_pong(ID + 1)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        assert client.poll(42) is None


def test_poll_asks_again_until_a_message_comes(connect: Any) -> None:
    script = (
        expect_poll(ID),
        Send(codec.encode_pong(ID + 1)),
        expect_poll(ID + 2),
        Send(codec.encode_pong(ID + 3)),
        expect_poll(ID + 4),
        Send(publish(9, b"late") + codec.encode_pong(ID + 5)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        assert client.poll(42, timeout=None).body == b"late"


def test_poll_pauses_longer_and_longer_and_looks_once_more_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("wire.blipmq.client_core.time.monotonic", lambda: now)
    core = ClientCore("dev-key", 30, False)
    steps = core.poll(42, 1, timeout=0.25)
    pauses: list[float | None] = []
    messages = None
    answer_due = next(steps)
    while messages is None:
        assert answer_due == 30
        core.receive_data(codec.encode_pong(int.from_bytes(core.outgoing[-8:], "big")))
        try:
            pauses.append(steps.send(True))
            now += pauses[-1] or 0
            answer_due = steps.send(False)
        except StopIteration as finished:
            messages = finished.value
    assert messages == []
    assert pauses == pytest.approx([0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.1, 0.023])


def test_a_message_of_qos_0_needs_no_ack(connect: Any) -> None:
    script = (expect_poll(ID), Send(publish(ID, b"hi", qos=0) + codec.encode_pong(ID + 1)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        message = client.poll(42)
        assert message == Message("demo", b"hi", 0, 42, None)
        client.ack(message)


def test_poll_many_takes_one_round_trip_and_ack_takes_many(connect: Any) -> None:
    script = (
        expect_poll(ID, count=3),
        Send(publish(5, b"a") + publish(6, b"b") + codec.encode_pong(ID + 3)),
        Expect(codec.encode_ack(5, 42) + codec.encode_ack(6, 42)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        messages = client.poll_many(42, 3)
        assert [message.body for message in messages] == [b"a", b"b"]
        client.ack(*messages)


def test_a_refused_poll_is_raised(connect: Any) -> None:
    script = (expect_poll(ID), Send(codec.encode_nack(ID, *codec.FORBIDDEN) + codec.encode_pong(ID + 1)))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with pytest.raises(NackError, match=r"^401 forbidden$") as caught:
            client.poll(42)
        assert caught.value.correlation_id == ID


def test_iterating_ends_when_nothing_more_comes(connect: Any) -> None:
    script = (
        expect_poll(ID),
        Send(publish(1, b"a") + codec.encode_pong(ID + 1)),
        Expect(codec.encode_ack(1, 42)),
        expect_poll(ID + 2),
        Send(publish(2, b"b") + codec.encode_pong(ID + 3)),
        Expect(codec.encode_ack(2, 42)),
        expect_poll(ID + 4),
        Send(codec.encode_pong(ID + 5)),
    )
    bodies = []
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        for message in client.messages(42, timeout=0, prefetch=1):
            bodies.append(message.body)
            client.ack(message)
    assert bodies == [b"a", b"b"]


def test_iterating_fetches_ahead_and_what_is_not_reached_is_the_next_poll(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (client_core, client_sync, client_async):
        monkeypatch.setattr(module, "STALE", 600.0)
    monkeypatch.setattr(client_core, "AHEAD", 600.0)
    script = (
        expect_poll(ID),
        Send(publish(1, b"a") + codec.encode_pong(ID + 1)),
        Expect(codec.encode_ack(1, 42)),
        expect_poll(ID + 2, count=3),
        Send(b"".join(publish(2 + n, b"bcd"[n : n + 1]) for n in range(3)) + codec.encode_pong(ID + 5)),
        Expect(codec.encode_ack(2, 42) + codec.encode_ack(3, 42) + codec.encode_ack(4, 42)),
    )
    bodies = []
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with contextlib.closing(client.messages(42)) as messages:
            for message in messages:
                bodies.append(message.body)
                client.ack(message)
                if message.body == b"c":
                    break
        message = client.poll(42)
        client.ack(message)
    assert [*bodies, message.body] == [b"a", b"b", b"c", b"d"]


def test_what_is_fetched_ahead_is_what_the_program_can_process_in_time() -> None:
    window = Window(1000)
    sizes = [window.size]
    for count, seconds, longest in ((1, 0.0001, 0.0001), (3, 0.0003, 0.0001), (7, 0.07, 0.01), (2, 0.03, 0.03)):
        window.processed(count, seconds, longest)
        sizes.append(window.size)
    assert sizes == [1, 3, 7, 2, 1]
    for _ in range(20):
        window.processed(window.size, 0.0, 0.0)
    assert window.size == 1000


def test_what_was_left_for_too_long_comes_again_but_for_qos_0(monkeypatch: pytest.MonkeyPatch) -> None:
    core = ClientCore("dev-key", 1.0, False)
    core.connection = 1
    left = [Message("demo", b"a", 1, 42, 1), Message("demo", b"b", 0, 42, None)]
    core.leave(42, left[:1], time.monotonic() - 1)
    core.leave(42, left[1:], time.monotonic())
    with pytest.raises(StopIteration) as stopped:
        next(core.poll(42, 9, 0))
    assert stopped.value.value == left[1:]


def test_an_ack_too_late_is_raised_by_flush_with_the_tag(connect: Any) -> None:
    script = (
        Expect(codec.encode_ack(9, 42) + codec.encode_ping(ID)),
        Send(codec.encode_nack(9, *codec.UNKNOWN_DELIVERY) + codec.encode_pong(ID)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.ack(Message("demo", b"hi", 1, 42, 9))
        with pytest.raises(NackError, match=r"^404 unknown subscription or delivery tag$") as caught:
            client.flush()
        assert caught.value.correlation_id == 9


def test_a_refused_publish_does_not_spoil_a_poll(connect: Any) -> None:
    script = (
        Expect(publish(ID, b"x")),
        expect_poll(ID + 1),
        Send(codec.encode_nack(ID, *codec.QUEUE_FULL) + publish(3, b"hi") + codec.encode_pong(ID + 2)),
        Expect(codec.encode_ping(ID + 3)),
        Send(codec.encode_pong(ID + 3)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.publish("demo", b"x")
        assert client.poll(42).body == b"hi"
        with pytest.raises(NackError, match=r"^503 queue full$"):
            client.flush()


def test_a_broker_that_goes_away_is_noticed_and_stays_away(connect: Any) -> None:
    script = (Expect(codec.encode_ping(ID)), Hangup())
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with pytest.raises(ConnectionLost):
            client.flush()
        with pytest.raises(ConnectionLost):
            client.flush()


def test_an_answer_just_before_the_end_still_counts(connect: Any) -> None:
    script = (Expect(codec.encode_ping(ID)), Send(codec.encode_pong(ID)), Hangup())
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.flush()


def test_unflushed_publishes_on_a_lost_connection_are_not_passed_over(connect: Any) -> None:
    script = (Expect(publish(ID, b"hi")), Hangup())
    with (
        ScriptedServer(*GREETING, *script) as server,
        pytest.raises(ConnectionLost),
        connect(server) as client,
    ):
        client.publish("demo", b"hi")


def test_a_silent_broker_is_given_up(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    core = ClientCore  # connecting has a hundred times the time

    def impatient(key: str, timeout: float, resend: bool) -> ClientCore:
        return core(key, timeout / 100, resend)

    for module in ("client", "client_async"):
        monkeypatch.setattr(f"wire.blipmq.{module}.ClientCore", impatient)
    with (
        ScriptedServer(GREETING[0]) as server,
        pytest.raises(ReplyTimeout, match=r"^no answer for 0\.5 s$"),
        connect(server, timeout=50),
    ):
        pytest.fail("connected")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"\0\0\0\0", "frame length 0"),
        (b"HTTP/1.1 400 Bad Request", "frame length 1213486160"),
        (publish(1, b"hi"), "a delivery without a POLL"),
        (codec.encode_pong(ID + 7), "frame type 0x08 with id"),
        (codec.encode_ack(3, 42), "frame type 0x05 with id 3 answers nothing"),
        (codec.encode_hello(1), "frame type 0x01 with id 1 answers nothing"),
        (codec.encode(codec.NACK, ID, b"\1"), "invalid NACK payload"),
    ],
)
def test_an_invalid_answer_of_the_broker_ends_the_connection(connect: Any, answer: bytes, message: str) -> None:
    script = (Expect(codec.encode_ping(ID)), Send(answer))
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        with pytest.raises(ProtocolViolation, match=message):
            client.flush()
        with pytest.raises((ConnectionLost, ProtocolViolation)):
            client.flush()


def test_a_flood_of_refusals_while_publishing_does_not_lock_up(connect: Any) -> None:
    body, count = bytes(60_000), 200
    refusals = b"".join(codec.encode_nack(ID + n, 503, "queue full" * 3000) for n in range(count))
    published = b"".join(publish(ID + n, body) for n in range(count))
    script = (
        Expect(published[:100]),
        Send(refusals),  # more than any socket buffers: returns only if the client reads while it writes
        Expect(published[100:] + codec.encode_ping(ID + count)),
        Send(codec.encode_pong(ID + count)),
    )
    with ScriptedServer(*GREETING, *script) as server, connect(server) as client:
        client.publish_many("demo", [body] * count)
        with pytest.raises(NackError) as caught:
            client.flush()
        assert len(caught.value.others) == count - 1


def test_a_refused_connection_is_an_os_error(connect: Any) -> None:
    with ScriptedServer(Hangup()) as server, suppress(ConnectionLost), connect(server):
        pass
    with pytest.raises(ConnectionRefusedError), connect(server):
        pytest.fail("connected")


async def test_a_cancelled_poll_does_not_leak_its_message_into_the_next() -> None:
    script = (
        expect_poll(ID, subscription=1),
        expect_poll(ID + 2, subscription=2),
        Send(publish(1, b"for 1") + codec.encode_pong(ID + 1)),
        Send(publish(1, b"for 2") + codec.encode_pong(ID + 3)),
    )
    with ScriptedServer(*GREETING, *script) as server:
        async with AsyncClient(server.host, server.port, "dev-key") as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.poll(1)
            assert await client.poll(2) == Message("demo", b"for 2", 1, 2, 1)


async def test_tasks_take_turns_on_one_connection() -> None:
    script = (
        Expect(codec.encode_subscribe(ID, b"a", 1)),
        Send(codec.encode_ack(ID, 1)),
        Expect(codec.encode_subscribe(ID + 1, b"b", 1)),
        Send(codec.encode_ack(ID + 1, 2)),
    )
    with ScriptedServer(*GREETING, *script) as server:
        async with AsyncClient(server.host, server.port, "dev-key") as client:
            first, second = await asyncio.gather(client.subscribe("a"), client.subscribe("b"))
            assert (first, second) == (1, 2)


async def test_an_asyncio_client_must_connect_first() -> None:
    client = AsyncClient("127.0.0.1", 1, "dev-key")
    with pytest.raises(ConnectionLost, match=r"^not connected$"):
        await client.flush()
    await client.close()


async def test_tasks_that_flush_together_share_a_round_trip_and_each_hears_of_a_refusal() -> None:
    bodies = [b"a", b"b", b"c"]
    publishes = b"".join(publish(ID + n, body) for n, body in enumerate(bodies))
    refusal = codec.encode_nack(ID + 1, 503, "queue full")
    script = (Expect(publishes + codec.encode_ping(ID + 3)), Send(refusal + codec.encode_pong(ID + 3)))

    async def confirmed(body: bytes) -> None:
        await client.publish("demo", body)
        await client.flush()

    with ScriptedServer(*GREETING, *script) as server:
        async with AsyncClient(server.host, server.port, "dev-key") as client:
            errors = await asyncio.gather(*map(confirmed, bodies), return_exceptions=True)
    assert [getattr(error, "correlation_id", None) for error in errors] == 3 * [ID + 1]


async def test_tasks_that_wait_for_confirmations_share_a_round_trip_and_each_hears_of_its_own_refusal() -> None:
    bodies = [b"a", b"b", b"c"]
    publishes = b"".join(publish(ID + n, body) for n, body in enumerate(bodies))
    refusal = codec.encode_nack(ID + 1, 503, "queue full")
    script = (Expect(publishes + codec.encode_ping(ID + 3)), Send(refusal + codec.encode_pong(ID + 3)))
    with ScriptedServer(*GREETING, *script) as server:
        async with AsyncClient(server.host, server.port, "dev-key") as client:
            sent = [client.publish("demo", body, confirm=True) for body in bodies]
            ids = await asyncio.gather(*sent, return_exceptions=True)
    assert [ids[0], getattr(ids[1], "correlation_id", None), ids[2]] == [ID, ID + 1, ID + 2]
    assert isinstance(ids[1], NackError)


async def test_a_publish_that_was_lost_is_not_confirmed_by_the_next_connection() -> None:
    core = ClientCore("dev-key", 1.0, resend=False)
    core.connection = 1
    correlation_id = core.publish("demo", b"lost", 1, confirm=True)
    core.lost(ConnectionLost("gone"), final=False)
    core.connection = 2
    with pytest.raises(ConnectionLost, match="may not be stored"):
        core.confirmed(correlation_id)
    again = ClientCore("dev-key", 1.0, resend=True)
    again.connection = 1
    correlation_id = again.publish("demo", b"sent again", 1, confirm=True)
    again.connection = 2
    again.confirmed(correlation_id)
