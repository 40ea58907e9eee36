"""Connections that are handed over between processes: here two listeners of one process, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import socket
import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import until
from tests.wire.serving import EVENT_LOOPS, Recorder, Server, client, run_scenario, serving
from wire.net import process_group
from wire.net.limits import Closure, ConnectionLimits
from wire.net.process_group import TAKEN, Place, ProcessGroup, State

Run = Callable[[Coroutine[Any, Any, None]], None]
STATE = {"name": "x"}


@pytest.fixture(params=EVENT_LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(run_scenario, request.param)


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as path:
        yield Path(path)


class Movable(Recorder):
    """A session that can be handed over."""

    state: State | None = None

    def resume(self, state: State) -> None:
        self.state = state
        self._note("resumed")


@contextlib.asynccontextmanager
async def process(directory: Path, number: int, **options: Any) -> AsyncIterator[tuple[Server, ProcessGroup]]:
    """A listener, and what hands its connections over."""
    async with serving(Movable, **options) as server:
        mine = ProcessGroup(Place(directory, number, 2), lambda name, sock, state: server.listener.reserve(sock, state))
        mine.start()
        try:
            yield server, mine
        finally:
            mine.stop()


async def give(mine: ProcessGroup, session: Any, unread: bytes = b"", state: State = STATE) -> bool:
    """Hand a session's connection over to process 1, as sessions do."""
    assert await session.connection.is_portable()
    moved = await mine.give(1, session.connection.fileno(), "test", state, lambda: unread)
    if moved:
        session.connection.let_go()
    return moved


# Homes.


def test_each_name_has_one_home_and_names_are_spread() -> None:
    places = [Place(Path("/"), number, 3) for number in range(3)]
    owners = [places[0].owner("topic", b"%d" % n) for n in range(300)]
    assert [place.owner("topic", b"7") for place in places] == [owners[7]] * 3
    assert min(Counter(owners).values()) > 70
    assert Counter(owners).keys() == {0, 1, 2}
    assert [places[0].owner("queue", b"%d" % n) for n in range(300)] != owners


# Handing over.


def test_a_connection_goes_on_in_the_other_process(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), process(directory, 1) as (there, _):
            async with client(here) as (reader, writer):
                session = await here.sessions.get()
                writer.write(b"seen")
                await session.has_data(b"seen")
                session.connection.pause_reading("handing over")
                writer.write(b" later")
                assert await give(mine, session, b"unread")
                other = await there.sessions.get()
                await other.has_data(b"unread later")
                assert (other.heard[0], other.state) == ("resumed", STATE)
                assert other.connection.peer == writer.get_extra_info("sockname")
                other.connection.write(b"answer")
                assert await reader.readexactly(6) == b"answer"
                await session.lost()
                assert session.data == b"seen"
                assert here.listener.stats.closed[Closure.HANDED_OVER] == 1
                assert (here.listener.stats.current, here.listener.limits.total) == (0, 0)
                assert (there.listener.stats.current, there.listener.limits.total) == (1, 1)
            await other.lost()
            assert there.listener.limits.total == 0

    run(scenario())


def test_millions_of_unread_bytes_go_along(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), process(directory, 1) as (there, _), client(here):
            data = bytes(range(256)) * 20_000
            assert await give(mine, await here.sessions.get(), data)
            await (await there.sessions.get()).has_data(data)

    run(scenario())


async def still_here(server: Server, session: Any, writer: asyncio.StreamWriter, reader: asyncio.StreamReader) -> None:
    """The session goes on as if nothing had been tried."""
    writer.write(b"on")
    await session.until(lambda session: session.data.endswith(b"on"))
    session.connection.write(b"go")
    assert await reader.readexactly(2) == b"go"
    assert server.listener.limits.total == server.listener.stats.current == 1


def test_without_the_other_process_it_stays(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), client(here) as (reader, writer):
            session = await here.sessions.get()
            assert not await give(mine, session)
            async with process(directory, 1):
                pass
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
                killed.bind(str(directory / "1"))  # its path is left behind
            assert not await give(mine, session)
            await still_here(here, session, writer, reader)

    run(scenario())


