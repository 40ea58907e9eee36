"""An IRC server of which every byte is in the test's hands, for what real ones do only when they are in trouble."""

from __future__ import annotations

import asyncio
import ssl
from types import TracebackType
from typing import Self

from tests.waiting import PATIENCE


class ScriptedClient:
    """One accepted connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.was_reset = False
        """Whether the client has reset the connection, as `rest` has seen."""

    async def line(self) -> bytes:
        """The next line, without its end; b"" when the client has closed."""
        async with asyncio.timeout(PATIENCE):
            line = await self.reader.readline()
        if line:
            assert line.endswith(b"\r\n"), line
        return line[:-2]

    async def until(self, beginning: bytes) -> bytes:
        """The next line that begins so; what comes before is dropped."""
        while not (line := await self.line()).startswith(beginning):
            assert line, f"closed before {beginning!r}"
        return line

    async def rest(self) -> bytes:
        """All that comes until the client has closed, or its connection was reset."""
        received = b""
        async with asyncio.timeout(PATIENCE):
            try:
                while data := await self.reader.read(65536):
                    received += data
            except ConnectionResetError:
                self.was_reset = True
        return received

    def pause(self) -> None:
        """Read nothing."""
        self.writer.transport.pause_reading()  # type: ignore[attr-defined]

    def resume(self) -> None:
        """Read again."""
        self.writer.transport.resume_reading()  # type: ignore[attr-defined]

    def send(self, data: bytes) -> None:
        """Write these bytes."""
        self.writer.write(data)

    async def register(self) -> str:
        """Take NICK and USER, welcome the client, and return its nick."""
        nick = (await self.until(b"NICK ")).removeprefix(b"NICK ").decode()
        await self.until(b"USER ")
        self.send(f":scripted 001 {nick} :Welcome\r\n".encode())
        return nick

    async def join(self) -> None:
        """Register, and let the client into one channel."""
        nick = await self.register()
        channel = (await self.until(b"JOIN ")).split(b" ")[1].decode()
        self.send(f":{nick}!hydra@scripted JOIN {channel}\r\n".encode())

    def reset(self) -> None:
        """Drop the connection."""
        self.writer.transport.abort()


class ScriptedServer:
    """Listens on a port of loopback."""

    def __init__(self, tls: ssl.SSLContext | None = None, buffer: int = 65536) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self._tls = tls
        self._buffer = buffer
        self._clients: list[ScriptedClient] = []
        self._accepted: asyncio.Queue[ScriptedClient] = asyncio.Queue()

    async def client(self) -> ScriptedClient:
        """The next connection."""
        async with asyncio.timeout(PATIENCE):
            return await self._accepted.get()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = ScriptedClient(reader, writer)
        self._clients.append(client)
        self._accepted.put_nowait(client)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, self.host, 0, ssl=self._tls, limit=self._buffer)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for client in self._clients:
            client.reset()
        await self._server.wait_closed()
