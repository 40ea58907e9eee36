"""One connection over real sockets, on asyncio's own event loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.wire.serving import EVENT_LOOPS, Recorder, Server, client, is_turned_away, run_scenario, serving
from wire.net.connection import LARGE_PART, WRITE, Connection, contained
from wire.net.limits import Closure

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=EVENT_LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return functools.partial(run_scenario, request.param)


@pytest.fixture(autouse=True)
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.net.connection.LINGER", 0.05)


@pytest.fixture
def no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the test looks at the connections, at times of its own: it may stand still as long as it likes."""
    monkeypatch.setattr("wire.net.limits.ListenerOptions.sweep_interval", lambda options: 3600)


def look(server: Server, now: float) -> None:
    """Look at every connection, as the listener does, as if it were this time."""
    for connection in tuple(server.listener.connections):
        connection.check(now)


# Data


def test_data_arrives_whole_however_it_is_cut(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server) as (_, writer):
            session = await server.sessions.get()
            for byte in b"hello":
                writer.write(bytes([byte]))
                await writer.drain()
            big = b"x" * 3_000_000
            writer.write(big)
            await session.has_data(b"hello" + big)
            assert session.connection.bytes_in == 3_000_005

    run(scenario())


def test_a_session_answers_and_knows_its_client(run: Run) -> None:
    class Echo(Recorder):
        def data_received(self, data: bytes) -> None:
            self.connection.write(data.upper())

    async def scenario() -> None:
        async with serving(Echo) as server, client(server) as (reader, writer):
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"HELLO"
            connection = (await server.sessions.get()).connection
            assert connection.peer == writer.get_extra_info("sockname")
            assert connection.name == f"test 127.0.0.1:{connection.peer[1]}"
            assert connection.peer_certificate is None
            assert connection.listener is server.listener
            stats = server.listener.stats
            assert (stats.accepted, stats.current, connection.bytes_in, connection.bytes_out) == (1, 1, 5, 5)

    run(scenario())


