"""The status pages of a listener process, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import pytest
from prometheus_client import REGISTRY

from queues.engine.api import Engine, EngineOptions
from queues.monitoring import health
from tests.wire.serving import EVENT_LOOPS, LOCAL, run_scenario
from wire import status
from wire.net.address import HostPort
from wire.server import Server
from wire.status import StatusServer

Run = Callable[[Callable[["Pages"], Awaitable[None]]], None]


class Answer(NamedTuple):
    status: str
    headers: dict[str, str]
    body: bytes


class Pages:
    """A status server and the server that it speaks of."""

    def __init__(self) -> None:
        self.engine = Engine(EngineOptions(conninfo=""))
        self.server = Server(self.engine)
        self.engine.connections.begin_service()
        self.status = StatusServer(self.server)
        self.address = LOCAL

    async def send(self, request: bytes) -> bytes:
        """Everything that comes for a request, until the end."""
        reader, writer = await asyncio.open_connection(self.address.host, self.address.port)
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()

    async def ask(self, path: str, method: str = "GET") -> Answer:
        head, _, body = (await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
            b"\r\n\r\n"
        )
        first, *lines = head.decode().split("\r\n")
        return Answer(first, dict(line.split(": ", 1) for line in lines), body)


@pytest.fixture(params=EVENT_LOOPS)
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Carry a scenario out with pages that are served; the database is ready."""
    monkeypatch.setattr(health, "_looked_up", reasons())

    async def scenario(body: Callable[[Pages], Awaitable[None]]) -> None:
        pages = Pages()
        try:
            pages.address = await pages.status.start(LOCAL)
            await body(pages)
        finally:
            pages.status.close()

    return lambda body: run_scenario(request.param, scenario(body))


def reasons(*found: str) -> Callable[[], Coroutine[Any, Any, list[str]]]:
    """A stub for the look-up of the database's faults."""

    async def looked_up() -> list[str]:
        return list(found)

    return looked_up