def test_a_process_takes_the_place_of_one_that_was_killed(run: Run, directory: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(directory / "1"))

    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), process(directory, 1), client(here):
            assert await give(mine, await here.sessions.get())

    run(scenario())


def test_of_a_process_that_stands_still_nothing_is_awaited_for_long(
    run: Run, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "TIMEOUT", 0.05)

    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), client(here) as (reader, writer):
            session = await here.sessions.get()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as frozen:
                frozen.bind(str(directory / "1"))
                assert not await give(mine, session)
                frozen.setblocking(False)
                _, descriptors, _, _ = socket.recv_fds(frozen, 1 << 16, 2)
                late = [socket.socket(fileno=descriptor) for descriptor in descriptors]
            with late[0], late[1]:  # it wakes, and finds that nobody waits for it
                with contextlib.suppress(BrokenPipeError):
                    late[1].send(TAKEN)
                assert late[1].recv(1) == b""
            await still_here(here, session, writer, reader)

    run(scenario())


def test_where_there_is_no_room_it_stays(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        full = ConnectionLimits(1)
        async with process(directory, 0) as (here, mine), process(directory, 1, limits=full) as (there, _):
            async with client(there), client(here) as (reader, writer):
                session = await here.sessions.get()
                assert not await give(mine, session)
                assert there.listener.limits.total == 1
                await still_here(here, session, writer, reader)
            await until(lambda: there.listener.limits.total == 0)
            there.listener.has_room = lambda state: state != STATE
            async with client(here):
                session = await here.sessions.get()
                assert not await give(mine, session)
                assert there.listener.limits.total == 0
                assert await give(mine, session, state={})
                assert there.listener.limits.total == 1

    run(scenario())


def test_a_process_that_stops_takes_nothing(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        async with (
            process(directory, 0) as (here, mine), process(directory, 1) as (there, _),
            client(here) as (reader, writer),
        ):  # fmt: skip
            session = await here.sessions.get()
            there.listener.stopping = True
            assert not await give(mine, session)
            await still_here(here, session, writer, reader)

    run(scenario())


# The other process's part, played by the test.


def offered(directory: Path, *descriptors: int) -> None:
    """Send an offer with these descriptors to process 1."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))
        offer = json.dumps({"listener": "test", "state": STATE}).encode()
        sender.sendmsg([offer], [rights], 0, str(directory / "1"))


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            yield near, far


@pytest.mark.parametrize("sent", [b"", struct.pack("!Q", 5), struct.pack("!Q", 5) + b"abcd"])
def test_a_process_that_dies_before_all_is_handed_over_has_handed_over_nothing(
    run: Run, directory: Path, sent: bytes
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with process(directory, 1) as (there, _):
            with connected() as (near, far):
                here, pair = socket.socketpair()
                with here:
                    here.setblocking(False)
                    with pair:
                        offered(directory, far.fileno(), pair.fileno())
                    assert await loop.sock_recv(here, 1) == TAKEN
                    assert there.listener.limits.total == 1
                    await loop.sock_sendall(here, sent)
                await until(lambda: there.listener.limits.total == 0)
                assert there.sessions.empty()
                near.sendall(b"x")  # the connection lives as long as the one who offered it keeps it
                assert far.recv(1) == b"x"

    run(scenario())


def test_what_is_no_offer_is_left(run: Run, directory: Path) -> None:
    async def scenario() -> None:
        async with process(directory, 0) as (here, mine), process(directory, 1) as (there, _), client(here):
            with connected() as (_, far):
                offered(directory, far.fileno())
                assert await give(mine, await here.sessions.get())
                assert there.listener.limits.total == 1

    run(scenario())


def test_where_a_socket_cannot_be_made_connections_stay_and_a_warning_says_so(
    run: Run, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        with caplog.at_level(logging.WARNING):
            async with process(directory / ("x" * 120), 0) as (here, mine), client(here):
                assert mine.other_owner("topic", b"a") is mine.other_owner("topic", b"b") is None
                assert not await give(mine, await here.sessions.get())
        assert "connections stay in the process that they come to" in caplog.text

    run(scenario())
