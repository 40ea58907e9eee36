"""Close frames: the exact code and reason, and that the client finds them."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from tests.peers.web.serving import CLOSE, CONTINUATION, PING, TEXT, Frame, Server, close_frame, frame

CLOSES = [
    (1002, "no handshake frame"),
    (1003, "handshake must be text"),
    (1007, "malformed handshake"),
    (1008, "name claimed under a different token"),
    (1008, "slow consumer"),
    (1011, "peer persistence failed"),
    (1001, "going away"),
    (1013, ""),
    (4999, "caf\u00e9"),
]


@pytest.mark.parametrize(("code", "reason"), CLOSES)
def test_the_session_closes_with_exactly_this_code_and_reason(
    server: Server, name: str, code: int, reason: str
) -> None:
    with server.connect(name) as client:
        client.send(f"close {code} {reason}")
        with pytest.raises(ConnectionClosed) as caught:
            client.recv()
    assert caught.value.rcvd is not None
    assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (code, reason)
    assert caught.value.rcvd_then_sent
    server.heard(name, f"close {code} {reason}"[:40], "closed", "LOST")


def test_the_close_frame_is_these_bytes_and_then_the_client_is_waited_for(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"close 1008 invalid bearer token"))
        assert client.take(24) == b"\x88\x16\x03\xf0invalid bearer token"
        assert client.is_silent()
        client.send(frame(b"\x03\xf0", CLOSE))
        assert client.rest() == b""


def test_frames_sent_before_the_close_arrive_before_it(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"send 100 1000"), frame(b"close 4000 done"))
        assert [client.read().payload[:6] for _ in range(100)] == [b"%06d" % number for number in range(100)]
        assert client.take(8) == close_frame(4000, "done")


def test_the_first_close_counts_and_nothing_is_sent_after_it(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"closetwice"))
        assert client.take(9) == close_frame(4000, "first")
        client.send(frame(b"\x0f\xa0", CLOSE))
        assert client.rest() == b""


def test_a_reason_that_is_too_long_is_cut_at_a_character(server: Server, name: str) -> None:
    with server.connect(name) as client:
        client.send("close 1008 x" + "\u00e9" * 40 + "\U0001f40d" * 20)
        with pytest.raises(ConnectionClosed) as caught:
            client.recv()
    assert caught.value.rcvd is not None
    reason = caught.value.rcvd.reason
    assert reason.startswith("x\u00e9\u00e9")
    assert len(reason.encode()) <= 123


@pytest.mark.parametrize(
    "behind",
    [
        frame(b"echo no"),
        frame(b"z" * (2 << 20)),
        frame(b"z" * (1 << 20), fin=False) + frame(b"z" * (1 << 20), CONTINUATION),
        frame(b"\xff\xff"),
        frame(b"no mask", mask=b""),
        frame(b"?", PING),
    ],
    ids=["text", "too big", "too big in fragments", "not UTF-8", "not masked", "ping"],
)
def test_frames_after_the_close_change_nothing(daphne: Server, name: str, behind: bytes) -> None:
    with daphne.raw(name) as client:
        client.send(frame(b"close 1008 enough"), behind)
        daphne.heard(name, "close 1008 enough", "closed", "LOST")
        client.send(frame(b"echo no"))
        assert client.take(10) == close_frame(1008, "enough")
        client.send(frame(b"\x03\xf0", CLOSE))
    daphne.heard(name, "close 1008 enough", "closed", "LOST")


@pytest.mark.parametrize(
    "text",
    [b"\xff", b"ab\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"z" * 500 + b"\x80", b"\x80" + b"z" * 200_000],
)
@pytest.mark.parametrize("fragmented", [False, True])
def test_text_that_is_not_utf_8_is_closed_with_1007(server: Server, name: str, text: bytes, fragmented: bool) -> None:
    with server.raw(name) as client:
        client.send(frame(b"echo before"))
        assert client.read() == Frame(TEXT, b"before")
        if fragmented:
            client.send(frame(text[:1], TEXT, False), frame(text[1:], CONTINUATION))
        else:
            client.send(frame(text))
        opcode, payload = client.read()
        assert (opcode, payload[:2]) == (CLOSE, b"\x03\xef")
        server.heard(name, "echo before", "LOST")


@pytest.mark.parametrize(
    "wrong",
    [
        frame(b"no mask", mask=b""),
        b"\xc1" + frame(b"reserved bit")[1:],
        b"\x83" + frame(b"opcode 3")[1:],
        frame(b"y" * 126, PING),
        frame(b"begin and", TEXT, False) + frame(b"begin again"),
        frame(b"continue what", CONTINUATION),
        b"\x81\xfe\x00\x03\x00\x00\x00\x00abc",
    ],
    ids=["unmasked", "reserved", "opcode", "long ping", "not continued", "not begun", "length not minimal"],
)
def test_a_frame_against_the_protocol_is_closed_with_1002(daphne: Server, name: str, wrong: bytes) -> None:
    with daphne.raw(name) as client:
        client.send(frame(b"echo before"))
        assert client.read() == Frame(TEXT, b"before")
        client.send(wrong)
        opcode, payload = client.read()
        assert (opcode, payload[:2]) == (CLOSE, b"\x03\xea")
        daphne.heard(name, "echo before", "LOST")


def test_after_a_wrong_frame_the_client_reads_the_end_at_once(tcp_daphne: Server, name: str) -> None:
    with tcp_daphne.raw(name) as client:
        client.send(b"\xff" * 100)
        assert client.read().opcode == CLOSE
        assert client.rest() == b""
        for _ in range(100):  # it can go on sending, and nothing resets the connection
            client.send(b"\xff" * 10_000)
        tcp_daphne.heard(name, "LOST")


def test_a_close_from_the_client_is_answered(server: Server, name: str) -> None:
    with server.connect(name) as client:
        client.send("echo on")
        assert client.recv() == "on"
        client.close(4001, "enough")
        assert client.protocol.close_rcvd is not None
    server.heard(name, "echo on", "LOST")


def test_a_close_from_the_client_comes_after_what_it_sent(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(*(frame(b"echo %d" % number) for number in range(10)), frame(b"\x03\xe8", CLOSE))
        server.heard(name, *(f"echo {number}" for number in range(10)), "LOST")


def test_a_session_that_fails_closes_its_connection_with_1011(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"fail"), frame(b"echo no"))
        assert client.take(18) == close_frame(1011, "internal error")
        server.heard(name, "fail", "FAILED texts_received", "LOST")
        server.logged("LookupError: as told")


def test_a_session_that_fails_in_a_fragmented_message_closes_with_1011(server: Server, name: str) -> None:
    with server.raw(name) as client:
        client.send(frame(b"fa", TEXT, False), frame(b"il", CONTINUATION))
        assert client.take(18) == close_frame(1011, "internal error")
        server.heard(name, "fail", "FAILED texts_received", "LOST")


def test_a_session_that_cannot_be_made_closes_with_1011(server: Server, name: str) -> None:
    with server.raw(f"fails-at-once-{name}") as client:
        assert client.take(18) == close_frame(1011, "internal error")
        client.send(frame(b"\x03\xf3", CLOSE))
        assert client.rest() == b""


def test_a_session_may_refuse_at_once(server: Server, name: str) -> None:
    with server.raw(f"refused-{name}") as client:
        assert client.take(19) == close_frame(1013, "try again later")
        server.heard(f"refused-{name}", "LOST")
