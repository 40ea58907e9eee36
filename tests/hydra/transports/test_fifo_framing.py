"""The beginnings of links in what comes through a pipe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra.transports.fifo_framing import FifoDecoder, LinkStart

A = LinkStart("0a" * 16)
B = LinkStart("0b" * 16)


def test_a_mark_is_a_byte_that_no_text_has_and_a_line() -> None:
    assert bytes(A) == b"\xff" + b"0a" * 16 + b"\r\n"


def test_links_are_told_apart() -> None:
    stream = b"left by someone" + bytes(A) + b"KNOCK 1\r\nDROP 12" + bytes(B) + b"KNOCK 2\r\n"
    assert FifoDecoder().feed(stream) == [b"left by someone", A, b"KNOCK 1\r\nDROP 12", B, b"KNOCK 2\r\n"]


PIECES = st.lists(
    st.one_of(
        st.just(bytes(A)),
        st.just(bytes(B)),
        st.just(b"\xff12"),
        st.binary(max_size=50),
        st.text(max_size=9).map(str.encode),
    )
)


def joined(parts: list[bytes | LinkStart]) -> list[bytes | LinkStart]:
    """Bytes that come in several pieces, as one."""
    whole: list[bytes | LinkStart] = []
    for part in parts:
        if isinstance(part, bytes) and whole and isinstance(before := whole[-1], bytes):
            whole[-1] = before + part
        else:
            whole.append(part)
    return whole


@given(PIECES, st.data())
def test_it_does_not_matter_in_which_pieces_bytes_come(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    marks = FifoDecoder()
    parts: list[bytes | LinkStart] = []
    rest = stream
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        parts += marks.feed(rest[:size])
        rest = rest[size:]
    # The fault of a mark without an end is noticed early or late: only its kind counts then.
    assert without_broken(joined(parts)) == without_broken(joined(FifoDecoder().feed(stream)))


def without_broken(parts: list[bytes | LinkStart]) -> list[bytes | LinkStart]:
    """Leave out the bytes that belong to no link."""
    kept: list[bytes | LinkStart] = []
    lost = False
    for part in parts:
        if isinstance(part, LinkStart):
            lost = not part.token
        if not lost:
            kept.append(part)
    return kept


@pytest.mark.parametrize(
    "broken",
    [b"\xff\r\n", b"\xff" + b"0A" * 16 + b"\r\n", b"\xff" + b"0a" * 15 + b"\r\n", b"\xff" + b"0" * 34, b"\xff" * 2],
)
def test_bytes_that_are_no_mark_begin_no_line(broken: bytes) -> None:
    parts = FifoDecoder().feed(broken)
    assert parts[0] == LinkStart("")
    assert A not in parts


def test_a_mark_that_was_begun_and_not_ended_gives_way_to_the_next() -> None:
    marks = FifoDecoder()
    assert marks.feed(b"\xff0a0a") == []
    assert marks.feed(bytes(B) + b"KNOCK") == [LinkStart(""), B, b"KNOCK"]


def test_a_mark_without_an_end_does_not_grow() -> None:
    marks = FifoDecoder()
    parts = [part for _ in range(40) for part in marks.feed(b"0")]
    assert parts == [b"0"] * 40
    marks.feed(b"\xff")
    parts = [part for _ in range(40) for part in marks.feed(b"0")]
    assert parts[0] == LinkStart("")
