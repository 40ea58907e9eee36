"""Health and metrics of a listener process: the same three pages as the site's, on an address of their own."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus

from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest

from queues.monitoring.health import readiness
from wire.metrics import WireCollector
from wire.net.address import HostPort
from wire.server import Server

MAX_REQUEST = 8192
#: Seconds for a request to come, and for its answer to be taken.
TIMEOUT = 5.0
TEXT, JSON = "text/plain; charset=utf-8", "application/json"

Page = tuple[HTTPStatus, str, bytes]


class StatusServer:
    """Answers GET /healthz, /readyz and /metrics over HTTP/1.0, one request a connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        self._collector = WireCollector(server)
        REGISTRY.register(self._collector)

    async def start(self, address: HostPort) -> HostPort:
        """Listen; returns the address with its real port. Raises OSError."""
        self._listening = await asyncio.start_server(self._answer, address.host, address.port, limit=MAX_REQUEST)
        return HostPort(address.host, self._listening.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()
        with suppress(KeyError):  # closed before
            REGISTRY.unregister(self._collector)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(0)  # drain waits until the client has taken all
        try:
            async with asyncio.timeout(TIMEOUT):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(request.split(b"\r\n", 1)[0]))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.transport.abort()  # the client is gone, too slow, or does not speak HTTP
        finally:
            writer.close()

    async def _response(self, line: bytes) -> bytes:
        """The answer to a request line."""
        words = line.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            status, kind, body = HTTPStatus.BAD_REQUEST, TEXT, b"This is no HTTP request.\n"
        elif words[0] not in (b"GET", b"HEAD"):
            status, kind, body = HTTPStatus.METHOD_NOT_ALLOWED, TEXT, b"GET only\n"
        else:
            status, kind, body = await self._page(words[1].split(b"?")[0])
        head = f"HTTP/1.0 {status:d} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            head += "Allow: GET, HEAD\r\n"
        return head.encode() + b"\r\n" + (b"" if words[0] == b"HEAD" else body)

    async def _page(self, path: bytes) -> Page:
        if path == b"/healthz":
            return HTTPStatus.OK, JSON, b'{"status": "ok"}\n'
        if path == b"/readyz":
            answer = await readiness(self._server.engine)
            return answer.status, JSON, json.dumps(answer.page).encode() + b"\n"
        if path == b"/metrics":
            return HTTPStatus.OK, CONTENT_TYPE_LATEST, generate_latest()
        return HTTPStatus.NOT_FOUND, TEXT, b"/healthz /readyz /metrics\n"