class Transport:
    """Counts the writes of a transport in whose place it stands."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self._transport.write(data)


def test_what_is_written_soon_goes_out_in_order_with_what_is_written_in_the_same_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.net.connection.MAX_SOON", 9)

    async def scenario() -> None:
        async with serving() as server, client(server) as (reader, _):
            connection: Any = (await server.sessions.get()).connection
            connection._transport = transport = Transport(connection._transport)
            connection.write_soon(b"ab")
            connection.write_soon(b"cd")
            assert transport.written == []
            assert await reader.readexactly(4) == b"abcd"
            connection.write_soon(b"ef")
            connection.write(b"gh")  # an answer does not overtake it
            connection.write(b"ij")
            connection.write_soon(b"01234")
            connection.write_soon(b"56789")  # too much to wait
            connection.write_soon(b"kl")
            connection.close()
            connection.write_soon(b"too late")
            assert await reader.read() == b"efghij0123456789kl"
            assert transport.written == [b"abcd", b"efgh", b"ij", b"0123456789", b"kl"]
            assert connection.bytes_out == 22

    run(scenario())


def test_what_is_written_soon_is_dropped_with_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server) as (reader, _):
            connection = (await server.sessions.get()).connection
            connection.write_soon(b"ab")
            connection.abort()
            got = b""
            with contextlib.suppress(ConnectionResetError):
                got = await reader.read()
            assert got == b""
            assert connection.bytes_out == 0

    run(scenario())


def test_parts_arrive_as_one_whole_and_the_sessions_list_is_its_own(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server) as (reader, _):
            connection = (await server.sessions.get()).connection
            large = bytes(range(256)) * (LARGE_PART // 256)
            answers: list[list[bytes | bytearray]]
            answers = [[b"a", bytearray(b"b")], [b"c", large, b"d", bytearray(large)], [large]]
            for parts in answers:
                whole = b"".join(parts)
                connection.write_parts(parts)
                parts.clear()
                assert await reader.readexactly(len(whole)) == whole
            assert connection.bytes_out == 4 + 3 * len(large)
            connection.close()
            connection.write_parts([large])
            assert await reader.read() == b""

    run(scenario())


def test_small_answers_are_not_held_back_and_vanished_clients_are_noticed(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server):
            session = await server.sessions.get()
            sock = session.connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    run(scenario())


def test_everything_sent_before_the_end_of_file_is_taken(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            with socket.create_connection((server.address.host, server.address.port)) as sock:
                sock.sendall(b"fire and forget")
            session = await server.sessions.get()
            await session.lost()
            assert session.data == b"fire and forget"
            assert session.heard[-2:] == ["eof", "lost"]
            await server.closed(Closure.PEER)

    run(scenario())


def test_a_client_that_half_closes_still_gets_its_answer(run: Run) -> None:
    class Answer(Recorder):
        def eof_received(self) -> bool:
            self._note("eof")
            return True

    async def scenario() -> None:
        async with serving(Answer) as server, client(server) as (reader, writer):
            session = await server.sessions.get()
            writer.write(b"question")
            writer.write_eof()
            await session.until(lambda s: "eof" in s.heard)
            session.connection.write(b"answer")
            session.connection.close()
            assert await reader.read() == b"answer"
            await server.closed(Closure.SESSION)
            assert session.heard == ["data", "eof", "lost"]

    run(scenario())


def test_a_client_that_resets_is_counted_as_such(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server:
            sock = socket.create_connection((server.address.host, server.address.port))
            session = await server.sessions.get()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
            await session.lost()
            await server.closed(Closure.RESET)

    run(scenario())


# The end


def test_the_last_answer_arrives_although_the_client_had_sent_more(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wire.net.connection.LINGER", 3600)

    class Refuse(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.connection.write(b"x" * 2_000_000 + b"last word")
            self.connection.close()
            self.connection.write(b"too late")

    async def scenario() -> None:
        async with serving(Refuse) as server, client(server) as (reader, writer):
            writer.write(b"bad magic")
            session = await server.sessions.get()
            await session.lost()  # comes although nothing of the answer has been read
            heard = list(session.heard)
            writer.write(b"more" * 100_000)
            answer = await reader.read()
            assert len(answer) == 2_000_009
            assert answer.endswith(b"last word")
            writer.close()
            await server.closed(Closure.SESSION)
            assert session.heard == heard == ["data", "lost"]

    run(scenario())
    assert not caplog.records


def test_a_connection_closed_while_it_is_paused_sees_the_client_go(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wire.net.connection.LINGER", 3600)

    async def scenario() -> None:
        async with serving() as server:
            async with client(server) as (reader, writer):
                connection = (await server.sessions.get()).connection
                connection.pause_reading("engine")
                writer.write(b"more" * 100_000)
                connection.write(b"goodbye")
                connection.close()
                assert await reader.read() == b"goodbye"
            await server.closed(Closure.SESSION)

    run(scenario())


def test_a_client_that_ignores_the_end_is_let_go(run: Run) -> None:
    async def scenario() -> None:
        async with serving(idle_timeout=0.2) as server, client(server):
            session = await server.sessions.get()
            session.connection.close()
            await server.closed(Closure.SESSION)

    run(scenario())


def test_an_aborted_client_gets_nothing_more(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server) as (reader, _):
            session = await server.sessions.get()
            session.connection.write(b"x" * 5_000_000)
            session.connection.abort()
            assert len(await reader.read()) < 5_000_000
            await session.lost()

    run(scenario())


# Errors in sessions


@pytest.mark.parametrize("method", ["data_received", "eof_received", "connection_lost", "drain"])
def test_an_error_in_a_session_ends_that_connection_only(
    run: Run, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    class Broken(Recorder):
        pass

    def fail(self: Recorder, *args: object) -> None:
        self._note("failed")
        raise ZeroDivisionError("a bug")

    setattr(Broken, method, fail)

    async def scenario() -> None:
        async with serving(Broken) as server, client(server) as (_, writer), client(server) as (_, other):
            session, other_session = await server.sessions.get(), await server.sessions.get()
            if method == "drain":
                await server.listener.stop(30)
            else:
                writer.write(b"x")
                writer.write_eof()
            await session.until(lambda s: "failed" in s.heard)
            if method in ("data_received", "eof_received"):
                await session.lost()
                await server.closed(Closure.SESSION_ERROR)
            if method in ("eof_received", "connection_lost"):
                other.write(b"still served")
                await other_session.has_data(b"still served")

    run(scenario())
    [record] = [r for r in caplog.records if r.name == "wire.net.listener"][:1]
    assert record.getMessage().startswith("test 127.0.0.1:")
    assert f"the session failed in {method}" in record.getMessage()
    assert record.exc_info
    assert "a bug" in str(record.exc_info[1])


def test_an_error_in_what_a_timer_calls_ends_that_connection_only(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        @contained
        def tick(self) -> None:
            raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        async with serving(Broken) as server, client(server) as (reader, _), client(server) as (_, other):
            session, other_session = await server.sessions.get(), await server.sessions.get()
            session.connection.name_key(7)
            asyncio.get_running_loop().call_soon(session.tick)
            assert await reader.read() == b""
            await server.closed(Closure.SESSION_ERROR)
            other.write(b"still served")
            await other_session.has_data(b"still served")
            assert server.listener.stats.failures == 1

    run(scenario())
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.getMessage().endswith(" key 7: the session failed in tick; its connection is closed")


def test_an_error_when_a_client_reads_again_ends_that_connection_only(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Recorder):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection)
            connection.when_writable(self.go_on)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.connection.write(bytes(1 << 23))

        def go_on(self) -> None:
            raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        async with serving(Broken) as server, client(server) as (reader, writer), client(server) as (_, other):
            other_session = [await server.sessions.get() for _ in range(2)][1]
            writer.write(b"x")
            assert len(await reader.read()) == 1 << 23
            await server.closed(Closure.SESSION_ERROR)
            other.write(b"still served")
            await other_session.has_data(b"still served")

    run(scenario())
    assert "the session failed in on_writable" in caplog.text


def test_held_bytes_count_until_the_session_ends_and_the_largest_holder_is_told(run: Run) -> None:
    class Keeper(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.connection.hold(len(self.data))

    async def scenario() -> None:
        async with (
            serving(Keeper, partial_bytes=1000) as server,
            client(server) as (_, modest),
            client(server) as (reader, greedy),
        ):
            first, second = await server.sessions.get(), await server.sessions.get()
            greedy.write(bytes(700))
            await second.has_data(bytes(700))
            modest.write(bytes(400))
            assert await reader.read() == b""
            await server.closed(Closure.PARTIAL_BYTES)
            assert second.heard[-2:] == ["overfull", "lost"]
            assert server.listener.limits.held == 400
            modest.write_eof()
            await first.lost()
            await server.closed(Closure.PEER)
            assert server.listener.limits.held == 0

    run(scenario())


def test_an_error_in_the_factory_closes_the_connection(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def __init__(self, connection: Connection) -> None:
            raise ZeroDivisionError("a bug")

    async def scenario() -> None:
        async with serving(Broken) as server:
            assert await is_turned_away(server)
            await server.closed(Closure.SESSION_ERROR)

    run(scenario())
    assert "failed in its factory" in caplog.text


def test_a_session_may_close_before_it_is_made(run: Run) -> None:
    class Unwilling(Recorder):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection)
            connection.write(b"busy")
            connection.close()

    async def scenario() -> None:
        async with serving(Unwilling) as server, client(server) as (reader, writer):
            writer.write(b"hello")
            assert await reader.read() == b"busy"
            session = await server.sessions.get()
            await session.lost()
            assert session.heard == ["lost"]

    run(scenario())


# Time


def test_a_client_that_never_says_hello_is_closed(run: Run, no_sweeps: None) -> None:
    class Greeting(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.connection.handshake_done()

    async def scenario() -> None:
        async with (
            serving(Greeting, handshake_timeout=1000) as server,
            client(server) as (polite, writer),
            client(server) as (silent, silent_writer),
        ):
            writer.write(b"hello")
            await (await server.sessions.get()).has_data(b"hello")
            await server.sessions.get()
            look(server, asyncio.get_running_loop().time() + 1001)
            assert await silent.read() == b""
            silent_writer.close()
            await server.closed(Closure.HANDSHAKE_TIMEOUT)
            assert len(server.listener.connections) == 1
            assert not polite.at_eof()

    run(scenario())


def test_a_client_that_trickles_is_no_better_than_a_silent_one(run: Run) -> None:
    async def scenario() -> None:
        async with serving(handshake_timeout=0.1) as server, client(server) as (reader, writer):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b".")
                    await asyncio.wait([asyncio.ensure_future(reader.read(1))], timeout=0.02)
            await server.closed(Closure.HANDSHAKE_TIMEOUT)

    run(scenario())


class Ready(Recorder):
    """A session of a protocol without a handshake."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        connection.handshake_done()