def test_a_process_that_answers_is_alive(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        answer = await pages.ask("/healthz")
        assert answer.status == "HTTP/1.0 200 OK"
        assert json.loads(answer.body) == {"status": "ok"}
        assert answer.headers == {"Content-Type": "application/json", "Content-Length": str(len(answer.body))}

    run(scenario)


def test_a_process_is_ready_when_the_database_and_the_engine_are(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        answer = await pages.ask("/readyz?verbose=1")
        assert answer.status == "HTTP/1.0 200 OK"
        assert json.loads(answer.body) == {"status": "ready", "reasons": []}

    run(scenario)


def test_an_unready_process_says_every_reason(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(pages: Pages) -> None:
        pages.engine.connections.end_service()
        lost = "The engine has lost the database and is reconnecting: a connection is lost."
        answer = await pages.ask("/readyz")
        assert answer.status == "HTTP/1.0 503 Service Unavailable"
        assert json.loads(answer.body) == {"status": "unready", "reasons": [lost]}
        monkeypatch.setattr(health, "_looked_up", reasons("No tables."))
        assert json.loads((await pages.ask("/readyz")).body)["reasons"] == [lost, "No tables."]
        pages.engine.connections.begin_service()
        answer = await pages.ask("/readyz")
        assert answer.status == "HTTP/1.0 503 Service Unavailable"
        assert json.loads(answer.body)["reasons"] == ["No tables."]
        assert (await pages.ask("/healthz")).status == "HTTP/1.0 200 OK"

    run(scenario)


def test_a_ready_process_says_what_an_operator_should_know(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        pages.engine.timeline.rewritten = "another timeline"
        answer = await pages.ask("/readyz")
        assert answer.status == "HTTP/1.0 200 OK"
        assert json.loads(answer.body)["notes"] == ["Messages that were confirmed may be lost: another timeline."]

    run(scenario)


def test_metrics_are_prometheus_text(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        pages.server.engine.counts.published = 4711
        answer = await pages.ask("/metrics")
        assert answer.status == "HTTP/1.0 200 OK"
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert b"\nfivewire_published_total 4711.0\n" in answer.body
        assert int(answer.headers["Content-Length"]) == len(answer.body)

    run(scenario)


def test_head_gets_the_headers_only(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        full, head = await pages.ask("/healthz"), await pages.ask("/healthz", "HEAD")
        assert head == full._replace(body=b"")

    run(scenario)


def test_another_page_is_not_found_and_the_right_ones_are_named(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        for path in ("/", "/healthz/", "/metrics.txt"):
            answer = await pages.ask(path)
            assert answer.status == "HTTP/1.0 404 Not Found"
            assert answer.body == b"/healthz /readyz /metrics\n"

    run(scenario)


def test_a_page_cannot_be_written(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        for method in ("POST", "DELETE", "get"):
            answer = await pages.ask("/healthz", method)
            assert answer.status == "HTTP/1.0 405 Method Not Allowed"
            assert answer.headers["Allow"] == "GET, HEAD"

    run(scenario)


@pytest.mark.parametrize("garbage", [b"\x16\x03\x01\x02\x00", b"GET /healthz", b"GET /healthz GOPHER/1", b""])
def test_garbage_is_named_so(run: Run, garbage: bytes) -> None:
    async def scenario(pages: Pages) -> None:
        answer = await pages.send(garbage + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.0 400 Bad Request\r\n")
        assert answer.endswith(b"\r\n\r\nThis is no HTTP request.\n")
        assert (await pages.ask("/healthz")).status == "HTTP/1.0 200 OK"

    run(scenario)


def test_a_request_without_an_end_is_dropped_when_it_is_too_long(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        with contextlib.suppress(ConnectionError):  # it does not read to the end
            assert await pages.send(b"GET /healthz HTTP/1.0\r\n" + b"x: y\r\n" * 20_000) == b""

    run(scenario)


def test_a_client_that_is_slow_to_ask_is_dropped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "TIMEOUT", 0.05)

    async def scenario(pages: Pages) -> None:
        assert await pages.send(b"GET /healthz HTTP/1.0\r\n") == b""

    run(scenario)


def test_a_client_that_does_not_take_its_answer_is_dropped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    page = b"x" * 50_000_000
    monkeypatch.setattr(status, "TIMEOUT", 0.2)
    monkeypatch.setattr(status, "generate_latest", lambda: page)

    async def scenario(pages: Pages) -> None:
        given_up = asyncio.Event()
        answer = pages.status._answer

        async def watched(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answer(reader, writer)
            given_up.set()

        monkeypatch.setattr(pages.status, "_answer", watched)
        pages.status.close()
        pages.address = await pages.status.start(LOCAL)
        reader, writer = await asyncio.open_connection(pages.address.host, pages.address.port)
        writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")  # the stream stops reading by itself when it has some of it
        await given_up.wait()
        taken = 0
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(1 << 20):
                taken += len(data)
        writer.close()
        assert taken < len(page)

    run(scenario)


def test_a_client_that_goes_away_disturbs_no_other(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(pages: Pages) -> None:
        for request in (b"", b"GET", b"GET /metrics HTTP/1.0\r\n\r\n"):
            _, writer = await asyncio.open_connection(pages.address.host, pages.address.port)
            writer.write(request)
            writer.transport.abort()
        assert (await pages.ask("/healthz")).status == "HTTP/1.0 200 OK"

    run(scenario)
    assert not caplog.records


def test_a_port_that_is_taken_is_told(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        with pytest.raises(OSError, match="ddress already in use"):
            await pages.status.start(HostPort("127.0.0.1", pages.address.port))

    run(scenario)


def test_closing_frees_the_port_and_the_metrics(run: Run) -> None:
    async def scenario(pages: Pages) -> None:
        assert REGISTRY.get_sample_value("fivewire_published_total") == 0
        pages.status.close()
        assert REGISTRY.get_sample_value("fivewire_published_total") is None
        with pytest.raises(ConnectionRefusedError):
            await pages.ask("/healthz")

    run(scenario)
