"""IRC servers for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.hydra.irc.client import Client
from tests.hydra.irc.scripted import ScriptedServer
from tests.hydra.irc.server import IrcServerProcess


@pytest.fixture(scope="module")
def irc_server() -> Iterator[IrcServerProcess]:
    """A real server; nicks and channels are to be used by one test only."""
    with IrcServerProcess() as server:
        yield server


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    """A server that says what the test says."""
    async with ScriptedServer() as server:
        yield server


@pytest.fixture(autouse=True)
async def _everybody_leaves() -> AsyncIterator[None]:
    """No test leaves a connection behind."""
    Client.made.clear()
    yield
    for client in Client.made:
        client.connection.leave("the test is over")
    await asyncio.sleep(0)
