"""Frames as lines of a stream of bytes."""

from io import BufferedReader, RawIOBase
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec.lines import frames_of, line
from peers.errors import LineTooLong
from tests.peers.strategies import spelled

LIMIT = 1_048_576


class Pieces(RawIOBase):
    """A stream that comes in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.left = [piece for piece in pieces if piece]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.left.pop(0) if self.left else b""
        count = min(len(piece), len(buffer))
        buffer[:count] = piece[:count]
        if count < len(piece):
            self.left.insert(0, piece[count:])
        return count


def decoded(*pieces: bytes) -> list[bytes]:
    return [*frames_of(BufferedReader(Pieces(*pieces)).readline)]


@given(frames=st.lists(spelled()), data=st.data())
def test_lines_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(line, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    pieces = [stream[begin:end] for begin, end in pairwise([0, *cuts, len(stream)])]
    assert decoded(*pieces) == [frame.replace(b"\n", b" ") for frame in frames]


def test_a_line_feed_between_tokens_becomes_a_space() -> None:
    assert line(b'{\n"a":1}') == b'{ "a":1}\n'


def test_empty_lines_are_skipped() -> None:
    assert decoded(b'\n \r\n{"a":1}\r\n\n') == [b'{"a":1}\r']


def test_the_last_line_needs_no_line_feed() -> None:
    assert decoded(b"{}\n[1", b",2]") == [b"{}", b"[1,2]"]


@pytest.mark.parametrize("chunk", [LIMIT + 2, 65_536])
def test_a_line_may_have_one_mebibyte_and_no_more(chunk: int) -> None:
    for size, error in ((LIMIT, None), (LIMIT + 1, LineTooLong)):
        stream = b"1\n" + b"x" * size + b"\n2\n"
        pieces = [stream[at : at + chunk] for at in range(0, len(stream), chunk)]
        frames = frames_of(BufferedReader(Pieces(*pieces)).readline)
        assert next(frames) == b"1"
        if error is None:
            assert [*frames] == [b"x" * LIMIT, b"2"]
        else:
            with pytest.raises(error, match=r"^a line has more than 1048576 bytes$"):
                next(frames)
            assert [*frames] == []


def test_a_line_that_does_not_end_is_not_waited_for() -> None:
    pieces = Pieces(b"x" * (LIMIT + 1), b"\n{}\n")
    frames = frames_of(BufferedReader(pieces).readline)
    with pytest.raises(LineTooLong):
        next(frames)
    assert pieces.left == [b"\n{}\n"]
    assert [*frames] == []


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_are_lines(chunks: list[bytes]) -> None:
    assert decoded(*chunks) == [each for each in b"".join(chunks).split(b"\n") if each.strip()]
