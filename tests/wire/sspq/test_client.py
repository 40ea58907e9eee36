"""The SSPQ clients against exact bytes: blocking, on asyncio and on uvloop."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wire.scripted import CLIENT_KINDS, Expect, Hangup, ScriptedServer, Send, clients
from wire.client.errors import ConnectionLost, ProtocolViolation
from wire.sspq.client import AsyncClient, Client, Declined, Message, NothingHeld, SlotBusy
from wire.sspq.client_core import ClientCore

RECEIVE, CONFIRM = bytes.fromhex("5599ec0000000000"), bytes.fromhex("5599c00000000000")
DEAD_RECEIVE, NO_RECEIVE = bytes.fromhex("5599de0000000000"), bytes.fromhex("55990e0000000000")
HELLO = bytes.fromhex("55995e010000000568656c6c6f")
HELLO_AGAIN = bytes.fromhex("55995e000000000568656c6c6f")


@pytest.fixture(params=CLIENT_KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Make a connected client of each kind: `with connect(server) as client`."""
    with clients(request.param, Client, AsyncClient) as make:
        # The server plays its script once: a client that comes again would wait for it.
        yield lambda server, **kwargs: make(server.host, server.port, **{"reconnect": False} | kwargs)


def test_send_and_leave_at_once_loses_nothing(connect: Any) -> None:
    body = bytes(3_000_000)
    script = (Expect(HELLO + bytes.fromhex("55995e03 002dc6c0") + body),)
    with ScriptedServer(*script) as server, connect(server) as client:
        client.send(b"hello", retries=1)
        client.send(body)


def test_receive_waits_for_a_message_and_confirm_removes_it(connect: Any) -> None:
    script = (Expect(RECEIVE), Send(HELLO[:5]), Send(HELLO[5:]), Expect(CONFIRM))
    with ScriptedServer(*script) as server, connect(server) as client:
        assert client.receive() == Message(b"hello", 1)
        client.confirm()


def test_dead_letters_are_received_in_the_same_way(connect: Any) -> None:
    script = (Expect(DEAD_RECEIVE), Send(HELLO_AGAIN), Expect(CONFIRM))
    with ScriptedServer(*script) as server, connect(server) as client:
        assert client.dead_receive() == Message(b"hello", 0)
        client.confirm()


@pytest.mark.parametrize(
    ("method", "request_", "message"),
    [("receive", RECEIVE, "no message will come"), ("dead_receive", DEAD_RECEIVE, "no dead letters here")],
)
def test_a_refusal_is_raised_and_one_may_ask_again(connect: Any, method: str, request_: bytes, message: str) -> None:
    script = (Expect(request_), Send(NO_RECEIVE), Expect(RECEIVE), Send(HELLO))
    with ScriptedServer(*script) as server, connect(server) as client:
        with pytest.raises(Declined, match=message):
            getattr(client, method)()
        assert client.receive() == Message(b"hello", 1)


def test_a_receive_that_timed_out_still_stands(connect: Any) -> None:
    script = (Expect(RECEIVE), Expect(HELLO), Send(HELLO), Expect(CONFIRM))
    with ScriptedServer(*script) as server, connect(server) as client:
        assert client.receive(timeout=0.01) is None
        with pytest.raises(SlotBusy, match="the other kind"):
            client.dead_receive()
        client.send(b"hello", retries=1)
        assert client.receive() == Message(b"hello", 1)
        client.confirm()


def test_the_slot_is_busy_until_the_message_is_confirmed(connect: Any) -> None:
    script = (Expect(RECEIVE), Send(HELLO), Expect(CONFIRM))
    with ScriptedServer(*script) as server, connect(server) as client:
        with pytest.raises(NothingHeld):
            client.confirm()
        client.receive()
        with pytest.raises(SlotBusy, match="confirm the message"):
            client.receive()
        with pytest.raises(SlotBusy, match="confirm the message"):
            client.dead_receive()
        client.confirm()
        with pytest.raises(NothingHeld):
            client.confirm()


