"""The transport over plain ASGI events, with a server that does what the test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from peers.server import transport
from peers.server.consumer import PeerbusConsumer
from peers.server.transport import Transport
from tests.waiting import until


class Recorder:
    """A session that notes what it hears."""

    def __init__(self, transport: Transport, scope: Any) -> None:
        self.transport = transport
        self.scope = scope
        self.heard: list[Any] = []

    def texts_received(self, texts: Sequence[bytes]) -> None:
        self.heard += texts

    def binary_received(self) -> None:
        self.heard.append(None)

    def drained(self) -> None:
        self.heard.append("drained")

    def failed(self, event: str) -> None:
        self.heard.append("failed")

    def connection_lost(self) -> None:
        self.heard.append("lost")


class Server:
    """The server's end: events for the application, and those that it has sent."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.error: Exception | None = None
        self.session: Recorder
        self.events.put_nowait({"type": "websocket.connect"})

        def make_session(transport: Transport, scope: Any) -> Recorder:
            self.session = Recorder(transport, scope)
            return self.session

        consumer = PeerbusConsumer(make_session=make_session)
        self.task = asyncio.create_task(consumer({"type": "websocket"}, self.events.get, self.send))

    async def send(self, event: dict[str, Any]) -> None:
        await self.writable.wait()
        if self.error is not None:
            raise self.error
        self.sent.append(event)
        if event["type"] == "websocket.close":
            self.events.put_nowait({"type": "websocket.disconnect", "code": event["code"]})

    async def until(self, condition: Callable[[], Any]) -> None:
        await until(condition)

    async def started(self) -> Recorder:
        await self.until(lambda: hasattr(self, "session"))
        return self.session

    async def ended(self) -> None:
        async with asyncio.timeout(10):
            await self.task


@pytest.fixture
async def server() -> Server:
    return Server()


def text(text: str) -> dict[str, Any]:
    return {"type": "websocket.send", "text": text}


def close(code: int, reason: str) -> dict[str, Any]:
    return {"type": "websocket.close", "code": code, "reason": reason}


ACCEPT = {"type": "websocket.accept", "subprotocol": None}


async def test_the_session_has_the_scope_and_the_connection_is_accepted(server: Server) -> None:
    session = await server.started()
    assert session.scope == {"type": "websocket"}
    assert server.sent == [ACCEPT]
    server.events.put_nowait({"type": "websocket.disconnect", "code": 1000})
    await server.ended()
    assert session.heard == ["lost"]


async def test_texts_are_sent_in_order_and_unsent_counts_their_bytes(server: Server) -> None:
    session = await server.started()
    server.writable.clear()
    session.transport.send([b"one", "zw\u00f6".encode()])
    session.transport.send([b"three"])
    assert session.transport.unsent == 12
    server.writable.set()
    await server.until(lambda: session.heard == ["drained"])
    assert session.transport.unsent == 0
    assert server.sent == [ACCEPT, text("one"), text("zw\u00f6"), text("three")]


async def test_a_close_drops_what_waits_behind_a_server_that_pushes_back(server: Server) -> None:
    session = await server.started()
    server.writable.clear()
    session.transport.send([b"one", b"two", b"three"])
    for _ in range(3):
        await asyncio.sleep(0)  # the writer waits with the first
    session.transport.close(1008, "slow consumer")
    session.transport.close(1000, "again")
    session.transport.send([b"four"])
    await server.until(lambda: session.heard == ["lost"])
    server.writable.set()
    await server.ended()
    assert server.sent == [ACCEPT, text("one"), close(1008, "slow consumer")]
    assert session.heard == ["lost"]


async def test_a_close_comes_after_what_was_just_sent(server: Server) -> None:
    session = await server.started()
    session.transport.send([b"one", b"two"])
    session.transport.close(1000, "done")
    assert session.heard == []  # not inside close
    await server.ended()
    assert server.sent == [ACCEPT, text("one"), text("two"), close(1000, "done")]
    assert session.heard == ["lost"]


async def test_a_server_that_never_takes_the_close_is_left_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINGER", 0.01)
    session = await server.started()
    server.writable.clear()
    session.transport.send([b"one"])
    await asyncio.sleep(0)
    session.transport.close(1008, "slow consumer")
    await server.ended()
    assert server.sent == [ACCEPT]
    assert session.heard == ["lost"]


async def test_a_server_that_cannot_send_any_more_is_read_to_the_end(server: Server) -> None:
    session = await server.started()
    session.transport.pause_reading()
    server.error = OSError("gone")
    session.transport.send([b"one"])
    server.events.put_nowait({"type": "websocket.receive", "text": "sent before"})
    await server.until(lambda: session.heard == [b"sent before"])
    session.transport.send([b"two"])
    session.transport.pause_reading()
    server.events.put_nowait({"type": "websocket.disconnect", "code": 1006})
    await server.ended()
    assert session.heard == [b"sent before", "lost"]


async def test_a_server_that_cannot_send_and_tells_of_no_disconnect_is_left_in_the_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "LINGER", 0.01)
    session = await server.started()
    server.error = OSError("gone")
    session.transport.send([b"one"])
    await server.ended()
    assert session.heard == ["lost"]


async def test_nothing_is_received_while_reading_is_paused(server: Server) -> None:
    session = await server.started()
    server.events.put_nowait({"type": "websocket.receive", "text": "one"})
    await server.until(lambda: session.heard == [b"one"])
    session.transport.pause_reading()
    for number in range(3):
        server.events.put_nowait({"type": "websocket.receive", "text": str(number)})
    for _ in range(10):
        await asyncio.sleep(0)
    assert session.heard == [b"one"]
    assert server.events.qsize() == 2  # the one that was being waited for is taken, and held
    session.transport.resume_reading()
    await server.until(lambda: session.heard == [b"one", b"0", b"1", b"2"])


async def test_text_and_binary_of_1_mib_pass_and_more_is_closed_with_1009(server: Server) -> None:
    session = await server.started()
    server.events.put_nowait({"type": "websocket.receive", "text": "\u00e9" * (1 << 19), "bytes": None})
    server.events.put_nowait({"type": "websocket.receive", "bytes": bytes(1 << 20)})
    await server.until(lambda: len(session.heard) == 2)
    assert session.heard[1] is None
    server.events.put_nowait({"type": "websocket.receive", "text": "\u00e9" * (1 << 19) + "z"})
    server.events.put_nowait({"type": "websocket.receive", "text": "behind it"})
    await server.ended()
    assert server.sent == [ACCEPT, close(1009, "message too big")]
    assert session.heard[2:] == ["lost"]


async def test_a_server_that_stops_has_1001_sent(server: Server) -> None:
    session = await server.started()
    server.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.task
    assert server.sent == [ACCEPT, close(1001, "going away")]
    assert session.heard == ["lost"]


async def test_a_stop_does_not_wait_for_ever(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "GOODBYE", 0.01)
    session = await server.started()
    server.writable.clear()
    session.transport.send([b"one"])
    server.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await server.task
    assert session.heard == ["lost"]
