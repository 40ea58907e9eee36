"""Links over named pipes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hydra.transports import fifo, listen
from hydra.transports.address import FifoAddress, parse_node_address
from hydra.transports.base import MAX_QUEUED, TransportError, TransportOptions
from hydra.transports.fifo_framing import LinkStart
from tests.hydra.transports.ends import (
    OPTIONS,
    Door,
    End,
    dialled,
    listening,
    nothing_left_open,
    on_both_loops,
)
from tests.process import Process

SECRET = replace(OPTIONS, secret=b"open sesame")
A = LinkStart("0a" * 16)
B = LinkStart("0b" * 16)

CHILD = """
import asyncio, sys
from hydra.transports import dial, listen
from hydra.transports.address import parse_node_address
from hydra.transports.base import TransportOptions

class Handler:
    def received(self, data): print(data.decode(), end="", flush=True)
    def closed(self, reason): print(reason, flush=True)

def opened(link):
    link.write(bytes.fromhex(sys.argv[3]))
    print("opened", flush=True)
    return Handler()

async def main():
    address = parse_node_address(sys.argv[2])
    if sys.argv[1] == "dial":
        await dial(address, TransportOptions(), opened)
    else:
        listener = await listen(address, TransportOptions(), opened)
        print("listens", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def address(tmp_path: Path) -> FifoAddress:
    found = parse_node_address(f"fifo://{tmp_path}/hydra")
    assert isinstance(found, FifoAddress)
    return found


@contextlib.contextmanager
def node(way: str, address: FifoAddress, says: bytes = b"") -> Iterator[Process]:
    """A process that dials or listens, says something over its link, and prints what it hears."""
    process = Process(sys.executable, "-c", CHILD, way, str(address), says.hex())
    try:
        yield process
    finally:
        process.end()


async def says(process: Process, line: str) -> None:
    """Wait for a line of a process."""
    assert await asyncio.to_thread(process.next_line) == line


@contextlib.contextmanager
def reading(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def pipes(address: FifoAddress) -> list[str]:
    """The names in the directory of the pipes."""
    return sorted(os.listdir(address.path.parent))


def put(path: str, data: bytes) -> None:
    """Write to a pipe as a program that leaves at once."""
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(fd, data)
    os.close(fd)


async def both_closed(here: End, there: End) -> None:
    here.link.close()
    assert await there.over() == "closed by the other side"


# Links


@pytest.mark.parametrize("options", [OPTIONS, SECRET], ids=["open", "secret"])
@on_both_loops
async def test_lines_pass_both_ways(address: FifoAddress, options: TransportOptions) -> None:
    lines = b"RECV 1 :a!b@c PRIVMSG #d :hello\r\n" * 10_000  # more than a pipe holds
    async with nothing_left_open(), listening(address, options) as (listener, door):
        assert listener.address == str(address)
        here = await dialled(listener.address, options)
        there = await door.end()
        here.link.write(lines)
        there.link.write(lines)
        await asyncio.gather(there.hears(lines), here.hears(lines))
        assert here.link.origin == there.link.origin == str(address)
        await both_closed(here, there)


@on_both_loops
async def test_lines_sent_as_the_link_opens_arrive(address: FifoAddress) -> None:
    async with listening(address, SECRET) as (_, door):
        door.greeting = b"PING 1 a 7\r\n"
        here = await dialled(str(address), SECRET)
        await here.hears(b"PING 1 a 7\r\n")


@on_both_loops
async def test_the_pipes_are_for_their_owner_and_go_with_the_listener(address: FifoAddress) -> None:
    async with listening(address):
        for path in (address.inward, address.outward):
            status = os.stat(path)
            assert stat.S_ISFIFO(status.st_mode)
            assert stat.S_IMODE(status.st_mode) == 0o600
    assert pipes(address) == []


@on_both_loops
async def test_pipes_that_were_there_stay(address: FifoAddress) -> None:
    os.mkfifo(address.inward, 0o600)
    async with listening(address) as (_, door):
        here = await dialled(str(address))
        await both_closed(here, await door.end())
    assert pipes(address) == ["hydra.in"]


@on_both_loops
async def test_one_link_at_a_time(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address) as (_, door):
        here = await dialled(str(address))
        there = await door.end()
        with pytest.raises(TransportError, match="another node is linked there"):
            await dialled(str(address))
        here.link.write(b"KNOCK 1\r\n")
        await there.hears(b"KNOCK 1\r\n")
        await both_closed(here, there)
        again = await dialled(str(address))
        await both_closed(again, await door.end())


@on_both_loops
async def test_one_listener_at_a_time(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address):
        with pytest.raises(TransportError, match="another node listens there"):
            await listen(address, OPTIONS, Door())
        assert pipes(address) == ["hydra.in", "hydra.out"]


@on_both_loops
async def test_without_a_listener_the_dial_fails_at_once(address: FifoAddress) -> None:
    async with nothing_left_open():
        with pytest.raises(TransportError, match=rf"^{address}: {address.outward}: is not there$"):
            await dialled(str(address))
        os.mkfifo(address.inward)
        os.mkfifo(address.outward)
        with pytest.raises(TransportError, match=rf"{address.inward}: no process reads it$"):
            await dialled(str(address))


@on_both_loops
async def test_a_listener_that_does_not_answer_is_given_up_in_time(address: FifoAddress) -> None:
    os.mkfifo(address.inward)
    os.mkfifo(address.outward)
    async with nothing_left_open():
        with reading(address.inward), pytest.raises(TransportError, match=r"no answer within 0\.1 s"):
            await dialled(str(address), replace(OPTIONS, connect_timeout=0.1))


@on_both_loops
async def test_a_dial_that_is_cancelled_leaves_nothing_open(address: FifoAddress) -> None:
    os.mkfifo(address.inward)
    os.mkfifo(address.outward)
    async with nothing_left_open():
        with reading(address.inward):
            task = asyncio.create_task(dialled(str(address)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@on_both_loops
async def test_files_that_are_no_pipes_are_left_alone(address: FifoAddress) -> None:
    os.close(os.open(address.inward, os.O_CREAT))
    async with nothing_left_open():
        with pytest.raises(TransportError, match=f"{address.inward} is no pipe"):
            await listen(address, OPTIONS, Door())
        os.unlink(address.inward)
        os.symlink("/dev/null", address.inward)
        with pytest.raises(TransportError, match=f"{address.inward}: is a symbolic link"):
            await listen(address, OPTIONS, Door())
    assert pipes(address) == ["hydra.in"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@on_both_loops
async def test_a_pipe_of_another_user_is_not_trusted(address: FifoAddress) -> None:
    os.mkfifo(address.inward, 0o666)
    os.chown(address.inward, 12345, 12345)
    with pytest.raises(TransportError, match=f"{address.inward} belongs to another user"):
        await listen(address, OPTIONS, Door())


@on_both_loops
async def test_a_directory_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="No such file or directory"):
        await listen(parse_node_address(f"fifo://{tmp_path}/nowhere/hydra"), OPTIONS, Door())


@on_both_loops
async def test_a_link_that_the_node_refuses_is_closed(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address) as (_, door):
        door.refuses = True
        here = await dialled(str(address))
        assert await here.over() == "closed by the other side"
        door.refuses = False
        here = await dialled(str(address))
        await both_closed(here, await door.end())


@on_both_loops
async def test_either_side_can_close_and_dial_again(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address) as (_, door):
        for number in range(20):
            here = await dialled(str(address))
            there = await door.end()
            here.link.write(b"KNOCK %d\r\n" % number)
            await there.hears(b"KNOCK %d\r\n" % number)
            if number % 2:
                await both_closed(there, here)
            else:
                await both_closed(here, there)


@on_both_loops
async def test_links_go_on_when_the_listener_is_closed(address: FifoAddress) -> None:
    async with nothing_left_open():
        async with listening(address) as (_, door):
            here = await dialled(str(address))
            there = await door.end()
        assert pipes(address) == []
        here.link.write(b"PING 1 a 7\r\n")
        await there.hears(b"PING 1 a 7\r\n")
        there.link.write(b"PONG a 7 0\r\n")
        await here.hears(b"PONG a 7 0\r\n")
        await both_closed(here, there)


@on_both_loops
async def test_a_neighbour_that_does_not_read_costs_a_megabyte_and_then_its_link(address: FifoAddress) -> None:
    line = b"RECV 1 " + b"x" * 1900 + b"\r\n"
    async with nothing_left_open(), listening(address) as (_, door):
        with reading(address.outward):
            fd = os.open(address.inward, os.O_WRONLY)
            os.write(fd, bytes(A))
            there = await door.end()
            queued = 0
            written = 0
            while there.reason is None and written < 64 * MAX_QUEUED:
                there.link.write(line)
                written += len(line)
                queued = max(queued, there.link._channel.get_write_buffer_size())  # type: ignore[attr-defined]
                if written % (100 * len(line)) == 0:
                    await asyncio.sleep(0)
            assert await there.over() == "does not read"
            assert 0.9 * MAX_QUEUED < queued <= MAX_QUEUED
            os.close(fd)


# The secret


@on_both_loops
async def test_a_side_with_another_secret_gets_no_link(address: FifoAddress, caplog: pytest.LogCaptureFixture) -> None:
    async with nothing_left_open(), listening(address, SECRET) as (_, door):
        with pytest.raises(TransportError, match="it may know another"):
            await dialled(str(address), TransportOptions(secret=b"open barley"))
        here = await dialled(str(address), SECRET)
        await both_closed(here, await door.end())
        assert door.ends.empty()
    assert f"{address} refused 1 link(s): it knows another secret" in caplog.text


@on_both_loops
async def test_a_side_that_proves_nothing_is_disconnected_in_time(
    address: FifoAddress, caplog: pytest.LogCaptureFixture
) -> None:
    async with nothing_left_open(), listening(address, replace(SECRET, proof_timeout=0.1)) as (_, door):
        here = await dialled(str(address))
        assert await here.over() == "closed by the other side"
        assert door.ends.empty()
    assert "it has not proved within 0.1 s that it knows the secret" in caplog.text


@on_both_loops
async def test_closing_the_listener_ends_what_has_not_been_proved(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address, replace(SECRET, proof_timeout=60)) as (listener, _):
        here = await dialled(str(address))
        await listener.close()
        assert await here.over() == "closed by the other side"


# Remains of ended processes


@on_both_loops
async def test_half_a_line_is_not_glued_to_the_next_links_first(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address) as (_, door):
        with reading(address.outward):
            # Both have come and gone before the listener looks.
            put(address.inward, bytes(A) + b"KNOCK 1 first\r\nDROP 12")
            put(address.inward, bytes(B) + b"KNOCK 2 second\r\n")
            first, second = await door.end(), await door.end()
            assert await first.over() == "another link has begun"
            assert first.data == b"KNOCK 1 first\r\nDROP 12"
            assert await second.over() == "closed by the other side"
            assert second.data == b"KNOCK 2 second\r\n"


@on_both_loops
async def test_a_side_that_left_is_not_mistaken_for_a_new_one(
    address: FifoAddress, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(address) as (_, door):
        put(address.inward, bytes(A) + b"KNOCK 1\r\n")
        while "no process reads it" not in caplog.text:
            await asyncio.sleep(0)
        put(address.inward, b"DROP 1\r\n\xff0b0b")
        here = await dialled(str(address))
        here.link.write(b"KNOCK 2\r\n")
        await (await door.end()).hears(b"KNOCK 2\r\n")
        assert door.ends.empty()


@on_both_loops
async def test_answers_to_an_earlier_dialler_are_not_heard(address: FifoAddress) -> None:
    os.mkfifo(address.inward)
    os.mkfifo(address.outward)
    with reading(address.outward) as keeps, reading(address.inward) as mark:
        put(address.outward, bytes(A) + b"WELCOME 1\r\nDROP")
        task = asyncio.create_task(dialled(str(address)))
        while True:
            await asyncio.sleep(0)
            with contextlib.suppress(BlockingIOError):
                if written := os.read(mark, 100):
                    break
        fd = os.open(address.outward, os.O_WRONLY | os.O_NONBLOCK)
        os.write(fd, b" 7\r\n" + written + b"MEET 2 7\r\n")
        here = await task
        await here.hears(b"MEET 2 7\r\n")
        os.write(fd, bytes(B))
        assert await here.over() == "another link has begun"
        os.close(fd)
        assert keeps


@on_both_loops
async def test_a_process_that_is_killed_in_the_middle_of_a_line_leaves_nothing(address: FifoAddress) -> None:
    async with nothing_left_open(), listening(address) as (_, door):
        with node("dial", address, b"KNOCK 1 alpha\r\nDROP 12") as process:
            await says(process, "opened")
            there = await door.end()
            await there.hears(b"KNOCK 1 alpha\r\nDROP 12")
            process.send_signal(signal.SIGKILL)
            assert await there.over() == "closed by the other side"
        here = await dialled(str(address))
        here.link.write(b"345\r\n")
        again = await door.end()
        await again.hears(b"345\r\n")
        await both_closed(here, again)


@on_both_loops
async def test_a_listener_that_is_killed_can_be_started_again(address: FifoAddress) -> None:
    async with nothing_left_open():
        with node("listen", address, b"MEET 1 7\r\nDROP") as process:
            await says(process, "listens")
            here = await dialled(str(address))
            await here.hears(b"MEET 1 7\r\nDROP")
            process.send_signal(signal.SIGKILL)
            assert await here.over() == "closed by the other side"
        with node("listen", address, b"MEET 2 7\r\n") as process:
            await says(process, "listens")
            here = await dialled(str(address))
            await here.hears(b"MEET 2 7\r\n")
            here.link.close()
            await says(process, "opened")
            await says(process, "closed by the other side")


@on_both_loops
async def test_a_listener_stops_while_its_neighbour_stays(address: FifoAddress) -> None:
    async with listening(address) as (_, door):
        with node("dial", address, b"KNOCK 1\r\n") as process:
            await says(process, "opened")
            there = await door.end()
            await there.hears(b"KNOCK 1\r\n")
            there.link.close()
            await says(process, "closed by the other side")


@on_both_loops
async def test_pipes_that_were_taken_away_are_made_again(
    address: FifoAddress, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fifo, "RETRY", 0.01)
    directory = Path(address.path).parent
    async with nothing_left_open(), listening(address) as (_, door):
        here = await dialled(str(address))
        there = await door.end()
        for path in (address.inward, address.outward):
            os.unlink(path)
        directory.rename(directory.with_name("moved"))
        await both_closed(here, there)
        while "no links for 0.01 s" not in caplog.text:
            await asyncio.sleep(0.001)
        directory.with_name("moved").rename(directory)
        while len(pipes(address)) < 2:
            await asyncio.sleep(0.001)
        here = await dialled(str(address))
        await both_closed(here, await door.end())
    assert pipes(address) == []


@on_both_loops
async def test_pipes_without_a_writer_keep_no_processor_busy(address: FifoAddress) -> None:
    async with listening(address) as (listener, door):
        here = await dialled(str(address))
        there = await door.end()
        poll = select.poll()
        poll.register(listener._pipe._fd)  # type: ignore[attr-defined]
        assert poll.poll(0) == []
        await both_closed(here, there)
        assert poll.poll(0) == []
        put(address.inward, b"garbage")
        assert poll.poll(0) != []
        while poll.poll(0):
            await asyncio.sleep(0)
        here = await dialled(str(address))
        await both_closed(here, await door.end())