def test_iterating_confirms_each_message_together_with_the_next_receive(connect: Any) -> None:
    script = (
        Expect(RECEIVE),
        Send(HELLO),
        Expect(CONFIRM + RECEIVE),
        Send(HELLO_AGAIN),
        Expect(CONFIRM + RECEIVE),
        Send(NO_RECEIVE),
    )
    with ScriptedServer(*script) as server, connect(server) as client:
        messages = client.messages()
        assert next(messages) == Message(b"hello", 1)
        assert next(messages) == Message(b"hello", 0)
        with pytest.raises(Declined):
            next(messages)


def test_iterating_ends_when_nothing_comes_in_time(connect: Any) -> None:
    with ScriptedServer(Expect(RECEIVE)) as server, connect(server) as client:
        assert list(client.messages(timeout=0.01)) == []


def test_leaving_a_loop_leaves_the_message_unconfirmed(connect: Any) -> None:
    with ScriptedServer(Expect(RECEIVE), Send(HELLO)) as server, connect(server) as client:
        for message in client.messages():
            assert message == Message(b"hello", 1)
            break


def test_a_loop_body_may_confirm_by_itself(connect: Any) -> None:
    script = (
        Expect(DEAD_RECEIVE),
        Send(HELLO_AGAIN),
        Expect(CONFIRM),
        Expect(DEAD_RECEIVE),
        Send(NO_RECEIVE),
    )
    with ScriptedServer(*script) as server, connect(server) as client:
        messages = client.messages(dead=True)
        assert next(messages) == Message(b"hello", 0)
        client.confirm()
        with pytest.raises(Declined):
            next(messages)


def test_one_may_send_while_holding(connect: Any) -> None:
    script = (Expect(RECEIVE), Send(HELLO), Expect(HELLO + CONFIRM))
    with ScriptedServer(*script) as server, connect(server) as client:
        client.receive()
        client.send(b"hello", retries=1)
        client.confirm()


def test_a_broker_that_goes_away_is_noticed_and_stays_away(connect: Any) -> None:
    with ScriptedServer(Expect(RECEIVE), Hangup()) as server, connect(server) as client:
        with pytest.raises(ConnectionLost):
            client.receive()
        with pytest.raises(ConnectionLost):
            client.send(b"hello")


def test_a_message_just_before_the_end_is_still_received(connect: Any) -> None:
    with ScriptedServer(Expect(RECEIVE), Send(HELLO), Hangup()) as server, connect(server) as client:
        assert client.receive() == Message(b"hello", 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1", "magic number is 0x4854"),
        (RECEIVE, "unexpected packet type 0xec"),
        (bytes.fromhex("55995e0000000065"), "payload of 101 bytes is over 100"),
    ],
)
def test_an_invalid_answer_of_the_broker_ends_the_connection(connect: Any, answer: bytes, message: str) -> None:
    with (
        ScriptedServer(Expect(RECEIVE), Send(answer)) as server,
        connect(server, max_payload=100) as client,
        pytest.raises(ProtocolViolation, match=message),
    ):
        client.receive()


def test_a_second_message_where_one_was_asked_for_is_a_violation() -> None:
    core = ClientCore(max_payload=100)
    next(core.receive(False, None))
    with pytest.raises(ProtocolViolation, match="unexpected packet type 0x5e"):
        core.receive_data(HELLO + HELLO)


@pytest.mark.parametrize("retries", [-1, 256])
def test_a_retry_counter_that_is_no_byte_is_refused(connect: Any, retries: int) -> None:
    with ScriptedServer() as server, connect(server) as client, pytest.raises(ValueError, match="SSPQ"):
        client.send(b"hello", retries=retries)


async def test_a_task_may_send_while_another_waits() -> None:
    with ScriptedServer(Expect(RECEIVE), Expect(HELLO), Send(HELLO), Expect(CONFIRM)) as server:
        async with AsyncClient(server.host, server.port) as client:
            waiting = asyncio.create_task(client.receive())
            await asyncio.sleep(0)  # lets the task ask before we send
            await client.send(b"hello", retries=1)
            assert await waiting == Message(b"hello", 1)
            await client.confirm()


async def test_a_message_for_a_cancelled_receive_is_kept_for_the_next() -> None:
    with ScriptedServer(Expect(RECEIVE), Expect(HELLO), Send(HELLO)) as server:
        async with AsyncClient(server.host, server.port) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.receive()
            await client.send(b"hello", retries=1)
            assert await client.receive() == Message(b"hello", 1)