def test_an_idle_connection_is_closed_and_a_busy_one_is_not(run: Run, no_sweeps: None) -> None:
    async def scenario() -> None:
        async with (
            serving(Ready, idle_timeout=1000) as server,
            client(server) as (_, busy),
            client(server) as (idle, idle_writer),
        ):
            busy_session = await server.sessions.get()
            await server.sessions.get()
            now = asyncio.get_running_loop().time()
            for count in (1, 2, 3):
                busy.write(b".")
                await busy_session.has_data(b"." * count)
                assert len(server.listener.connections) == 2
                look(server, now + 400 * count)
            assert await idle.read() == b""
            idle_writer.close()
            await server.closed(Closure.IDLE_TIMEOUT)
            assert len(server.listener.connections) == 1

    run(scenario())


def test_a_consumer_may_wait_in_silence_until_its_message_is_there(run: Run) -> None:
    made: list[Connection] = []

    class FirstWaits(Ready):
        def __init__(self, connection: Connection) -> None:
            super().__init__(connection)
            connection.allow_silence(not made)
            made.append(connection)

    async def scenario() -> None:
        async with serving(FirstWaits, idle_timeout=0.1) as server, client(server) as (reader, _), client(server):
            session = await server.sessions.get()
            await server.closed(Closure.IDLE_TIMEOUT)  # of the other one
            assert session.connection in server.listener.connections
            session.connection.allow_silence(False)
            assert await reader.read() == b""

    run(scenario())


