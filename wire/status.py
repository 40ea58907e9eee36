"""Health and metrics of a listener process: the same three pages as the site's, on an address of their own."""

from __future__ import annotations

import asyncio
import json

from prometheus_client import generate_latest

from brokersite.health import unready_reasons
from wire.address import Address
from wire.metrics import register
from wire.server import Server

LARGEST_REQUEST = 8192
PATIENCE = 5.0
TEXT = "text/plain; version=0.0.4; charset=utf-8"


class StatusServer:
    """Answers GET /healthz, /readyz and /metrics over HTTP/1.0, one request a connection."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._listening: asyncio.Server | None = None
        register(server)

    async def start(self, address: Address) -> Address:
        """Listen; returns the address with its real port. Raises OSError."""
        self._listening = await asyncio.start_server(self._answer, address.host, address.port, limit=LARGEST_REQUEST)
        return Address(address.host, self._listening.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                request = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = await self._page(request.split(b"\r\n", 1)[0])
                head = f"HTTP/1.0 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is gone or does not speak HTTP
        finally:
            writer.close()

    async def _page(self, line: bytes) -> tuple[str, str, bytes]:
        words = line.split()
        if len(words) < 2 or words[0] not in (b"GET", b"HEAD"):
            return "405 Method Not Allowed", TEXT, b"GET only\n"
        path = words[1].split(b"?")[0]
        if path == b"/healthz":
            return "200 OK", "application/json", b'{"status": "ok"}\n'
        if path == b"/readyz":
            reasons = await unready_reasons()
            if not self._server.engine.available:
                reasons.append("The engine has lost the database and is reconnecting.")
            status = "503 Service Unavailable" if reasons else "200 OK"
            page = {"status": "unready" if reasons else "ready", "reasons": reasons}
            return status, "application/json", json.dumps(page).encode() + b"\n"
        if path == b"/metrics":
            return "200 OK", TEXT, generate_latest()
        return "404 Not Found", TEXT, b"/healthz /readyz /metrics\n"
