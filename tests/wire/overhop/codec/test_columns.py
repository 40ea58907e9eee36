"""Texts that are held as columns are those that they were made of, and frames are their parts one behind the other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.overhop.codec.columns import AlikeTexts, FramePart, write_frames

COUNTS = st.integers(1, 20)


@st.composite
def alike(draw: st.DrawFn, count: int) -> tuple[AlikeTexts, list[bytes]]:
    """Texts of one length that differ in some places, as columns and as a list."""
    size = draw(st.integers(1, 12))
    places = sorted(draw(st.sets(st.integers(0, size - 1))))
    common = bytearray(draw(st.binary(min_size=size, max_size=size)))
    texts = []
    for _ in range(count):
        for place in places:
            common[place] = draw(st.integers(0, 255))
        texts.append(bytes(common))
    before, behind = draw(st.binary(max_size=3)), draw(st.binary(max_size=3))
    frames = b"".join(before + text + behind for text in texts)
    return AlikeTexts.read(frames, len(before), size, len(before) + size + len(behind), places), texts


@given(st.data(), COUNTS)
def test_they_are_a_sequence_of_texts(data: st.DataObject, count: int) -> None:
    columns, texts = data.draw(alike(count))
    assert len(columns) == count
    assert [*columns] == texts
    assert columns == texts
    assert [columns[n] for n in range(-count, count)] == texts * 2
    assert columns.isascii() == b"".join(texts).isascii()
    start, stop = data.draw(st.integers(-count - 1, count + 1)), data.draw(st.integers(-count - 1, count + 1))
    part = columns[start:stop]
    assert (len(part), [*part]) == (len(texts[start:stop]), texts[start:stop])
    for at in (count, -count - 1):
        with pytest.raises(IndexError):
            columns[at]


@given(st.data(), COUNTS)
def test_they_are_equal_if_their_texts_are(data: st.DataObject, count: int) -> None:
    columns, texts = data.draw(alike(count))
    size = len(texts[0])
    for places in ([], [0], range(size), data.draw(st.sets(st.integers(0, size - 1)))):
        other = AlikeTexts.read(b"".join(texts), 0, size, size, places)
        assert (columns == other) == (other == columns) == ([*other] == texts)
    changed = [*texts]
    changed[data.draw(st.integers(0, count - 1))] = bytes(byte ^ 1 for byte in texts[0])
    assert (columns == changed) == (texts == changed)
    assert columns != [*texts, texts[0]]
    assert columns != AlikeTexts.read(b"".join([*texts, texts[0]]), 0, size, size, range(size))
    assert columns != 5


@st.composite
def parts(draw: st.DrawFn) -> tuple[list[FramePart], list[Sequence[bytes]]]:
    """Parts of frames, and the texts that each is in them."""
    count, given, texts = draw(COUNTS), list[FramePart](), list[Sequence[bytes]]()
    for kind in [*draw(st.lists(st.sampled_from(["same", "columns", "list", "lengths"]), max_size=6)), "same"]:
        if kind == "same":
            common = draw(st.binary(max_size=5))
            given.append(common)
            texts.append([common] * count)
        elif kind == "columns":
            columns, its = draw(alike(count))
            given.append(columns)
            texts.append(its)
        else:
            size = None if kind == "lengths" else draw(st.integers(0, 5))
            some = st.binary(min_size=size or 0, max_size=5 if size is None else size)
            its = draw(st.lists(some, min_size=count, max_size=count))
            given.append(its)
            texts.append(its)
    return given, texts


@given(parts())
def test_frames_are_their_parts(made: tuple[list[FramePart], list[Sequence[bytes]]]) -> None:
    given, texts = made
    assert write_frames(given, len(texts[0])) == b"".join(map(b"".join, zip(*texts, strict=True)))
