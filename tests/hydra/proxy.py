"""The way to the database, which can be cut or frozen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from brokersite.rigs.process import free_ports

CHUNK = 65536


class Proxy:
    """Carries bytes between clients and a server."""

    def __init__(self, host: str, port: int, own_port: int) -> None:
        self._host, self._port = host, port
        self.port = own_port
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: set[asyncio.StreamWriter] = set()
        self._silent: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    def cut(self) -> None:
        """End all connections and accept none."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    def forget(self) -> None:
        """End all connections of clients; the server is not told."""
        self._silent |= self._clients
        for writer in self._clients:
            writer.transport.abort()

    def freeze(self) -> None:
        """Carry nothing, and say nothing about it."""
        self._open.clear()

    def thaw(self) -> None:
        """Go on where it was frozen."""
        self._open.set()

    async def stop(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        self._writers |= {writer, back}
        self._clients.add(writer)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(CHUNK):
                await self._open.wait()
                target.write(data)
                await target.drain()
        if client not in self._silent:
            target.transport.abort()


@contextlib.asynccontextmanager
async def proxy_to(conninfo: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy to a PostgreSQL, and what to connect to instead."""
    given = conninfo_to_dict(conninfo)
    (port,) = free_ports(1)
    proxy = Proxy(str(given["host"]), int(given["port"] or 5432), port)
    await proxy.start()
    try:
        yield proxy, make_conninfo(conninfo, host="127.0.0.1", port=port)
    finally:
        await proxy.stop()