def test_time_in_which_the_server_does_not_read_is_not_the_clients_silence(run: Run) -> None:
    async def scenario() -> None:
        now = asyncio.get_running_loop().time()
        async with serving(Ready, idle_timeout=1000) as server, client(server):
            connection = (await server.sessions.get()).connection
            connection.pause_reading("engine")
            connection.check(now + 5000)
            connection.resume_reading("engine")
            connection.check(now + 5999)
            assert not connection.is_closing
            connection.check(now + 6001)
            assert connection.is_closing

    run(scenario())


def test_a_half_closed_client_may_not_wait_for_ever(run: Run) -> None:
    class Keep(Ready):
        def eof_received(self) -> bool:
            self.connection.allow_silence(True)
            return True

    async def scenario() -> None:
        async with serving(Keep, idle_timeout=0.1) as server, client(server) as (reader, writer):
            writer.write_eof()
            assert await reader.read() == b""
            await server.closed(Closure.IDLE_TIMEOUT)

    run(scenario())


# Back-pressure


def test_reading_goes_on_when_the_last_reason_to_pause_is_gone(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, client(server) as (_, writer), client(server) as (_, other):
            session, other_session = await server.sessions.get(), await server.sessions.get()
            connection = session.connection
            connection.pause_reading("session")
            connection.pause_reading("session")
            connection.pause_reading("engine")
            writer.write(b"one")
            for reason in ("session", "session", "never given"):
                connection.resume_reading(reason)
                other.write(b".")
                await other_session.until(lambda s: s.data.endswith(b"."))
                other_session.data = b""
            assert connection.pause_reasons == {"engine"}
            assert session.data == b""
            connection.resume_reading("engine")
            await session.has_data(b"one")

    run(scenario())


def test_a_saturated_engine_stops_old_and_new_connections(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as server, serving() as other, client(server) as (_, old):
            old_session = await server.sessions.get()
            server.listener.pause_all("engine")
            async with client(server) as (_, new), client(other) as (_, marker):
                new_session = await server.sessions.get()
                old.write(b"old")
                new.write(b"new")
                marker.write(b"x")
                await (await other.sessions.get()).has_data(b"x")
                await asyncio.sleep(0.02)
                assert old_session.data + new_session.data == b""
                server.listener.resume_all("engine")
                await old_session.has_data(b"old")
                await new_session.has_data(b"new")

    run(scenario())


MORE_THAN_THE_KERNEL_HOLDS = b"x" * 20_000_000


def slow_reader(server: Server) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((server.address.host, server.address.port))
    sock.setblocking(False)
    return sock


def test_a_client_that_does_not_read_is_not_read_either(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(write_high_water=100_000) as server:
            with slow_reader(server) as sock:
                session = await server.sessions.get()
                session.connection.write(MORE_THAN_THE_KERNEL_HOLDS)
                await loop.sock_sendall(sock, b"question")
                while WRITE in session.connection.pause_reasons:
                    assert session.data == b""
                    await loop.sock_recv(sock, 1_000_000)
                await session.has_data(b"question")

    run(scenario())


def test_a_client_that_never_reads_is_aborted(run: Run) -> None:
    async def scenario() -> None:
        async with serving(write_timeout=0.2) as server:
            with slow_reader(server):
                session = await server.sessions.get()
                session.connection.write(MORE_THAN_THE_KERNEL_HOLDS)
                await session.lost()
                await server.closed(Closure.WRITE_TIMEOUT)

    run(scenario())


def test_a_slow_client_that_takes_a_little_now_and_then_is_kept(run: Run, no_sweeps: None) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(write_high_water=100_000, write_timeout=1000) as server:
            with slow_reader(server) as sock:
                session = await server.sessions.get()
                session.connection.write(MORE_THAN_THE_KERNEL_HOLDS)
                assert WRITE in session.connection.pause_reasons
                start, taken = loop.time(), 0
                for count in range(1, 6):
                    while taken < count * 20_000:  # more than the client's side of the kernel holds
                        taken += len(await loop.sock_recv(sock, 2_000))
                    look(server, start + count * 900)
                    assert WRITE in session.connection.pause_reasons
                    assert not session.connection.is_closing

    run(scenario())


def test_a_closed_connection_does_not_wait_for_ever_for_a_client_that_never_reads(run: Run) -> None:
    async def scenario() -> None:
        async with serving(write_timeout=0.2) as server:
            with slow_reader(server):
                session = await server.sessions.get()
                session.connection.write(MORE_THAN_THE_KERNEL_HOLDS)
                session.connection.close()
                await server.closed(Closure.WRITE_TIMEOUT)
                assert session.heard == ["lost"]

    run(scenario())


def test_a_half_closed_slow_client_hears_of_its_end_once(run: Run) -> None:
    class Keep(Ready):
        def eof_received(self) -> bool:
            self._note("eof")
            return True

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(Keep, write_high_water=100_000) as server:
            with slow_reader(server) as sock:
                session = await server.sessions.get()
                sock.shutdown(socket.SHUT_WR)
                await session.until(lambda s: "eof" in s.heard)
                session.connection.write(b"x" * 5_000_000)
                assert WRITE in session.connection.pause_reasons
                while WRITE in session.connection.pause_reasons:
                    await loop.sock_recv(sock, 1_000_000)
                session.connection.pause_reading("session")
                session.connection.resume_reading("session")
                await asyncio.sleep(0.02)
                assert session.heard == ["eof"]
                assert session.connection in server.listener.connections

    run(scenario())
