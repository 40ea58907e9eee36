"""A client's messages arrive as they were sent, however they are cut."""

from __future__ import annotations

import random

import pytest

from tests.peers.web.serving import BINARY, CONTINUATION, PING, PONG, TEXT, Frame, Server, close_frame, frame, running
from tests.waiting import wait_until

LIMIT = 1 << 20


def test_a_text_is_received_and_answered(server: Server, name: str) -> None:
    with server.connect(name) as client:
        client.send("echo h\u00e9 \U0001f40d")
        assert client.recv() == "h\u00e9 \U0001f40d"
    server.heard(name, "echo h\u00e9 \U0001f40d", "LOST")


def test_several_texts_are_sent_as_one_message_each(server: Server, name: str) -> None:
    with server.connect(name) as client:
        for size in (10, 125, 126, 65535, 65536):
            client.send(f"send 2 {size}")
            assert client.recv() == "000000" + "x" * (size - 6)
            assert client.recv() == "000001" + "x" * (size - 6)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, LIMIT])
def test_a_text_of_any_size_up_to_1_mib_is_received(server: Server, name: str, size: int) -> None:
    with server.raw(name) as client:
        client.send(frame(b"y" * size), frame(b"echo after"))
        assert client.read() == Frame(TEXT, b"after")
        assert server.state(name)["bytes_in"] == size + len("echo after")


def test_1_mib_counts_bytes_and_not_characters(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame("\u00e9".encode() * (LIMIT // 2)), frame(b"echo passes"))
        assert client.read() == Frame(TEXT, b"passes")
        client.send(frame("\u00e9".encode() * (LIMIT // 2) + b"y"))
        assert client.take(19) == close_frame(1009, "message too big")


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_message_over_1_mib_is_closed_with_1009(server: Server, name: str, opcode: int, pieces: int) -> None:
    message = b"y" * (LIMIT + 1)
    size = len(message) // pieces + 1
    with server.raw(name) as client:
        for start in range(0, len(message), size):
            last = start + size >= len(message)
            client.send(frame(message[start : start + size], CONTINUATION if start else opcode, last))
        assert client.take(19) == close_frame(1009, "message too big")
        server.heard(name, "LOST")


def test_the_limit_holds_whatever_daphne_was_told() -> None:
    limits = ("--websocket-max-message-size", "0", "--websocket-max-frame-size", "0")
    with running("daphne", *limits) as server, server.raw("large") as client:
        client.send(frame(b"y" * (LIMIT + 1)))
        assert client.take(19) == close_frame(1009, "message too big")


def test_many_frames_in_one_packet_arrive_in_order(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(*(frame(b"echo %d" % number) for number in range(3000)))
        assert [client.read().payload for _ in range(3000)] == [b"%d" % number for number in range(3000)]


def test_a_frame_in_many_packets_arrives_whole(server: Server, name: str) -> None:
    text = "echo " + "\u00e9" * 100
    with server.raw(name) as client:
        for byte in frame(text.encode()):
            client.send(bytes([byte]))
        assert client.read() == Frame(TEXT, text[5:].encode())


def test_frames_of_all_kinds_cut_anywhere_arrive_in_order(server: Server, name: str) -> None:
    chance = random.Random(5)
    expected, stream = [], b""
    for number in range(400):
        text = b"echo %d " % number + b"z" * chance.choice([0, 10, 200, 1000])
        cut = chance.randrange(len(text))
        stream += chance.choice(
            [
                frame(text, mask=chance.randbytes(4)),
                frame(text),
                frame(b"") + frame(text),
                frame(b"binary", BINARY) + frame(text),
                frame(text[:cut], TEXT, False) + frame(b"", PONG) + frame(text[cut:], CONTINUATION),
            ]
        )
        expected.append(text[5:])
    with server.raw(name) as client:
        while stream:
            size = chance.choice([1, 7, 100, 1000, 10000])
            client.send(stream[:size])
            stream = stream[size:]
        assert [client.read().payload for _ in expected] == expected


def test_a_fragmented_text_with_a_ping_inside_arrives_whole(server: Server, name: str) -> None:
    text = "echo \u00e9\u00e9\u00e9".encode()
    with server.raw(name) as client:
        client.send(frame(text[:6], TEXT, False), frame(b"are you there", PING))
        assert client.read() == Frame(PONG, b"are you there")
        client.send(frame(text[6:9], CONTINUATION, False), frame(text[9:], CONTINUATION))
        assert client.read() == Frame(TEXT, text[5:])


def test_a_fragmented_text_of_1_mib_is_received(server: Server, name: str) -> None:
    with server.raw(name) as client:
        half = b"y" * (LIMIT // 2)
        client.send(frame(half, TEXT, False), frame(half, CONTINUATION), frame(b"echo after"))
        assert client.read() == Frame(TEXT, b"after")
        assert server.state(name)["bytes_in"] == LIMIT + len("echo after")


def test_a_binary_message_is_noticed_and_nothing_more(server: Server, name: str) -> None:
    with server.connect(name) as client:
        client.send(b"echo no")
        client.send("echo yes")
        assert client.recv() == "yes"
        server.heard(name, None, "echo yes")


def test_a_ping_is_answered_between_texts(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"echo 1"), frame(b"?", PING), frame(b"echo 2"))
        answers = [client.read() for _ in range(3)]
        assert sorted(answers) == [Frame(TEXT, b"1"), Frame(TEXT, b"2"), Frame(PONG, b"?")]


def test_an_unsolicited_pong_is_ignored(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"!", PONG), frame(b"echo on"))
        assert client.read() == Frame(TEXT, b"on")


def test_compression_is_not_agreed_on_under_daphne(daphne: Server, name: str) -> None:
    with daphne.connect(name, compression="deflate") as client:
        assert client.protocol.extensions == []
        client.send("echo plain")
        assert client.recv() == "plain"


def test_a_client_that_vanishes_is_lost(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"echo on"))
        assert client.read() == Frame(TEXT, b"on")
    server.heard(name, "echo on", "LOST")


def test_a_client_that_ends_tls_is_lost(tls_daphne: Server, name: str) -> None:
    with tls_daphne.raw(name) as client:
        client.send(frame(b"echo on"))
        assert client.read() == Frame(TEXT, b"on")
        client.socket.unwrap()  # type: ignore[attr-defined]
        tls_daphne.heard(name, "echo on", "LOST")


def test_each_connection_is_on_its_own(server: Server) -> None:
    with server.raw("own-a") as a, server.raw("own-b") as b:
        a.send(frame(b"echo a"))
        b.send(frame(b"close 4000 b"))
        assert b.take(5) == close_frame(4000, "b")
        assert a.read() == Frame(TEXT, b"a")
        wait_until(lambda: server.state("own-b")["heard"][-1] == "LOST", "the end of b")
        assert server.state("own-a")["heard"] == ["echo a"]
