"""Letters a second of peerbus by the path that they take in the web server, side by side in one run::

    python -m brokersite.rigs.peerbus.bench --letters 30000 --rounds 5

One peer sends signed letters to another, which acknowledges each; a window of them is on its way at once. The clock
runs from the first send to the answer to `peers` behind the last acknowledgement, when everything is committed. Each
round runs the servers in turns, each in a process of its own on a scratch database: daphne with the transport of
`peers.server.daphne`, daphne with Channels' events alone, uvicorn (which has only these). Only ratios
mean anything on a noisy machine; CPU is that of the server process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import django
import psutil
from django.conf import settings

from brokersite.environment import CHECKOUT
from peers.codec import frames
from peers.codec.envelope import build
from peers.server.websocket_frames import LENGTH_16, MASKED, WHOLE_TEXT

SECRET: Final = "0123456789abcdef0123456789abcdef"
TOKEN: Final = "bench"
DATABASE: Final = "fivewire_peerbus_bench"
#: Letters on their way at once.
WINDOW: Final = 2000
#: First bytes of frames.
PING, PONG = 0x89, 0x8A
#: Seconds that a server has to start, and that any answer may take.
PATIENCE: Final = 60.0
SERVERS: Final = {
    "daphne, own transport": ["daphne", "-b", "127.0.0.1", "brokersite.asgi:application"],
    "daphne, Channels": ["daphne", "-b", "127.0.0.1", "brokersite.rigs.peerbus.channels_only:application"],
    "uvicorn, Channels": ["uvicorn", "--no-access-log", "--log-level", "warning", "brokersite.asgi:application"],
}


class BarePeer:
    """A registered peer over a bare socket: a client that costs next to nothing."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def registered(cls, port: int, name: str) -> BarePeer:
        """Connect and register."""
        wire = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
        wire._writer.write(
            b"GET /ws/peerbus HTTP/1.1\r\nHost: bench\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        await wire._reader.readuntil(b"\r\n\r\n")
        wire.send(frames.register_frame(TOKEN, name))
        assert b'"peers"' in await wire.read()
        return wire

    def send(self, *texts: bytes) -> None:
        """Send text messages, masked with zeros."""
        self._writer.write(b"".join(map(_frame, texts)))

    async def drain(self) -> None:
        """Wait while the server takes no more."""
        await self._writer.drain()

    async def read(self) -> bytes:
        """The next text message; pings before it are answered."""
        while (head := await self._reader.readexactly(2))[0] == PING:
            self._writer.write(bytes((PONG, MASKED | head[1])) + bytes(4) + await self._reader.readexactly(head[1]))
        first, size = head
        assert first == WHOLE_TEXT, f"a frame of another kind: {first:#x}"
        if size >= LENGTH_16:
            size = int.from_bytes(await self._reader.readexactly(2 if size == LENGTH_16 else 8))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        """Drop the connection."""
        self._writer.close()


def _frame(text: bytes) -> bytes:
    size = len(text)
    assert size < 1 << 16
    length = bytes((MASKED | size,)) if size < LENGTH_16 else bytes((MASKED | LENGTH_16,)) + size.to_bytes(2)
    return bytes((WHOLE_TEXT,)) + length + bytes(4) + text


async def letters_per_second(port: int, run: str, count: int) -> float:
    """Send so many letters through a server; their rate. Asserts that all arrive, in order."""
    sender, recipient = await BarePeer.registered(port, f"from-{run}"), await BarePeer.registered(port, f"to-{run}")
    letters = [
        build(sender=run, to=f"to-{run}", body=b'{"n":%d}' % n, secret=SECRET, source="bench", id=f"{run}-{n}")
        for n in range(count)
    ]
    room = asyncio.Semaphore(WINDOW)

    async def send() -> None:
        for first in range(0, count, 50):
            batch = letters[first : first + 50]
            for _ in batch:
                await room.acquire()
            sender.send(*(letter.text for letter in batch))
            await sender.drain()

    async def receive() -> None:
        for n in range(count):
            text = await recipient.read()
            key = f"{run}-{n}"
            assert f'"delivery_key":"{key}"'.encode() in text, f"{key} was expected: {text[:200]!r}"
            recipient.send(frames.ack_frame(key))
            room.release()
        recipient.send(frames.peers_request())
        assert b'"peers"' in await recipient.read()

    began = time.perf_counter()
    await asyncio.gather(send(), receive())
    rate = count / (time.perf_counter() - began)
    sender.close()
    recipient.close()
    return rate


@contextmanager
def serving(command: list[str], environment: dict[str, str]) -> Iterator[tuple[int, psutil.Process]]:
    """A web server that runs; its port and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", command[0], "--port", str(port), *command[1:]],
        cwd=CHECKOUT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not serve") from None
                time.sleep(0.05)
            else:
                break
        yield port, psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def main() -> None:
    """Measure, and print a line for each server."""
    parser = argparse.ArgumentParser(description="Measure peerbus by its path through the web server.")
    parser.add_argument("--letters", type=int, default=30_000, help="letters of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="how often each server is measured, in turns")
    given = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    django.setup()
    from brokersite.rigs.etl.scratch import environment, scratch_database, scratch_directory
    from queues.engine.access import key_digest
    from queues.models import ApiKey

    with scratch_database(DATABASE) as alias, scratch_directory("peerbus-bench-") as directory:
        digest = key_digest(TOKEN, settings.SECRET_KEY)
        ApiKey.objects.using(alias).create(name=TOKEN, digest=digest, publish=["*"], consume=["*"])
        given_to_servers = environment(alias, directory)
        rates: dict[str, list[float]] = {name: [] for name in SERVERS}
        costs: dict[str, list[float]] = {name: [] for name in SERVERS}
        for turn in range(given.rounds):
            for name, command in SERVERS.items():
                with serving(command, given_to_servers) as (port, process):
                    asyncio.run(letters_per_second(port, f"warm {turn} {name}", 2000))
                    before = sum(process.cpu_times()[:2])
                    rates[name].append(asyncio.run(letters_per_second(port, f"{turn} {name}", given.letters)))
                    costs[name].append(1e6 * (sum(process.cpu_times()[:2]) - before) / given.letters)
    own = rates[next(iter(SERVERS))]
    for name, measured in rates.items():
        ratios = [one / other for one, other in zip(own, measured, strict=True)]
        print(
            f"{name:22} {statistics.median(measured):7,.0f} letters/s ({min(measured):,.0f} to {max(measured):,.0f}),"
            f" {statistics.median(costs[name]):4.0f} µs of CPU a letter; own transport / this:"
            f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
