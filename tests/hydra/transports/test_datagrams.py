"""Lines in datagrams."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hydra.transports.datagrams import MAX_JOINED, begins_with_message, packed, whole_lines

LINES = st.lists(st.integers(1, 2048).map(lambda size: b"x" * (size - 1) + b"\r\n"), min_size=1)


@given(LINES)
def test_datagrams_hold_whole_lines_and_not_more_than_fit(lines: list[bytes]) -> None:
    datagrams = [*packed(b"".join(lines))]
    assert b"".join(datagrams) == b"".join(lines)
    for datagram in datagrams:
        assert datagram.endswith(b"\n")
        assert len(datagram) <= MAX_JOINED or datagram.count(b"\n") == 1
    for one, next_one in itertools.pairwise(datagrams):
        first_line = next_one.partition(b"\n")[0]
        assert len(one) + len(first_line) + 1 > MAX_JOINED


def test_a_datagram_is_filled_to_the_last_byte() -> None:
    line, long = b"x" * (MAX_JOINED // 2 - 1) + b"\n", b"x" * (MAX_JOINED - 2) + b"\n"
    assert [*packed(line + line + b"x\n" + long)] == [line + line, b"x\n", long]


def test_several_lines_share_a_datagram_and_none_have_none() -> None:
    assert [*packed(b"one\r\ntwo\r\n")] == [b"one\r\ntwo\r\n"]
    assert [*packed(b"")] == []


def test_the_last_line_of_a_datagram_ends_with_it() -> None:
    assert whole_lines(b"KNOCK 1") == b"KNOCK 1\n"
    assert whole_lines(b"KNOCK 1\r\n") == b"KNOCK 1\r\n"


@pytest.mark.parametrize(
    ("datagram", "means_something"),
    [
        (b"KNOCK 12345 probe\r\n", True),
        (b"KNOCK 12345", True),
        (b"@voter=5f3c09a1b2c3d4e5 MEET 1 2\n", True),
        (b"hello\nPING 1 a 7\n", False),
        (b"", False),
        (b"\n" * 60000, False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"KNOCK\r\n", False),
        (b"\xff\xfe\r\n", False),
        (b"\nKNOCK 12345\n", False),
    ],
)
def test_noise_means_nothing(datagram: bytes, means_something: bool) -> None:
    assert begins_with_message(datagram) == means_something
