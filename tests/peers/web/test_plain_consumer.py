"""An ordinary Channels consumer under the protocol class of `peers.server.daphne`: only its close frames are exact."""

from __future__ import annotations

import pytest
from websockets.exceptions import ConnectionClosed

from tests.peers.web.serving import CLOSE, CONTINUATION, TEXT, Frame, Server, close_frame, frame


def test_it_exchanges_text_and_binary(daphne: Server) -> None:
    with daphne.connect("", "/plain") as client:
        for message in ("caf\u00e9", "x" * 200_000, b"\x00\xff" * 100, "last"):
            client.send(message)
            assert client.recv() == message


def test_it_takes_frames_however_they_are_cut(daphne: Server) -> None:
    with daphne.raw("", "/plain") as client:
        client.send(frame(b"on", fin=False), frame(b"e", CONTINUATION), frame(b"two"), frame(b"three"))
        assert [client.read().payload for _ in range(3)] == [b"one", b"two", b"three"]


@pytest.mark.parametrize(("code", "reason"), [(1008, "policy"), (1013, "later"), (4000, "caf\u00e9"), (1000, "bye")])
def test_it_closes_with_exactly_this_code_and_reason(daphne: Server, code: int, reason: str) -> None:
    with daphne.raw("", "/plain") as client:
        client.send(frame(f"close {code} {reason}".encode()))
        assert client.take(len(close_frame(code, reason))) == close_frame(code, reason)
        client.send(frame(b"\x03\xe8", CLOSE))
        assert client.rest() == b""


def test_it_closes_with_1000_by_default(daphne: Server) -> None:
    with daphne.connect("", "/plain") as client:
        client.send("close")
        with pytest.raises(ConnectionClosed) as caught:
            client.recv()
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1000


@pytest.mark.parametrize("code", [1006, 5000])
def test_a_code_that_no_close_frame_may_carry_is_an_error(daphne: Server, code: int) -> None:
    with daphne.raw("", "/plain") as client:
        client.send(frame(b"close %d what" % code))
        assert client.read() == Frame(CLOSE, b"\x03\xf3")
    daphne.logged(f"a close frame cannot carry code {code} ")


def test_it_fails_with_1011(daphne: Server) -> None:
    with daphne.raw("", "/plain") as client:
        client.send(frame(b"fail"))
        assert client.read() == Frame(CLOSE, b"\x03\xf3")


def test_its_limits_are_told_in_a_close_frame_too(daphne: Server) -> None:
    with daphne.raw("", "/plain") as client:
        client.send(frame(b"y" * (1 << 20)))
        assert client.read() == Frame(TEXT, b"y" * (1 << 20))
        client.send(frame(b"y" * ((1 << 20) + 1)))
        assert client.read().payload[:2] == b"\x03\xf1"
    with daphne.raw("", "/plain") as client:
        client.send(frame(b"\xff"))
        assert client.read().payload[:2] == b"\x03\xef"
