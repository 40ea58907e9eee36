"""Links over UDP."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hydra.transports import dial, listen, udp
from hydra.transports.address import parse_node_address
from hydra.transports.base import TransportError, TransportOptions
from tests.hydra.transports.ends import (
    LOCAL_UDP,
    OPTIONS,
    Door,
    dialled,
    listening,
    nothing_left_open,
    on_both_loops,
)

KNOCK = b"KNOCK 12345 probe\r\n"

needs_refusals = pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports refusals to such sockets")


@contextlib.contextmanager
def stranger(host: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A socket whose datagrams the test chooses."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        sock.setblocking(False)
        yield sock


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


async def datagram(sock: socket.socket) -> bytes:
    """The next datagram that comes to a stranger."""
    while True:
        try:
            return sock.recv(65536)
        except BlockingIOError:
            await asyncio.sleep(0.001)  # readers of sockets with errors end in uvloop


@on_both_loops
async def test_lines_pass_both_ways() -> None:
    async with nothing_left_open(), listening(LOCAL_UDP) as (listener, door):
        here = await dialled(listener.address)
        here.link.write(KNOCK)
        there = await door.end()
        await there.hears(KNOCK)
        there.link.write(b"MEET 12345 7\r\n")
        there.link.write(b"WELCOME 12345\r\n")
        await here.hears(b"MEET 12345 7\r\nWELCOME 12345\r\n")
        assert here.link.origin == there.link.origin == "127.0.0.1"
        here.link.close()
        there.link.close()


@on_both_loops
async def test_lines_of_one_turn_share_datagrams_and_a_long_one_goes_alone() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        with stranger() as sock:
            sock.sendto(KNOCK, ("127.0.0.1", port_of(listener.address)))
            there = await door.end()
            short, long = b"PING 1 a 7\r\n", b"RECV 1 " + b"x" * 2041 + b"\r\n"
            for line in (short, short, long, short):
                there.link.write(line)
            assert [await datagram(sock) for _ in range(3)] == [short * 2, long, short]
            there.link.write(short)
            assert await datagram(sock) == short


@on_both_loops
async def test_lines_written_before_a_close_are_sent() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        here = await dialled(listener.address)
        here.link.write(KNOCK)
        here.link.close()
        here.link.write(b"PING 1 a 7\r\n")
        there = await door.end()
        await there.hears(KNOCK)


@on_both_loops
async def test_a_datagram_that_cannot_be_taken_costs_itself_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[str] = []
    options = replace(OPTIONS, fault=lambda unit, error: faults.append(f"{unit}: {error}"))

    def lines(data: bytes) -> bytes:
        if b"bad" in data:
            raise RecursionError("unforeseen")
        return data

    monkeypatch.setattr(udp, "whole_lines", lines)
    async with listening(LOCAL_UDP, options) as (listener, door):
        with stranger() as sock:
            for data in (KNOCK, b"bad\r\n", b"PING 1 a 7\r\n"):
                sock.sendto(data, ("127.0.0.1", port_of(listener.address)))
            there = await door.end()
            await there.hears(KNOCK + b"PING 1 a 7\r\n")
            there.link.close()
    assert faults == ["datagram from 127.0.0.1: unforeseen"]


@on_both_loops
async def test_a_line_without_an_end_is_not_glued_to_the_next_datagram() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        with stranger() as sock:
            sock.sendto(b"KNOCK 12345", ("127.0.0.1", port_of(listener.address)))
            sock.sendto(b"PING 1 a 7\r\n", ("127.0.0.1", port_of(listener.address)))
            await (await door.end()).hears(b"KNOCK 12345\nPING 1 a 7\r\n")


@on_both_loops
async def test_noise_costs_no_link() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        to = ("127.0.0.1", port_of(listener.address))
        with stranger() as noisy, stranger() as friend:
            for noise in (
                b"",
                b"\xff\xff\r\n",
                b"GET / HTTP/1.0\r\n\r\n",
                b"\0" * 9000,
                b"KNOCK\r\n",
                b"\xff\n" + KNOCK,
            ):
                noisy.sendto(noise, to)
            friend.sendto(KNOCK, to)
            there = await door.end()
            await there.hears(KNOCK)
            assert door.ends.empty()
            noisy.sendto(KNOCK + b"\xff\n", to)
            await (await door.end()).hears(KNOCK + b"\xff\n")
            assert there.data == KNOCK


@on_both_loops
async def test_datagrams_of_another_address_are_another_link() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        to = ("127.0.0.1", port_of(listener.address))
        with stranger() as one, stranger() as other:
            one.sendto(KNOCK, to)
            first = await door.end()
            other.sendto(b"DROP 12345\r\n", to)
            second = await door.end()
            await second.hears(b"DROP 12345\r\n")
            assert first.data == KNOCK


@on_both_loops
async def test_datagrams_from_other_addresses_than_the_dialled_one_are_ignored() -> None:
    with stranger() as friend, stranger() as spoof:
        here = await dialled(f"udp://127.0.0.1:{friend.getsockname()[1]}")
        here.link.write(KNOCK)
        async with asyncio.timeout(5):
            while True:
                try:
                    _, where = friend.recvfrom(2048)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.001)
        spoof.sendto(b"DROP 12345\r\n", where)
        friend.sendto(b"MEET 12345 7\r\n", where)
        await here.hears(b"MEET 12345 7\r\n")


@on_both_loops
async def test_a_silent_link_is_over(caplog: pytest.LogCaptureFixture) -> None:
    options = replace(OPTIONS, idle=0.2)
    async with nothing_left_open(), listening(LOCAL_UDP, options) as (listener, door):
        with stranger() as sock:
            to = ("127.0.0.1", port_of(listener.address))
            started = asyncio.get_running_loop().time()
            sock.sendto(KNOCK, to)
            there = await door.end()
            there.link.write(b"PING 1 a 7\r\n")  # one's own lines do not count
            assert await there.over() == "silent for 0.2 s"
            assert asyncio.get_running_loop().time() - started > 0.15
            sock.sendto(KNOCK, to)
            await (await door.end()).hears(KNOCK)


@on_both_loops
async def test_a_link_that_is_heard_of_goes_on() -> None:
    loop = asyncio.get_running_loop()
    async with listening(LOCAL_UDP, replace(OPTIONS, idle=0.5)) as (listener, door):
        with stranger() as sock:
            to = ("127.0.0.1", port_of(listener.address))
            sock.sendto(KNOCK, to)
            there = await door.end()
            until = loop.time() + 1.2
            heard, size = 0.0, 0
            while loop.time() < until and there.reason is None:  # this process may itself have been silent
                sock.sendto(KNOCK, to)
                before = loop.time()
                await asyncio.sleep(0.02)  # time has to pass here
                if len(there.data) > size:
                    heard, size = before, len(there.data)
        assert await there.over() == "silent for 0.5 s"
        assert loop.time() >= heard + 0.5


@needs_refusals
@on_both_loops
async def test_without_a_listener_the_link_is_refused() -> None:
    async with nothing_left_open():
        with stranger() as sock:
            address = f"udp://127.0.0.1:{sock.getsockname()[1]}"
        here = await dialled(address)
        here.link.write(KNOCK)
        assert await here.over() == "refused"


@needs_refusals
@on_both_loops
async def test_a_refusal_ends_one_link_of_a_socket_and_loses_nothing_of_the_others() -> None:
    async with nothing_left_open(), listening(LOCAL_UDP) as (listener, _), listening(LOCAL_UDP) as (friends, door):
        gone = []
        for _ in range(3):
            with stranger() as sock:
                gone.append(await dialled(f"udp://127.0.0.1:{sock.getsockname()[1]}", OPTIONS, listener))
        here = await dialled(friends.address, OPTIONS, listener)
        for each in (*gone, here):
            each.link.write(KNOCK)
        there = await door.end()
        await there.hears(KNOCK)
        for each in gone:
            assert await each.over() == "refused"
        there.link.write(b"MEET 12345 7\r\n")
        await here.hears(b"MEET 12345 7\r\n")
        here.link.close()
        there.link.close()


@on_both_loops
async def test_loss_on_the_way_loses_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        here = await dialled(listener.address)
        here.link.write(KNOCK)
        there = await door.end()
        await there.hears(KNOCK)
        heard = KNOCK
        for number in range(40):
            line = b"RECV %d %s\r\n" % (number, b"x" * 1500)
            if number % 4:
                here.link.write(line)
                heard += line
            else:
                with monkeypatch.context() as patch:
                    patch.setattr(udp.UdpSocket, "send", lambda *args: None)
                    here.link.write(line)
                    here.link._channel._flush()  # type: ignore[attr-defined]
            await asyncio.sleep(0)
        await there.hears(heard)


@on_both_loops
async def test_a_node_writes_from_the_port_that_it_listens_on() -> None:
    async with nothing_left_open(), listening(LOCAL_UDP) as (own, _), listening(LOCAL_UDP) as (other, door):
        here = await dialled(other.address, OPTIONS, own)
        here.link.write(KNOCK)
        there = await door.end()
        remote = there.link._channel.remote  # type: ignore[attr-defined]
        assert remote == ("127.0.0.1", port_of(own.address))
        here.link.close()
        there.link.close()


@on_both_loops
async def test_two_nodes_that_dial_each_other_have_one_link() -> None:
    async with nothing_left_open(), listening(LOCAL_UDP) as (alpha, at_alpha), listening(LOCAL_UDP) as (beta, at_beta):
        here = await dialled(beta.address, OPTIONS, alpha)
        here.link.write(KNOCK)
        accepted = await at_beta.end()
        there = await dialled(alpha.address, OPTIONS, beta)
        assert await accepted.over() == "this node has dialled the same address"
        there.link.write(b"KNOCK 7\r\n")
        await here.hears(b"KNOCK 7\r\n")
        here.link.write(b"MEET 7 12345\r\n")
        await there.hears(b"MEET 7 12345\r\n")
        assert at_alpha.ends.empty()
        with pytest.raises(TransportError, match=rf"{beta.address}: there is a link already"):
            await dialled(beta.address, OPTIONS, alpha)
        here.link.close()
        there.link.close()


@on_both_loops
async def test_a_link_to_where_the_listener_does_not_reach_has_a_socket_of_its_own() -> None:
    # TEST-NET-1: no host is there.
    async with nothing_left_open(), listening(LOCAL_UDP) as (own, _):
        try:
            here = await dialled("udp://192.0.2.1:6174", OPTIONS, own)
        except TransportError:
            pytest.skip("this machine has no route")
        assert here.link._socket.port != port_of(own.address)  # type: ignore[attr-defined]
        here.link.close()


@on_both_loops
async def test_strangers_can_not_take_up_all_links(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(udp, "MAX_ACCEPTED", 2)
    async with listening(LOCAL_UDP) as (listener, door), listening(LOCAL_UDP) as (other, at_other):
        to = ("127.0.0.1", port_of(listener.address))
        with stranger() as one, stranger() as two, stranger() as three:
            for sock in (one, two, three):
                sock.sendto(KNOCK, to)
            first = await door.end()
            await door.end()
            here = await dialled(other.address, OPTIONS, listener)  # those that are dialled do not count
            here.link.write(KNOCK)
            (await at_other.end()).link.write(b"MEET 12345 7\r\n")
            await here.hears(b"MEET 12345 7\r\n")
            assert door.ends.empty()
            first.link.close()
            three.sendto(b"KNOCK 3\r\n", to)
            await (await door.end()).hears(b"KNOCK 3\r\n")
    assert f"UDP port {to[1]} refused 1 link(s): 2 are open already" in caplog.text


@on_both_loops
async def test_a_link_that_the_node_refuses_costs_nothing() -> None:
    async with listening(LOCAL_UDP) as (listener, door):
        door.refuses = True
        to = ("127.0.0.1", port_of(listener.address))
        with stranger() as sock:
            sock.sendto(KNOCK, to)
            async with asyncio.timeout(5):
                while not door.refused:
                    await asyncio.sleep(0.001)
            door.refuses = False
            sock.sendto(b"KNOCK 2\r\n", to)
            await (await door.end()).hears(b"KNOCK 2\r\n")


@on_both_loops
async def test_links_go_on_when_the_listener_is_closed() -> None:
    async with nothing_left_open():
        async with listening(LOCAL_UDP) as (listener, door):
            here = await dialled(listener.address)
            here.link.write(KNOCK)
            there = await door.end()
        with stranger() as sock:
            sock.sendto(KNOCK, ("127.0.0.1", port_of(listener.address)))
        here.link.write(b"PING 1 a 7\r\n")
        await there.hears(KNOCK + b"PING 1 a 7\r\n")
        assert door.ends.empty()
        there.link.close()
        here.link.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="this machine has no IPv6")
@on_both_loops
async def test_ipv6_and_ipv4_come_to_one_socket_that_listens_everywhere() -> None:
    try:
        listener = await listen(parse_node_address("udp://[::]:0"), OPTIONS, door := Door())
    except TransportError:
        pytest.skip("this machine has no IPv6")
    port = port_of(listener.address)
    assert listener.address == f"udp://[::]:{port}"
    for host in ("127.0.0.1", "[::1]"):
        here = await dialled(f"udp://{host}:{port}")
        here.link.write(KNOCK)
        there = await door.end()
        assert there.link.origin == host.strip("[]")
        there.link.write(b"MEET 12345 7\r\n")
        await here.hears(b"MEET 12345 7\r\n")
        here.link.close()
        there.link.close()
    await listener.close()


@needs_refusals
@on_both_loops
async def test_refusals_are_heard_over_ipv6_too() -> None:
    try:
        with stranger("::1") as sock:
            address = f"udp://[::1]:{sock.getsockname()[1]}"
    except OSError:
        pytest.skip("this machine has no IPv6")
    here = await dialled(address)
    here.link.write(KNOCK)
    assert await here.over() == "refused"


@on_both_loops
async def test_a_name_is_listened_on_at_all_its_addresses_with_one_port() -> None:
    async with listening("udp://localhost:0") as (listener, door):
        here = await dialled(f"udp://127.0.0.1:{port_of(listener.address)}")
        here.link.write(KNOCK)
        assert (await door.end()).link.origin == "127.0.0.1"


@on_both_loops
async def test_a_port_that_is_taken_is_told() -> None:
    async with nothing_left_open(), listening(LOCAL_UDP) as (listener, _):
        with pytest.raises(TransportError, match=rf"^{listener.address}: Address already in use$"):
            await listen(parse_node_address(listener.address), OPTIONS, Door())


@on_both_loops
async def test_a_name_that_is_none_is_told() -> None:
    with pytest.raises(TransportError, match=r"^udp://no\.such\.host\.invalid:1: "):
        await dialled("udp://no.such.host.invalid:1")


@on_both_loops
async def test_a_secret_is_refused_in_words() -> None:
    options = TransportOptions(secret=b"open sesame")
    address = parse_node_address(LOCAL_UDP)
    with pytest.raises(TransportError, match=r"a shared secret cannot protect datagrams.*use TCP"):
        await listen(address, options, Door())
    with pytest.raises(TransportError, match="a shared secret cannot protect datagrams"):
        await dial(address, options, Door())
