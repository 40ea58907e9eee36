"""The site's ASGI application: where WebSockets go, and the lifespan events."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
from typing import Any

import daphne.server  # type: ignore[import-untyped]  # noqa: F401  # as under daphne: the site looks for it
import pytest

from brokersite.asgi import application
from peers.server import lifespan
from queues.engine.garbage import THRESHOLDS
from tests.peers.web.test_transports import Recorder
from tests.process import Process


async def converse(scope: dict[str, Any], *events: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the application some events; what it sends."""
    received: asyncio.Queue[Any] = asyncio.Queue()
    sent: list[dict[str, Any]] = []

    async def send(event: Any) -> None:
        sent.append(event)

    for event in events:
        received.put_nowait(event)
    async with asyncio.timeout(10):
        await application(scope, received.get, send)
    return sent


@pytest.mark.parametrize("below", [{}, {"root_path": "/broker"}], ids=["at the root", "below a path"])
@pytest.mark.parametrize("path", ["/ws/peerbus", "/", "", "/any/path", "/admin/", "/broker/ws/peerbus"])
async def test_every_path_leads_to_peerbus(path: str, below: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = []

    def make_session(transport: Any, scope: Any, service: Any) -> Recorder:
        sessions.append(Recorder(transport, scope))
        return sessions[-1]

    monkeypatch.setattr("brokersite.asgi.PeerSession", make_session)
    scope = {"type": "websocket", "path": path, "headers": [(b"origin", b"http://elsewhere.example")], **below}
    sent = await converse(
        scope,
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hello"},
        {"type": "websocket.disconnect", "code": 1000},
    )
    assert sent == [{"type": "websocket.accept", "subprotocol": None}]
    (session,) = sessions
    assert session.scope["path"].endswith(path)
    assert session.heard == [b"hello", "lost"]


def test_objects_in_flight_are_rarely_looked_at() -> None:
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 0


def test_daphne_has_the_protocol_class_that_gives_the_transport() -> None:
    code = (
        "import daphne.server, brokersite.asgi; from daphne.ws_protocol import WebSocketFactory;"
        "print(WebSocketFactory.protocol.__module__)"
    )
    status, lines, log = Process(sys.executable, "-c", code).finish()
    assert (status, lines) == (0, ["peers.server.daphne"]), log


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
