"""Features of the asyncio client alone: several tasks at once, and reading ahead."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from peers.client import AsyncPeerClient
from peers.codec import frames
from peers.codec.envelope import Envelope, build
from peers.codec.frames import PeersRequest
from peers.errors import NoAnswer, TakenOver
from tests.peers.broker import QUICK, FakeBroker
from tests.peers.vectors import SECRET
from wire.client.errors import ConnectionLost


def peer(broker: FakeBroker, name: str = "alice", **given: Any) -> AsyncPeerClient:
    return AsyncPeerClient(broker.url, "t", name, **{"secret": SECRET, "reconnect": QUICK} | given)


def fill(broker: FakeBroker, count: int) -> list[str]:
    """Put messages into alice's mailbox; their ids."""
    ids = [f"{number:04}" for number in range(count)]
    for id in ids:
        broker.deliver("alice", id, build(sender="bob", to="alice", body=b"1", secret=SECRET, id=id).text)
    return ids


async def test_tasks_that_send_ask_and_receive_do_not_disturb_each_other(broker: FakeBroker) -> None:
    async with peer(broker) as alice, peer(broker, "bob") as bob:

        async def send(prefix: str) -> None:
            for number in range(20):
                await alice.send("bob", f"{prefix}{number}", confirm=number % 5 == 0)
                assert await alice.peers() == ["alice", "bob"]

        async def receive(seen: list[str]) -> None:
            async for message in bob.messages():
                seen.append(message.body)

        async def all_seen() -> None:
            while len(seen[0] + seen[1]) < 40:
                await asyncio.sleep(0.01)

        seen: tuple[list[str], list[str]] = [], []
        receiving = [asyncio.create_task(receive(each)) for each in seen]
        await asyncio.gather(send("a"), send("b"))
        await asyncio.wait_for(all_seen(), 60)
        await bob.peers()  # the acknowledgements have arrived
        for task in receiving:
            task.cancel()
        await asyncio.wait(receiving)
        for prefix in "ab":
            mine = [body for body in map(str, sorted(seen[0] + seen[1], key=lambda b: int(b[1:]))) if body[0] == prefix]
            assert mine == [f"{prefix}{number}" for number in range(20)]
        assert len(broker.acked) == 40


async def test_an_answer_behind_untaken_messages_is_found(broker: FakeBroker) -> None:
    ids = fill(broker, 200)
    async with peer(broker, prefetch=2) as alice:
        assert await alice.peers() == ["alice"]
        await alice.send("carol", 1, confirm=True)
        assert [message.id async for message in alice.messages(0.3)] == ids


async def test_no_more_is_read_ahead_than_was_asked_for(broker: FakeBroker) -> None:
    ids = fill(broker, 100)
    async with peer(broker, prefetch=5) as alice:
        first = await alice.receive(60)
        assert first is not None
        async with asyncio.timeout(60):
            while len(alice._core.inbox) < 5:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)  # nothing more is to happen
        assert len(alice._core.inbox) == 5
        await alice.ack(first)
        rest = [await alice.receive(60) for _ in ids[1:]]
        assert [first.id, *(message and message.id for message in rest)] == ids


async def test_a_waiting_call_raises_when_another_connection_takes_the_name_over(broker: FakeBroker) -> None:
    alice = peer(broker)
    await alice.connect()
    waiting = [asyncio.create_task(alice.receive()) for _ in range(2)]
    await asyncio.sleep(0)
    async with peer(broker):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [TakenOver, TakenOver]
    assert results[0] is not results[1]
    await alice.close()


async def test_a_waiting_call_raises_when_the_client_is_closed(broker: FakeBroker) -> None:
    alice = peer(broker)
    await alice.connect()
    waiting = asyncio.create_task(alice.receive())
    await asyncio.sleep(0)
    await alice.close()
    with pytest.raises(ConnectionLost, match=r"^not connected$"):
        await waiting


async def test_a_task_that_is_cancelled_while_it_waits_takes_no_message(broker: FakeBroker) -> None:
    async with peer(broker) as alice:
        waiting = asyncio.create_task(alice.receive())
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        fill(broker, 1)
        message = await alice.receive(60)
        assert message is not None
        assert message.id == "0000"


async def test_a_timeout_of_the_caller_is_the_callers(broker: FakeBroker) -> None:
    broker.before = lambda connection, frame: not isinstance(frame, PeersRequest)
    alice = peer(broker)
    await alice.connect()
    with pytest.raises(TimeoutError) as raised:
        async with asyncio.timeout(0.05):
            await alice.peers(10)
    assert not isinstance(raised.value, NoAnswer)
    await alice.abort()


async def test_a_closed_client_leaves_no_task_behind(broker: FakeBroker) -> None:
    before = asyncio.all_tasks()
    async with peer(broker) as alice:
        await alice.send("bob", 1)
        assert asyncio.all_tasks() > before
    assert asyncio.all_tasks() == before


async def test_a_client_closed_while_it_reconnects_is_closed(broker: FakeBroker) -> None:
    alice = peer(broker)
    await alice.connect()
    broker.stop()
    assert await alice.receive(0.1) is None
    await alice.close()
    broker.start()
    with pytest.raises(ConnectionLost):
        await alice.peers()
    assert broker.connections == 1


async def test_a_client_whose_broker_takes_no_more_goes_on_reading(broker: FakeBroker) -> None:
    """Else each would wait for the other."""
    stuck, sent = threading.Event(), threading.Event()
    body, taken = "x" * 1_000_000, 0
    envelope = build(sender="bob", to="alice", body=b"\"%s\"" % body.encode(), secret=SECRET, id="1").text

    def send_before_reading(connection: Any, frame: frames.Frame) -> bool:
        if isinstance(frame, Envelope) and not sent.is_set():
            assert stuck.wait(60)
            for number in range(40):
                connection.send(frames.deliver_frame(str(number), envelope), text=True)
            sent.set()
        return True

    broker.before = send_before_reading
    async with peer(broker, prefetch=1000) as alice:

        async def send() -> None:
            nonlocal taken
            while not sent.is_set():
                await alice.send("carol", body[:200_000])
                taken += 1

        sending = [asyncio.create_task(send()) for _ in range(2)]
        before = -1
        while before != taken:  # until it takes no more
            before = taken
            await asyncio.sleep(0.5)
        stuck.set()
        assert await asyncio.to_thread(sent.wait, 60)
        await asyncio.wait(sending)
