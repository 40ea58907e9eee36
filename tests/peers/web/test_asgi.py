"""The site's ASGI application: where WebSockets go, and the lifespan events."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from brokersite.asgi import application
from peers.server import lifespan
from tests.peers.web.test_transports import Recorder


async def converse(scope: dict[str, Any], *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the application some events; what it sends."""
    received: asyncio.Queue[Any] = asyncio.Queue()
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    for event in events:
        received.put_nowait(event)
    async with asyncio.timeout(10):
        await application(scope, received.get, send)  # type: ignore[arg-type]
    return sent


@pytest.mark.parametrize("path", ["/ws/peerbus", "/", "", "/any/path", "/admin/"])
async def test_every_path_leads_to_peerbus(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = []

    def make_session(transport: Any, scope: Any, service: Any) -> Recorder:
        sessions.append(Recorder(transport, scope))
        return sessions[-1]

    monkeypatch.setattr("brokersite.asgi.PeerSession", make_session)
    scope = {"type": "websocket", "path": path, "headers": [(b"origin", b"http://elsewhere.example")]}
    sent = await converse(
        scope,
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect", "code": 1000},
    )
    assert sent == [{"type": "websocket.accept", "subprotocol": None}]
    (session,) = sessions
    assert session.scope["path"] == path
    assert session.heard == [b"hello", "lost"]


def test_daphne_has_the_protocol_class_that_gives_the_transport() -> None:
    from daphne.ws_protocol import WebSocketFactory  # type: ignore[import-untyped]

    from peers.server.daphne import DaphneProtocol

    assert WebSocketFactory.protocol is DaphneProtocol


async def test_a_server_that_stops_has_the_callbacks_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []

    async def first() -> None:
        await asyncio.sleep(0)
        ran.append("first")

    async def fails() -> None:
        raise LookupError("as told")

    async def last() -> None:
        ran.append("last")

    monkeypatch.setattr(lifespan, "on_shutdown", [first, fails, last])
    with caplog.at_level(logging.ERROR):
        sent = await converse({"type": "lifespan"}, {"type": "lifespan.startup"}, {"type": "lifespan.shutdown"})
    assert sent == [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}]
    assert ran == ["first", "last"]
    assert "LookupError: as told" in caplog.text
