"""Frames as lines of a stream of bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec.lines import LineDecoder, line
from peers.errors import LineTooLong
from tests.peers.strategies import spelled

LIMIT = 1_048_576


@given(frames=st.lists(spelled()), data=st.data())
def test_lines_come_out_as_they_went_in_however_the_stream_is_cut(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(line, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)))))
    decoder = LineDecoder()
    pieces = [stream[begin:end] for begin, end in pairwise([0, *cuts, len(stream)])]
    found = [each for piece in pieces for each in decoder.feed(piece)]
    assert found == [frame.replace(b"\n", b" ") for frame in frames]
    assert decoder.error is None
    assert decoder.finish() == []


def test_a_line_feed_between_tokens_becomes_a_space() -> None:
    assert line(b'{\n"a":1}') == b'{ "a":1}\n'


def test_empty_lines_are_skipped() -> None:
    assert LineDecoder().feed(b'\n \r\n{"a":1}\r\n\n') == [b'{"a":1}\r']


def test_the_last_line_needs_no_line_feed() -> None:
    decoder = LineDecoder()
    assert decoder.feed(b"{}\n[1") == [b"{}"]
    assert decoder.feed(b",2]") == []
    assert decoder.finish() == [b"[1,2]"]
    assert decoder.finish() == []


@pytest.mark.parametrize("chunk", [LIMIT + 2, 65_536])
def test_a_line_may_have_one_mebibyte_and_no_more(chunk: int) -> None:
    for size, error in ((LIMIT, None), (LIMIT + 1, LineTooLong)):
        stream = b"1\n" + b"x" * size + b"\n2\n"
        decoder = LineDecoder()
        found = [each for at in range(0, len(stream), chunk) for each in decoder.feed(stream[at : at + chunk])]
        assert found == ([b"1", b"x" * LIMIT, b"2"] if error is None else [b"1"])
        assert (decoder.error and type(decoder.error)) is error
        assert str(decoder.error or "") == ("a line has more than 1048576 bytes" if error else "")


def test_a_line_that_does_not_end_is_not_waited_for() -> None:
    decoder = LineDecoder()
    decoder.feed(b"x" * (LIMIT + 1))
    assert isinstance(decoder.error, LineTooLong)
    assert decoder.feed(b"\n{}\n") == []
    assert decoder.finish() == []


@given(st.lists(st.binary(max_size=20)))
def test_any_bytes_are_lines(chunks: list[bytes]) -> None:
    decoder = LineDecoder()
    found = [each for chunk in chunks for each in decoder.feed(chunk)] + decoder.finish()
    assert found == [each for each in b"".join(chunks).split(b"\n") if each.strip()]
