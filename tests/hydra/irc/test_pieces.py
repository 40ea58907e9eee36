"""Hydra's lines in private messages and out of them again."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hydra.irc.pieces import (
    MAX_LINE,
    MAX_TEXT,
    UNKNOWN,
    Piece,
    PieceKind,
    PiecePacker,
    PieceUnpacker,
    cut,
    escape,
    parse_piece,
    unescape,
)

SESSION = "5f3c09a1"
OTHER = "90b1c2d3"


def is_line(data: bytes) -> bool:
    return b"\n" not in data and not data.endswith(b"\r")


line_bytes = st.binary(min_size=1, max_size=2048).filter(is_line)
line_texts = st.text(min_size=1, max_size=700).map(str.encode).filter(is_line)


def texts_of(packer: PiecePacker) -> list[str]:
    texts = []
    while (text := packer.take()) is not None:
        texts.append(text)
    return texts


def pieces_of(*lines: bytes) -> list[Piece]:
    packer = PiecePacker(SESSION)
    for line in lines:
        packer.put(line + b"\r\n")
    return [piece for piece in map(parse_piece, texts_of(packer)) if piece is not None]


def taken(pieces: list[Piece]) -> bytes:
    unpacker = PieceUnpacker()
    return b"".join(unpacker.take(piece) for piece in pieces)


@given(st.lists(line_bytes | line_texts, max_size=8))
@example([b"PING 1 2 3", b"  two  spaces  ", b"\x01CTCP\x01", b":colon", b"%0A", b"x" * 2048, "é".encode() * 1024])
@example([b" " * 2048])
def test_any_pieces_are_joined_to_the_original(lines: list[bytes]) -> None:
    assert taken(pieces_of(*lines)) == b"".join(line + b"\r\n" for line in lines)


@given(st.lists(line_bytes | line_texts, min_size=1, max_size=5))
def test_each_message_is_text_that_every_server_lets_through(lines: list[bytes]) -> None:
    packer = PiecePacker(SESSION)
    for line in lines:
        packer.put(line + b"\n")
    for text in texts_of(packer):
        assert len(text.encode()) <= MAX_TEXT
        assert not text.endswith(" ")
        assert not any(ord(character) < 32 or 0x7F <= ord(character) <= 0x9F for character in text)


def test_short_lines_share_a_message_and_long_ones_are_cut() -> None:
    first, *rest = pieces_of(b"PING 1 1.1.k 7", b"DROP 12", b"x" * 700)
    assert (first.kind, first.text) == (PieceKind.WHOLE, "PING 1 1.1.k 7%0ADROP 12")
    assert [piece.kind for piece in rest] == [PieceKind.FIRST, PieceKind.MIDDLE, PieceKind.LAST]
    assert [piece.number for piece in (first, *rest)] == [0, 1, 2, 3]


def test_a_message_looks_like_this() -> None:
    packer = PiecePacker(OTHER)
    packer.put(b"KNOCK 12345 probe\r\n")
    assert packer.take() == "HY1 90b1c2d3 0 0 . KNOCK 12345 probe"
    packer.to = SESSION
    packer.put(b"MEET 1 2\r\nWELCOME 1 \r\n")
    assert packer.take() == "HY1 90b1c2d3 5f3c09a1 1 . MEET 1 2%0AWELCOME 1%20"
    assert packer.bye("enough\n") == "HY1 90b1c2d3 5f3c09a1 2 ! enough%0A"
    assert packer.waiting == 0


@pytest.mark.parametrize("lost", range(7))
def test_a_piece_that_is_lost_costs_its_line_and_no_other(lost: int) -> None:
    lines = [b"first", b"a" * 700, b"b" * 600, b"last" * 70]
    pieces = pieces_of(*lines)
    assert len(pieces) == 7
    owner = [0, 1, 1, 1, 2, 2, 3][lost]
    rest = [piece for piece in pieces if piece.number != lost]
    assert taken(rest) == b"".join(line + b"\r\n" for index, line in enumerate(lines) if index != owner)


@pytest.mark.parametrize("doubled", range(7))
def test_a_piece_that_comes_twice_changes_nothing(doubled: int) -> None:
    lines = [b"first", b"a" * 700, b"b" * 600, b"last" * 70]
    pieces = pieces_of(*lines)
    pieces.insert(doubled + 1, pieces[doubled])
    assert taken(pieces) == b"".join(line + b"\r\n" for line in lines)


def test_a_last_piece_without_a_first_is_no_line() -> None:
    assert (
        taken([Piece(SESSION, UNKNOWN, 0, PieceKind.LAST, "glued"), Piece(SESSION, UNKNOWN, 1, PieceKind.MIDDLE, "x")])
        == b""
    )


def test_a_line_that_never_ends_is_forgotten() -> None:
    endless = [Piece(SESSION, UNKNOWN, 0, PieceKind.FIRST, "x" * 300)]
    endless += [Piece(SESSION, UNKNOWN, number, PieceKind.MIDDLE, "x" * 300) for number in range(1, 14)]
    assert 300 * len(endless) > MAX_LINE
    end = Piece(SESSION, UNKNOWN, 14, PieceKind.LAST, "end")
    after = Piece(SESSION, UNKNOWN, 15, PieceKind.WHOLE, "after")
    assert taken([*endless, end, after]) == b"after\r\n"
    unpacker = PieceUnpacker()
    for piece in endless:
        unpacker.take(piece)
    assert unpacker._partial is None


@pytest.mark.parametrize("damaged", ["50%", "%zz", "%0", "%a0x", "%%"])
def test_a_damaged_piece_loses_its_line(damaged: str) -> None:
    with pytest.raises(ValueError, match="percent"):
        unescape(damaged)
    pieces = [
        Piece(SESSION, UNKNOWN, 0, PieceKind.FIRST, "one "), Piece(SESSION, UNKNOWN, 1, PieceKind.MIDDLE, damaged),
        Piece(SESSION, UNKNOWN, 2, PieceKind.LAST, "two"), Piece(SESSION, UNKNOWN, 3, PieceKind.WHOLE, "three"),
    ]  # fmt: skip
    assert taken(pieces) == b"three\r\n"


@pytest.mark.parametrize(
    "text",
    [
        "", "hello", "HY1", "HY1 5f3c09a1 0 0 .", "HY2 5f3c09a1 0 0 . x", "HY1 5f3c09a1 0 -1 . x",
        "HY1 5F3C09A1 0 0 . x",
        "HY1 5f3c09a 0 0 . x", "HY1 5f3c09a1 0 0 ? x", " HY1 5f3c09a1 0 0 . x", "HY1  5f3c09a1 0 0 . x",
        f"HY1 5f3c09a1 0 {10**15} . x", "HY1 5f3c09a1 0 ٣ . x", "\x01HY1 5f3c09a1 0 0 . x\x01",
    ],
)  # fmt: skip
def test_lines_of_users_are_not_taken_for_pieces(text: str) -> None:
    assert parse_piece(text) is None


@given(st.text())
def test_any_text_can_be_read_or_not(text: str) -> None:
    piece = parse_piece(f"HY1 {SESSION} {OTHER} 3 . {text}")
    assert piece is not None
    lines = PieceUnpacker().take(piece)
    assert lines == b"" or lines.endswith(b"\r\n")


@given(st.binary(max_size=300), st.integers(min_value=4, max_value=50))
def test_a_cut_is_never_within_a_character_or_an_escaped_byte(data: bytes, size: int) -> None:
    pieces = list(cut(escape(data), size))
    assert all(len(piece.encode()) <= size for piece in pieces)
    assert b"".join(map(unescape, pieces)) == data
