"""Links over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from hydra.transports import listen, tcp
from hydra.transports.address import parse_node_address
from hydra.transports.base import MAX_QUEUED, TransportError, TransportOptions
from tests.hydra.transports.ends import (
    LOCAL_TCP,
    OPTIONS,
    Door,
    End,
    dialled,
    listening,
    nothing_left_open,
    on_both_loops,
)
from tests.waiting import until

SECRET = replace(OPTIONS, secret=b"open sesame")


@contextlib.asynccontextmanager
async def linked(options: TransportOptions = OPTIONS) -> AsyncIterator[tuple[End, End]]:
    """Two ends of a link: of who has dialled, and of who has accepted."""
    async with listening(LOCAL_TCP, options) as (listener, door):
        here = await dialled(listener.address, options)
        there = await door.end()
        try:
            yield here, there
        finally:
            here.link.close()
            there.link.close()


@contextlib.asynccontextmanager
async def stranger(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection whose bytes the test chooses."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def all_of(reader: asyncio.StreamReader) -> bytes:
    """Read until the end of the stream, be it orderly or not."""
    heard = b""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            heard += data
    return heard


# Links


@on_both_loops
async def test_lines_pass_both_ways() -> None:
    async with nothing_left_open(), linked() as (here, there):
        here.link.write(b"KNOCK 12345 probe\r\n")
        await there.hears(b"KNOCK 12345 probe\r\n")
        there.link.write(b"MEET 12345 7\r\n")
        there.link.write(b"WELCOME 12345\r\n")
        await here.hears(b"MEET 12345 7\r\nWELCOME 12345\r\n")
        assert here.link.origin == there.link.origin == "127.0.0.1"


@pytest.mark.parametrize("options", [OPTIONS, SECRET], ids=["open", "secret"])
@on_both_loops
async def test_bytes_may_come_in_any_pieces(options: TransportOptions) -> None:
    rng = random.Random(7)
    data = b"".join(b"RECV %d %s\r\n" % (number, b"x" * rng.randrange(1900)) for number in range(500))
    async with linked(options) as (here, there):
        rest = data
        while rest:
            size = rng.randrange(1, 20_000)
            here.link.write(rest[:size])
            rest = rest[size:]
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        await there.hears(data)


@on_both_loops
async def test_a_flood_of_one_neighbour_leaves_others_their_turns() -> None:
    """The event loop is blocked for a few lines at a time, however many have come."""
    pieces: list[int] = []
    async with linked() as (here, there):
        receive = there.received

        def received(data: bytes) -> None:
            pieces.append(len(data))
            receive(data)

        there.received = received  # type: ignore[method-assign]
        flood = b"KNOCK 12345 probe\r\n" * 40_000
        here.link.write(flood)
        await there.hears(flood)
        assert max(pieces) <= tcp.READ == 8192


@on_both_loops
async def test_small_lines_leave_at_once_and_the_kernel_sends_no_heartbeats() -> None:
    async with linked() as (here, there):
        for end in (here, there):
            sock = end.link._channel._transport.get_extra_info("socket")  # type: ignore[attr-defined]
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@on_both_loops
async def test_lines_written_before_a_close_arrive() -> None:
    async with linked() as (here, there):
        here.link.write(b"DROP 12345 leaving\r\n")
        here.link.close()
        assert await there.over() == "closed by the other side"
        assert there.data == b"DROP 12345 leaving\r\n"
        assert here.reason is None


@on_both_loops
async def test_a_closing_side_receives_nothing_more() -> None:
    async with linked() as (here, there):
        there.link.write(b"PING 1 a 7\r\n")
        here.link.close()
        here.link.close()
        here.link.write(b"PONG a 7 0\r\n")
        assert await there.over()
        assert (here.data, here.reason) == (b"", None)
        assert there.data == b""


@on_both_loops
async def test_a_link_may_be_closed_while_it_is_opened() -> None:
    class Fickle(Door):
        def __call__(self, link):
            end = super().__call__(link)
            link.write(b"DROP 1\r\n")
            link.close()
            return end

    door = Fickle()
    async with nothing_left_open():
        listener = await listen(parse_node_address(LOCAL_TCP), OPTIONS, door)
        here = await dialled(listener.address)
        assert await here.over() == "closed by the other side"
        assert here.data == b"DROP 1\r\n"
        assert (await door.end()).reason is None
        await listener.close()


@on_both_loops
async def test_a_link_that_the_node_refuses_is_closed() -> None:
    async with nothing_left_open(), listening(LOCAL_TCP) as (listener, door):
        door.refuses = True
        here = await dialled(listener.address)
        assert await here.over() == "closed by the other side"
        assert len(door.refused) == 1


@on_both_loops
async def test_a_half_closed_side_is_no_neighbour_even_if_it_reads() -> None:
    async with listening(LOCAL_TCP) as (listener, door), stranger(listener.address) as (reader, writer):
        there = await door.end()
        writer.write(b"KNOCK 12345\r\n")
        writer.write_eof()
        assert await there.over() == "closed by the other side"
        assert there.data == b"KNOCK 12345\r\n"
        assert await all_of(reader) == b""


@on_both_loops
async def test_a_reset_is_the_end() -> None:
    async with listening(LOCAL_TCP) as (listener, door), stranger(listener.address) as (_, writer):
        there = await door.end()
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        assert await there.over() == "reset by the other side"


@on_both_loops
async def test_without_a_listener_the_dial_is_refused() -> None:
    async with nothing_left_open():
        async with listening(LOCAL_TCP) as (listener, _):
            address = listener.address
        with pytest.raises(TransportError, match=rf"^{address}: refused$"):
            await dialled(address)


@on_both_loops
async def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(TransportError, match=r"^no\.such\.host\.invalid:1: "):
        await dialled("no.such.host.invalid:1")


@on_both_loops
async def test_a_dial_without_an_answer_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        address = server.getsockname()
        for _ in range(4):  # the queue of those who wait to be accepted is full
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(address)
        async with nothing_left_open():
            with pytest.raises(TransportError, match=r"no answer within 0\.1 s"):
                await dialled(f"127.0.0.1:{address[1]}", replace(OPTIONS, connect_timeout=0.1))


@on_both_loops
async def test_a_name_is_listened_on_at_all_its_addresses_with_one_port() -> None:
    async with listening("localhost:0") as (listener, door):
        assert listener.address.startswith("localhost:")
        port = listener.address.rpartition(":")[2]
        assert port != "0"
        await dialled(f"127.0.0.1:{port}")
        assert (await door.end()).link.origin == "127.0.0.1"


@on_both_loops
async def test_a_port_that_is_taken_is_told() -> None:
    async with listening(LOCAL_TCP) as (listener, _):
        with pytest.raises(TransportError, match=rf"hydra can't listen on {listener.address}: Address already in use"):
            await listen(parse_node_address(listener.address), OPTIONS, Door())


@on_both_loops
async def test_links_go_on_when_the_listener_is_closed() -> None:
    async with nothing_left_open():
        async with listening(LOCAL_TCP) as (listener, door):
            here = await dialled(listener.address)
            there = await door.end()
        with pytest.raises(TransportError, match="refused"):
            await dialled(listener.address)
        here.link.write(b"PING 1 a 7\r\n")
        await there.hears(b"PING 1 a 7\r\n")
        there.link.close()
        await here.over()


@on_both_loops
async def test_a_neighbour_that_does_not_read_costs_a_megabyte_and_then_its_link() -> None:
    line = b"RECV 1 " + b"x" * 1900 + b"\r\n"
    async with listening(LOCAL_TCP) as (listener, door):
        host, _, port = listener.address.rpartition(":")
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect((host, int(port)))
            there = await door.end()
            tracemalloc.start()
            try:
                written = 0
                while there.reason is None and written < 64 * MAX_QUEUED:
                    for _ in range(100):
                        there.link.write(line)
                        written += len(line)
                    await asyncio.sleep(0)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert await there.over() == "does not read"
            assert MAX_QUEUED < written < 16 * MAX_QUEUED  # the kernel takes some, too
            assert peak < 3 * MAX_QUEUED


@contextlib.asynccontextmanager
async def deaf_neighbour() -> AsyncIterator[tuple[socket.socket, End]]:
    """A peer that does not read, and this side's end of the link, with lines in its queue."""
    async with listening(LOCAL_TCP) as (listener, door):
        host, _, port = listener.address.rpartition(":")
        with socket.socket() as deaf:
            async with nothing_left_open():  # although the other side never reads
                deaf.connect((host, int(port)))
                there = await door.end()
                while not there.link._channel.get_write_buffer_size():  # type: ignore[attr-defined]
                    there.link.write(b"x" * 65536)
                yield deaf, there


