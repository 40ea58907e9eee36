"""Frames in bulk: nothing but whole plain text frames is taken, and every one of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from peers.server.websocket_frames import fitting_reason, may_close_with, text_frames, whole_texts
from tests.peers.web.serving import BINARY, CLOSE, CONTINUATION, PING, TEXT, frame


@dataclass
class Sent:
    """A frame as a client sends it, and the text that it is if it is nothing special."""

    data: bytes
    text: bytes | None


masks = st.binary(min_size=4, max_size=4)
sizes = st.sampled_from([0, 1, 124, 125, 126, 127, 300, 65535])
plain = st.one_of(st.text(max_size=200), st.builds("z".__mul__, sizes)).map(str.encode)
plain_frames = st.builds(lambda text, mask: Sent(frame(text, mask=mask), text), plain, masks)
special_frames = st.sampled_from(
    [
        frame(b"\xff"),
        frame(b"z" * 300 + b"\xed\xa0\x80"),
        frame(b"z" * 65536),
        frame(b"?", PING),
        frame(b"\x03\xe8", CLOSE),
        frame(b"binary", BINARY),
        frame(b"begin", TEXT, False),
        frame(b"end", CONTINUATION),
        frame(b"not masked", mask=b""),
        frame(b"z" * 300, mask=b""),
        b"\xc1" + frame(b"reserved")[1:],
        b"\x81\xfe\x00\x7d" + bytes(4 + 125),  # 125 in two bytes
        b"\x81\xff" + bytes(7) + b"\x05" + bytes(4) + b"hello",
    ]
).map(lambda data: Sent(data, None))


@given(st.lists(st.one_of(plain_frames, plain_frames, special_frames), max_size=8), st.data())
def test_takes_every_plain_text_up_to_the_first_other_or_incomplete_frame(
    sent: list[Sent], data: st.DataObject
) -> None:
    stream = b"".join(one.data for one in sent)
    stream = stream[: data.draw(st.integers(0, len(stream)), "cut")]
    expected, end = [], 0
    for one in sent:
        if one.text is None or end + len(one.data) > len(stream):
            break
        expected.append(one.text)
        end += len(one.data)
    assert whole_texts(stream) == (expected, end)


@given(st.binary())
def test_takes_anything_without_failing(data: bytes) -> None:
    texts, end = whole_texts(data)
    assert 0 <= end <= len(data)
    assert all(text.decode() is not None for text in texts)


@given(st.lists(st.one_of(plain, st.just(b"z" * 65536), st.just(b"z" * 70000)), max_size=5))
def test_writes_the_frames_of_a_server(texts: list[bytes]) -> None:
    assert text_frames(texts) == b"".join(Frame(Opcode.TEXT, text).serialize(mask=False) for text in texts)


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1014, 3000, 4999])
def test_codes_for_a_close_frame(code: int) -> None:
    assert may_close_with(code)


@pytest.mark.parametrize("code", [-1, 0, 999, 1004, 1005, 1006, 1015, 2999, 5000])
def test_codes_that_no_close_frame_may_carry(code: int) -> None:
    assert not may_close_with(code)


@given(st.text())
def test_a_reason_is_cut_to_what_fits(reason: str) -> None:
    fitting = fitting_reason(reason)
    assert reason.startswith(fitting)
    assert len(fitting.encode()) <= 123
    assert fitting == reason or len(reason[: len(fitting) + 1].encode()) > 123
