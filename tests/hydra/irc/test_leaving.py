"""Being off IRC at once, on both event loops: what had not left before never leaves."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.hydra.irc.client import Client
from tests.hydra.irc.scripted import ScriptedClient, ScriptedServer
from tests.wire.serving import EVENT_LOOPS, run_scenario

pytestmark = pytest.mark.parametrize("event_loop", EVENT_LOOPS)


async def joined(server: ScriptedServer, client: Client) -> ScriptedClient:
    """Connect, and be in the channel `#c`."""
    client.connection.connect()
    accepted = await server.client()
    await accepted.join()
    await client.wait_for(lambda: client.connections)
    return accepted


def numbers(received: bytes) -> list[int]:
    """Those of the whole lines among what has come."""
    lines = received.split(b"\r\n")[:-1]
    return [int(line.split(b":")[1].split(b" ")[0]) for line in lines if line.startswith(b"PRIVMSG")]


@pytest.mark.parametrize("interval", [0, 0.01, 60])
def test_nothing_of_a_flood_leaves_once_left(event_loop: str, interval: float) -> None:
    async def scenario() -> None:
        async with ScriptedServer() as server:
            client = Client(server, "alpha", "#c", burst=2, interval=interval, queue=100_000)
            accepted = await joined(server, client)
            accepted.pause()
            count = 50_000
            client.say(*(f"PRIVMSG #c :{number} {'x' * 400}" for number in range(count)))
            for _ in range(3):
                await asyncio.sleep(0)
            assert not client.connection.has_room
            told = client.told
            client.connection.leave("the lease is over")
            accepted.resume()
            heard = numbers(await accepted.rest())
            assert heard == list(range(len(heard)))
            assert len(heard) < count / 2
            assert client.told == told
            assert not client.connection.say("PRIVMSG #c :more")

    run_scenario(event_loop, scenario())


def test_with_nothing_on_its_way_the_reason_is_said(event_loop: str) -> None:
    async def scenario() -> None:
        async with ScriptedServer() as server:
            client = Client(server, "alpha", "#c", burst=3, interval=60)
            accepted = await joined(server, client)
            client.say(*(f"PRIVMSG #c :{number}" for number in range(10)))
            assert await accepted.line() == b"PRIVMSG #c :0"
            assert await accepted.line() == b"PRIVMSG #c :1"
            await client.acknowledged()
            client.connection.leave("the lease\r\nis over")
            assert await accepted.rest() == b"QUIT :the lease is over\r\n"

    run_scenario(event_loop, scenario())


def test_lines_not_yet_taken_by_the_server_are_discarded(event_loop: str) -> None:
    """Bytes in the kernel's buffer for a server that does not read must not arrive minutes later."""

    async def scenario() -> None:
        async with ScriptedServer(buffer=4096) as server:
            client = Client(server, "alpha", "#c", queue=100_000)
            accepted = await joined(server, client)
            accepted.pause()
            client.say(*(f"PRIVMSG #c :{number} {'x' * 400}" for number in range(50_000)))
            await asyncio.sleep(0)
            descriptor = client.descriptor
            os.fstat(descriptor)
            client.connection.leave("the lease is over")
            await asyncio.sleep(0)
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.fstat(descriptor)
            accepted.resume()
            await accepted.rest()
            assert accepted.was_reset

    run_scenario(event_loop, scenario())