@on_both_loops
async def test_closing_does_not_wait_for_a_neighbour_that_does_not_read() -> None:
    async with deaf_neighbour() as (_, there):
        there.link.close()


@on_both_loops
async def test_lines_for_a_neighbour_that_does_not_read_are_gathered_until_it_reads() -> None:
    """From Python 3.12 on each write to a transport costs as much as the writes before it that wait there."""
    async with deaf_neighbour() as (deaf, there):
        connection = there.link._channel  # type: ignore[attr-defined]
        transport = connection._transport
        before = transport.get_write_buffer_size()
        for n in range(1000):
            there.link.write(b"PING 1 a %d\r\n" % n)
        assert transport.get_write_buffer_size() == before
        assert connection.get_write_buffer_size() > before + 12_000
        deaf.setblocking(False)
        loop, heard = asyncio.get_running_loop(), b""
        while not heard.endswith(b"PING 1 a 999\r\n"):
            heard = (heard + await loop.sock_recv(deaf, 2**20)).lstrip(b"x")
        assert heard.split(b"\r\n")[:-1] == [b"PING 1 a %d" % n for n in range(1000)]
        there.link.write(b"PING 2 a 7\r\n")
        assert await loop.sock_recv(deaf, 100) == b"PING 2 a 7\r\n"
        there.link.close()


