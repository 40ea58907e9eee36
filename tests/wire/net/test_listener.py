"""The listener over real sockets, on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import resource
import socket
from collections.abc import Callable, Coroutine
from ipaddress import ip_network
from typing import Any

import pytest

from queues.log_throttle import LogThrottle
from tests.wire.serving import EVENT_LOOPS, Recorder, Server, client, is_turned_away, run_scenario, serving
from wire.net.address import HostPort
from wire.net.limits import Closure, ConnectionLimits, Refusal
from wire.net.sockets import ListenError

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=EVENT_LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(run_scenario, request.param)


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.net.connection.LINGER", 0.05)


# Admission


def test_the_global_limit_holds_over_all_listeners(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.net.listener.LogThrottle", lambda *_: LogThrottle(3600))

    async def scenario() -> None:
        limits = ConnectionLimits(max_connections=2)
        async with serving(limits=limits) as one, serving(limits=limits) as two, client(one):
            async with client(two):
                await two.sessions.get()
                assert await is_turned_away(two)
                assert await is_turned_away(two)
                assert await is_turned_away(one)
            await two.closed(Closure.PEER)
            async with client(one):
                await one.sessions.get()
                await one.sessions.get()
            assert two.listener.stats.refused[Refusal.MAX_CONNECTIONS] == 2
            assert one.listener.stats.refused[Refusal.MAX_CONNECTIONS] == 1
        assert limits.total == 0

    run(scenario())
    messages = [r.getMessage() for r in caplog.records]
    assert messages == ["test refused 1 connection(s), the last from 127.0.0.1 (max_connections)"] * 2


def test_the_limit_per_address_leaves_room_for_others(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_connections_per_address=1) as server, client(server):
            await server.sessions.get()
            assert await is_turned_away(server)
            assert server.listener.stats.refused[Refusal.MAX_CONNECTIONS_PER_ADDRESS] == 1
            _, writer = await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=("127.0.0.2", 0))
            await server.sessions.get()
            writer.close()
            await writer.wait_closed()

    run(scenario())


def test_only_listed_networks_may_connect(run: Run) -> None:
    async def scenario() -> None:
        async with serving(allow=(ip_network("127.0.0.2"), ip_network("192.0.2.0/24"))) as server:
            assert await is_turned_away(server)
            assert server.listener.stats.refused[Refusal.NOT_ALLOWED] == 1
            _, writer = await asyncio.open_connection("127.0.0.1", server.address.port, local_addr=("127.0.0.2", 0))
            assert (await server.sessions.get()).connection.peer[0] == "127.0.0.2"
            writer.close()
            await writer.wait_closed()

    run(scenario())


def test_connections_wait_while_no_file_descriptor_is_left(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("wire.net.acceptor.ACCEPT_RETRY", 0.02)
    reports: list[logging.LogRecord] = []

    async def scenario() -> None:
        resting = asyncio.Event()

        def report(record: logging.LogRecord) -> None:
            reports.append(record)
            resting.set()

        monkeypatch.setattr(caplog.handler, "emit", report)
        async with serving() as server:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as sock:
                sock.setblocking(False)
                with socket.socket() as probe:
                    free = probe.fileno()
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
                try:
                    await asyncio.get_running_loop().sock_connect(sock, (server.address.host, server.address.port))
                    await resting.wait()
                    assert not server.listener.connections
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await server.sessions.get()

    run(scenario())
    assert reports[0].getMessage() == "test accepts nothing for 0.02 s: Too many open files"


# Stopping


def test_an_orderly_stop_drains_every_session_and_accepts_none(run: Run) -> None:
    class Polite(Recorder):
        def drain(self) -> None:
            self._note("drain")
            self.connection.write(b"goodbye")
            asyncio.get_running_loop().call_soon(self.connection.close)

    async def scenario() -> None:
        async with serving(Polite) as server, client(server) as one, client(server) as two:
            (reader, writer), (also, other) = one, two
            session = await server.sessions.get()
            await server.sessions.get()
            stop = asyncio.ensure_future(server.listener.stop(30))
            assert await reader.read() == b"goodbye"
            assert await also.read() == b"goodbye"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(server.address.host, server.address.port)
            writer.close()
            other.close()
            assert await stop == 0
            assert session.heard == ["drain", "lost"]
            assert server.listener.stats.closed[Closure.STOPPED] == 2
            assert server.listener.limits.total == 0

    run(scenario())


def test_a_stop_does_not_wait_for_ever_for_a_session_that_does_not_drain(run: Run) -> None:
    class Stubborn(Recorder):
        def drain(self) -> None:
            self._note("drain")

    async def scenario() -> None:
        async with serving(Stubborn) as server, client(server) as (reader, _):
            session = await server.sessions.get()
            assert await server.listener.stop(0.05) == 1
            assert session.heard == ["drain", "lost"]
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert server.listener.stats.closed[Closure.STOP_TIMEOUT] == 1

    run(scenario())


def test_a_client_that_ignores_the_end_does_not_count_as_cut_off(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server):
            await server.sessions.get()
            assert await server.listener.stop(0.05) == 0
            assert server.listener.stats.closed[Closure.STOPPED] == 1

    run(scenario())


def test_stopping_twice_or_before_the_start_does_no_harm(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            assert await server.listener.stop(10) == 0
            assert await server.listener.stop(10) == 0
        assert await Server(Recorder).listener.stop(10) == 0

    run(scenario())


def test_clients_that_ignore_the_end_do_not_hold_up_a_stop(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.net.limits.ListenerOptions.sweep_interval", lambda options: 3600)

    async def scenario() -> None:
        async with serving() as server, client(server):
            await server.sessions.get()
            await server.listener.stop(3600)

    run(scenario())


@pytest.mark.parametrize("turns", [0, 1], ids=["just accepted", "half set up"])
def test_a_client_that_comes_while_stopping_is_turned_away(run: Run, turns: int) -> None:
    async def scenario() -> None:
        async with serving() as server:
            with socket.create_connection((server.address.host, server.address.port)) as sock:
                sock.settimeout(30)
                acceptor = server.listener._acceptor
                acceptor.accept(acceptor._sockets[0])
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert server.listener.limits.total == 1
                assert await server.listener.stop(30) == 0
                gc.collect()
                assert sock.recv(1) == b""
            assert server.sessions.empty()
            assert server.listener.stats.refused[Refusal.STOPPING] == 1
            assert server.listener.limits.total == 0

    run(scenario())


# Addresses


def test_two_processes_may_share_a_port(run: Run) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            one = await stack.enter_async_context(serving(reuse_port=True))
            two = await stack.enter_async_context(serving(reuse_port=True, address=one.address))
            assert one.address == two.address
            for _ in range(64):
                await stack.enter_async_context(client(one))
            # The kernel spreads them by chance: one in 2**63 runs gives a listener none.
            await asyncio.gather(one.sessions.get(), two.sessions.get())

    run(scenario())


def test_a_port_in_use_is_named(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            other = Server(Recorder, address=server.address)
            answer = f"test can't listen on {server.address}: Address already in use"
            with pytest.raises(ListenError, match=answer):
                await other.listener.start()

    run(scenario())


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70])
def test_a_host_that_does_not_exist_is_named(run: Run, host: str) -> None:
    async def scenario() -> None:
        with pytest.raises(ListenError, match=f"can't listen on {host}:0: "):
            await Server(Recorder, address=HostPort(host, 0)).listener.start()

    run(scenario())


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_everywhere_means_both_kinds_of_addresses(run: Run) -> None:
    async def scenario() -> None:
        async with serving(address=HostPort("::", 0)) as server:
            for host in ("::1", "127.0.0.1"):
                _, writer = await asyncio.open_connection(host, server.address.port)
                assert (await server.sessions.get()).connection.peer[0] == host
                writer.close()
                await writer.wait_closed()

    run(scenario())


def test_a_storm_of_clients_is_served_whole(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as server:

            async def one(number: int) -> None:
                async with client(server) as (_, writer):
                    writer.write(b"%d" % number)

            await asyncio.gather(*(one(number) for number in range(300)))
            received = set()
            for _ in range(300):
                session = await server.sessions.get()
                await session.lost()
                received.add(int(session.data))
            assert received == set(range(300))
            assert server.listener.limits.total == 0

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert not caplog.records
