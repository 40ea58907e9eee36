"""JSON strings as Go's encoder writes them, against a writer of its own that does it character by character."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from queues.formats.canonical import is_plain, json_string

NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}

text_of_any_kind = st.text(st.characters(exclude_categories=()) | st.sampled_from('"\\<>&\u2028\u2029\x00\x1f\x7f\n'))


def written(text: str) -> str:
    """One character after the other, as the specification of the encoder says it."""
    out = []
    for character in text:
        code = ord(character)
        if character in NAMED:
            out.append(NAMED[character])
        elif code < 0x20 or code in (0x3C, 0x3E, 0x26, 0x2028, 0x2029):
            out.append("\\u" + hex(code)[2:].rjust(4, "0"))
        elif 0xD800 <= code < 0xE000:
            out.append("\ufffd")
        else:
            out.append(character)
    return '"' + "".join(out) + '"'


@given(text_of_any_kind)
@example("plain")
@example("caf\xe9 \U0001f600")
@example("\ud800")
def test_a_string_is_written_character_by_character_as_specified(text: str) -> None:
    assert json_string(text) == written(text)


@given(st.text())
def test_written_values_are_read_back(text: str) -> None:
    assert json.loads(json_string(text)) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<b>&", r'"\u003cb\u003e\u0026"'),
        ("\u2028\u2029", r'"\u2028\u2029"'),
        ("\x00\x1f\x7f", '"\\u0000\\u001f\x7f"'),
        ("a/b", '"a/b"'),
        ("\b\f\n\r\t", r'"\b\f\n\r\t"'),
    ],
)
def test_the_characters_that_go_escapes(text: str, expected: str) -> None:
    assert json_string(text) == expected


@given(st.lists(text_of_any_kind))
def test_strings_that_are_plain_together_are_each_written_as_they_are(texts: list[str]) -> None:
    assert is_plain("".join(texts)) == all(json_string(text) == f'"{text}"' for text in texts)