@on_both_loops
async def test_lines_for_a_connection_that_has_failed_are_dropped_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with linked() as (here, there):
        there.link._channel.abort()  # type: ignore[attr-defined]
        for _ in range(100):
            there.link.write(b"PING 1 a 7\r\n")  # else asyncio warns of those after the fifth
        await here.over()
        assert here.data == b""
        assert "raised exception" not in caplog.text


@on_both_loops
async def test_a_neighbour_that_neither_reads_nor_sends_any_more_is_gone() -> None:
    async with deaf_neighbour() as (deaf, there):
        deaf.shutdown(socket.SHUT_WR)
        assert await there.over() == "closed by the other side"


@on_both_loops
async def test_a_closing_side_gets_no_error_when_the_other_does_not_read() -> None:
    async with deaf_neighbour() as (_, there):
        there.link.write(b"x" * MAX_QUEUED)
        there.link.close()
        await asyncio.sleep(0)
        assert there.reason is None


@on_both_loops
async def test_a_listener_may_be_closed_as_a_connection_comes() -> None:
    async with nothing_left_open(), listening(LOCAL_TCP) as (listener, door):
        host, _, port = listener.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            acceptor = listener._acceptor  # type: ignore[attr-defined]
            acceptor.accept(acceptor._sockets[0])
            await listener.close()
        assert door.ends.empty()


@on_both_loops
async def test_an_error_of_the_node_ends_the_link_and_not_the_listener() -> None:
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(str(context["exception"])))

    class Broken(Door):
        def __call__(self, link):
            if self.refuses:
                raise RuntimeError("the node is broken")
            return super().__call__(link)

    door = Broken()
    async with nothing_left_open():
        listener = await listen(parse_node_address(LOCAL_TCP), OPTIONS, door)
        door.refuses = True
        here = await dialled(listener.address)
        await here.over()
        door.refuses = False
        here = await dialled(listener.address)
        here.link.close()
        await (await door.end()).over()
        await listener.close()
    assert errors == ["the node is broken"]


# The secret


@on_both_loops
async def test_a_side_with_the_secret_is_linked_and_lines_behind_the_proof_arrive() -> None:
    async with nothing_left_open(), listening(LOCAL_TCP, SECRET) as (listener, door):
        door.greeting = b"PING 1 a 7\r\n"  # in the same read as the proof
        here = await dialled(listener.address, SECRET)
        there = await door.end()
        await here.hears(b"PING 1 a 7\r\n")
        here.link.write(b"KNOCK 12345\r\n")
        await there.hears(b"KNOCK 12345\r\n")
        here.link.close()
        await there.over()


