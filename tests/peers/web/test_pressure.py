"""Clients that do not read, and clients that are not read from."""

from __future__ import annotations

import contextlib
import socket
import time

import psutil
import pytest

from tests.peers.web.serving import CLOSE, CONTINUATION, TEXT, Frame, Raw, Server, close_frame, frame, running
from tests.waiting import wait_until

#: A receive buffer that makes a client slow.
SMALL = 1 << 12


def read_texts(client: Raw, count: int, size: int, start: int = 0) -> None:
    """Read what the command `send` sends."""
    for number in range(start, count):
        assert client.read() == Frame(TEXT, b"%06d" % number + b"x" * (size - 6))


def test_unsent_tells_what_a_client_does_not_read_and_drained_that_it_has(server: Server, name: str) -> None:
    with server.raw(name, buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"))
        wait_until(lambda: server.state(name), "the connection")
        wait_until(lambda: server.state(name)["unsent"], "unsent bytes")
        before = server.state(name)
        assert before["unsent"] > 1 << 20
        assert before["drains"] == 0
        read_texts(client, 250, 30000)
        assert server.state(name)["unsent"] < before["unsent"]
        read_texts(client, 400, 30000, start=250)
        wait_until(lambda: server.state(name)["drains"] == 1, "drained")
        assert server.state(name)["unsent"] == 0


def test_a_client_that_reads_again_gets_everything_in_order(server: Server, name: str) -> None:
    with server.raw(name, buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"), frame(b"echo between"), frame(b"send 10 70000"))
        wait_until(lambda: (server.state(name) or {}).get("unsent"), "unsent bytes")
        for number in range(40):  # while there is some room in the socket again
            read_texts(client, 10 * number + 10, 30000, start=10 * number)
            server.state(name, f"echo last {number}")
        assert client.read() == Frame(TEXT, b"between")
        # The commands come another way: the server may carry them out before it reads the client's last frame.
        rest = [client.read().payload for _ in range(10 + 40)]
        assert [text[:6] for text in rest if len(text) == 70000] == [b"%06d" % number for number in range(10)]
        assert [text for text in rest if len(text) != 70000] == [b"last %d" % number for number in range(40)]


def test_under_daphne_a_client_that_reads_leaves_nothing_unsent(tcp_daphne: Server, name: str) -> None:
    with tcp_daphne.raw(name) as client:
        for _ in range(3):
            client.send(frame(b"send 10 100"))
            read_texts(client, 10, 100)
        state = tcp_daphne.state(name)
        assert (state["unsent"], state["drains"]) == (0, 0)


def test_a_session_that_fails_in_drained_closes_with_1011(server: Server, name: str) -> None:
    name = f"fails-when-drained-{name}"
    with server.raw(name, buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"))
        wait_until(lambda: (server.state(name) or {}).get("unsent"), "unsent bytes")
        read_texts(client, 400, 30000)
        assert client.take(18) == close_frame(1011, "internal error")
        server.heard(name, "send 400 30000", "FAILED drained", "LOST")


def test_a_slow_client_finds_the_close_frame_when_it_reads_at_last(server: Server, name: str) -> None:
    with server.raw(name, buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"))
        wait_until(lambda: (server.state(name) or {}).get("unsent"), "unsent bytes")
        server.state(name, "close 1008 slow consumer")
        server.heard(name, "send 400 30000", "close 1008 slow consumer", "closed", "LOST")
        time.sleep(2.5)  # Autobahn's own limit is one second
        seen = 0
        while (found := client.read()).opcode == TEXT:
            assert found.payload[:6] == b"%06d" % seen
            seen += 1
        assert found == Frame(CLOSE, b"\x03\xf0slow consumer")
        # A server without a way to the socket drops what it has not sent yet.
        assert seen == 400 if server.kind != "uvicorn" else 0 < seen < 400
        client.send(frame(b"\x03\xf0", CLOSE))
        assert client.rest() == b""


def test_a_client_that_never_answers_the_close_frame_is_dropped_in_the_end() -> None:
    with running("daphne", LINGER="1") as server, server.raw("deaf", buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"), frame(b"close 1008 slow consumer"))
        with server.raw("quiet") as quiet:
            quiet.send(frame(b"close 4000 x"))
            assert quiet.take(5) == close_frame(4000, "x")
            with contextlib.suppress(ConnectionResetError):
                assert quiet.rest() == b""
        assert_is_cut_off(client)


def test_a_client_that_closes_and_does_not_read_is_dropped_in_the_end() -> None:
    with running("daphne", LINGER="1") as server, server.raw("gone", buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"), frame(b"\x03\xe8", CLOSE))
        server.heard("gone", "send 400 30000", "LOST")
        assert_is_cut_off(client)


def is_established(client: Raw) -> bool:
    """Whether the kernel knows of no end of the connection yet."""
    return client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == b"\1"


def assert_is_cut_off(client: Raw) -> None:
    """Wait for the end, read to it, and see that most is missing."""
    wait_until(lambda: not is_established(client), "the end of the connection")
    try:
        rest = client.rest()
    except ConnectionResetError:
        rest = client.received
    assert len(rest) < 400 * 30000


def test_a_client_that_closes_and_reads_later_gets_all_that_was_sent(daphne: Server, name: str) -> None:
    with daphne.raw(name, buffer=SMALL) as client:
        client.send(frame(b"send 400 30000"))
        wait_until(lambda: (daphne.state(name) or {}).get("unsent"), "unsent bytes")
        client.send(frame(b"\x03\xe8", CLOSE))
        daphne.heard(name, "send 400 30000", "LOST")
        read_texts(client, 400, 30000)
        assert client.read().opcode == CLOSE
        assert client.rest() == b""


@pytest.mark.parametrize(
    "endless",
    [
        frame(b"close 4000 x") + frame(b"", fin=False) + frame(b"y" * 65535, CONTINUATION, False) * 1000,
        b"\x89\xff" + b"\x00\x00\x01" + bytes(5) + bytes(4) + b"y" * (1 << 26),
    ],
    ids=["fragments after the close", "a ping of a terabyte"],
)
def test_bytes_from_a_closed_client_are_not_kept(tcp_daphne: Server, name: str, endless: bytes) -> None:
    with tcp_daphne.raw(name) as client:
        before = psutil.Process(tcp_daphne.process.pid).memory_info().rss
        client.send(endless)
        assert psutil.Process(tcp_daphne.process.pid).memory_info().rss - before < 1 << 25


def test_a_paused_connection_makes_the_client_wait(server: Server, name: str) -> None:
    data = frame(b"y" * 50_000)
    with server.raw(name) as client:
        client.send(frame(b"pause"))
        server.heard(name, "pause")
        times, rest = client.send_until_stuck(data)
        assert times * len(data) < 1 << 26
        held = server.state(name)["bytes_in"]
        assert held < 1 << 18
        assert server.state(name, "echo out of band")["bytes_in"] < 1 << 18
        assert client.read() == Frame(TEXT, b"out of band")
        server.state(name, "resume")
        client.send(rest)
        total = len("pause") + len("echo out of band") + len("resume") + (times + 1) * 50_000
        wait_until(lambda: server.state(name)["bytes_in"] == total, "the rest")


def test_a_paused_connection_can_be_closed(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"pause"))
        server.heard(name, "pause")
        _, rest = client.send_until_stuck(frame(b"y" * 50_000))
        server.state(name, "close 1008 enough")
        assert client.take(10) == close_frame(1008, "enough")
        server.heard(name, "pause", "close 1008 enough", "closed", "LOST")
        client.send(rest, frame(b"\x03\xf0", CLOSE))
        assert client.rest() == b""


#: The timeout is longer than the pauses that a busy machine makes between a ping and the step before it.
PINGS = ("--ping-interval", "1", "--ping-timeout", "6")


def test_only_a_connection_that_could_have_answered_a_ping_is_closed_for_silence() -> None:
    with running("daphne", *PINGS) as server, server.raw("paused") as paused, contextlib.ExitStack() as others:
        assert paused.read().opcode == 9
        server.state("paused", "pause")
        closed = others.enter_context(server.raw("closed"))
        assert closed.read().opcode == 9
        closed.send(frame(b"close 1008 enough"))
        assert closed.take(10) == close_frame(1008, "enough")
        silent = others.enter_context(server.raw("silent"))
        assert silent.read().opcode == 9
        assert silent.read() == Frame(CLOSE, b"\x03\xf3ping timeout")
        server.heard("silent", "LOST")
        with server.raw("silent-too") as silent_too:  # as long again
            assert silent_too.read().opcode == 9
            assert silent_too.read().opcode == CLOSE
        closed.send(frame(b"\x03\xf0", CLOSE))
        assert closed.rest() == b""
        server.state("paused", "resume")
        paused.send(frame(b"echo still there"))
        received = [paused.read()]
        while received[-1].opcode == 9:
            received.append(paused.read())
        assert received[-1] == Frame(TEXT, b"still there")


def test_a_client_that_answers_pings_stays() -> None:
    with running("daphne", *PINGS) as server, server.raw("silent") as silent, server.connect("lively") as lively:
        assert silent.read().opcode == 9
        assert silent.read().opcode == CLOSE
        lively.send("echo on")
        assert lively.recv() == "on"
