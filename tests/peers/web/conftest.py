"""The test application under each server, started once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.peers.web.serving import Server, names


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[str, Server]]:
    """Those that run already, by kind."""
    with ExitStack() as stack:
        running: dict[str, Server] = {}
        stack.callback(lambda: [server.stop() for server in running.values()])
        yield running


def started(servers: dict[str, Server], kind: str) -> Server:
    if kind not in servers:
        servers[kind] = Server(kind).__enter__()
    return servers[kind]


@pytest.fixture(params=["daphne", "tls", "uvicorn"])
def server(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """Each server."""
    return started(servers, request.param)


@pytest.fixture(params=["daphne", "tls"])
def daphne(request: pytest.FixtureRequest, servers: dict[str, Server]) -> Server:
    """daphne, without TLS and with it."""
    return started(servers, request.param)


@pytest.fixture
def tcp_daphne(servers: dict[str, Server]) -> Server:
    """daphne without TLS."""
    return started(servers, "daphne")


@pytest.fixture
def tls_daphne(servers: dict[str, Server]) -> Server:
    """daphne with TLS."""
    return started(servers, "tls")


@pytest.fixture
def name() -> str:
    """A name for a connection that none has had."""
    return next(names)