@on_both_loops
async def test_a_side_with_another_secret_gets_no_link(caplog: pytest.LogCaptureFixture) -> None:
    async with nothing_left_open(), listening(LOCAL_TCP, SECRET) as (listener, door):
        with pytest.raises(TransportError, match="before it had proved that it knows the secret; it may know another"):
            await dialled(listener.address, TransportOptions(secret=b"open barley"))
        assert door.ends.empty()
    [message] = [record.getMessage() for record in caplog.records if record.name == "hydra.transports.tcp"]
    assert message == f"{listener.address} refused 1 link(s), the last from 127.0.0.1: it knows another secret"


@on_both_loops
async def test_a_health_check_that_connects_and_sends_nothing_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "hydra.transports.tcp")
    async with nothing_left_open(), listening(LOCAL_TCP, SECRET) as (listener, door):
        async with stranger(listener.address) as (reader, _):
            await reader.readuntil(b"CHALLENGE ")
        await until(lambda: caplog.records, "the log line")
        assert door.ends.empty()
    [record] = caplog.records
    assert (record.levelname, record.getMessage()) == (
        "DEBUG",
        f"{listener.address}: 127.0.0.1 connected and sent nothing",
    )


@on_both_loops
async def test_a_dialling_side_without_a_secret_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async with listening(LOCAL_TCP, SECRET) as (listener, door):
        here = await dialled(listener.address)
        here.link.write(b"KNOCK 12345\r\n")
        await here.over()
        assert here.data.startswith(b"CHALLENGE ")
        assert door.ends.empty()
    assert "it may have none" in caplog.text


@on_both_loops
async def test_a_dialled_side_without_a_secret_is_disconnected_in_time() -> None:
    options = replace(SECRET, proof_timeout=0.1)
    async with nothing_left_open(), listening(LOCAL_TCP) as (listener, door):
        with pytest.raises(TransportError, match=r"it has not proved within 0\.1 s that it knows the secret"):
            await dialled(listener.address, options)
        there = await door.end()
        await there.over()
        assert there.data.startswith(b"CHALLENGE ")


@on_both_loops
async def test_a_silent_side_is_disconnected_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        listening(LOCAL_TCP, replace(SECRET, proof_timeout=0.1)) as (listener, door),
        stranger(listener.address) as (reader, _),
    ):
        assert (await all_of(reader)).startswith(b"CHALLENGE ")
        assert door.ends.empty()
    assert "it has not proved within 0.1 s that it knows the secret" in caplog.text


@on_both_loops
async def test_a_mirror_gets_no_link() -> None:
    async with (
        listening(LOCAL_TCP, SECRET) as (listener, door),
        stranger(listener.address) as (reader, writer),
    ):
        while line := await reader.readline():
            writer.write(line)
        assert door.ends.empty()


@on_both_loops
async def test_a_line_without_end_before_the_proof_costs_nothing() -> None:
    async with (
        listening(LOCAL_TCP, SECRET) as (listener, door),
        stranger(listener.address) as (reader, writer),
    ):
        writer.write(b"C" * 100_000)
        await all_of(reader)
        assert door.ends.empty()


@on_both_loops
async def test_a_flood_of_strangers_does_not_keep_friends_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tcp, "MAX_STRANGERS", 3)
    async with (
        nothing_left_open(),
        listening(LOCAL_TCP, SECRET) as (listener, door),
        contextlib.AsyncExitStack() as stack,
    ):
        strangers = [await stack.enter_async_context(stranger(listener.address)) for _ in range(5)]
        for reader, _ in strangers[:2]:
            await all_of(reader)  # closed: they have taken longest
        here = await dialled(listener.address, SECRET)
        there = await door.end()
        assert len(listener._strangers) <= 3  # type: ignore[attr-defined]
        here.link.close()
        await there.over()
    assert "more than 3 are in their handshake or proof" in caplog.text


@on_both_loops
async def test_closing_the_listener_ends_what_has_not_been_proved() -> None:
    async with nothing_left_open():
        options = replace(SECRET, proof_timeout=60)
        async with listening(LOCAL_TCP, options) as (listener, door), stranger(listener.address) as (reader, _):
            assert (await reader.readline()).startswith(b"CHALLENGE ")
            await listener.close()
            assert await all_of(reader) == b""
        assert door.ends.empty()


@on_both_loops
async def test_a_dial_that_is_cancelled_leaves_nothing_open() -> None:
    async with nothing_left_open(), listening(LOCAL_TCP) as (listener, door):
        task = asyncio.create_task(dialled(listener.address, SECRET))
        there = await door.end()
        await there.hears(there.data)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await there.over()
