"""JSON as Go reads it, and where an object's values stand in its text."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec.parsing import MalformedJson, loads, members
from tests.peers.strategies import spelled, texts, values


@given(spelled())
def test_json_is_read_as_by_the_standard_library(text: bytes) -> None:
    assert loads(text) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (rb'"\ud83d\ude00"', "😀"),
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\udE00\uD83d"', "\ufffd\ufffd"),
        (rb'"a\ud83d\u0041"', "a\ufffdA"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (rb'"\\ud83d\ud83d"', "\\ud83d\ufffd"),
        (rb'{"\ud83d":["\udfff"]}', {"\ufffd": ["\ufffd"]}),
    ],
)
def test_half_a_surrogate_pair_is_read_as_the_replacement_character(text: bytes, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551615", 2**64 - 1),
        (b"123456789012345678901234567890", 1.2345678901234568e29),
        (b"1e400", math.inf),
        (b"[-1e400, 12345678901234567890123, 7]", [-math.inf, 1.2345678901234568e22, 7]),
        (b"1" * 5000, math.inf),
    ],
)
def test_numbers_of_any_size_are_read(text: bytes, value: Any) -> None:
    assert loads(text) == value


def test_the_last_of_equal_keys_counts() -> None:
    assert loads(b'{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}
    assert members(b'{"a":1,"b":2,"\\u0061":[3]}') == {"a": b"[3]", "b": b"2"}


@pytest.mark.parametrize("text", [b"[" * 1024 + b"]" * 1024, b'{"a":' * 499 + b"[1e400]" + b"}" * 499])
def test_deep_nesting_is_read(text: bytes) -> None:
    assert isinstance(loads(text), list | dict)


def test_many_brackets_that_are_not_in_each_other_are_read() -> None:
    assert loads(rb'"\ud83d' + b"[" * 600 + b'"') == "\ufffd" + "[" * 600
    assert loads(b"[1e400" + b",[{}]" * 600 + b"]") == [math.inf] + [[{}]] * 600


@pytest.mark.parametrize(
    "text",
    [
        b"", b" ", b"NaN", b"Infinity", b"[-Infinity]", b"\xef\xbb\xbf{}", b"01", b"1.", b"+1", b"{'a':1}", b"[1,]",
        b"{} {}", b'"\n"', b'"\xff"', rb'"\ud83d', rb'"\x41"', b'"\\', b"\x0c1", b"[" * 100_000,
        b"[" * 5000 + b"]" * 5000, b"[" * 1025 + b"]" * 1025, b"[" * 501 + b"1e400" + b"]" * 501,
        rb'{"a":' * 501 + rb'"\ud83d"' + b"}" * 501,
    ],
)  # fmt: skip
def test_invalid_json_is_refused(text: bytes) -> None:
    with pytest.raises(MalformedJson):
        loads(text)


@given(st.binary(max_size=40) | st.text(st.sampled_from('{}[]",:\\ud8e01-.eE tn'), max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    for read in (loads, members):
        try:
            read(text)
        except MalformedJson:
            continue


@given(value=st.dictionaries(texts, values, max_size=5), ascii=st.booleans(), indent=st.sampled_from([None, 1, "\r\n"]))
def test_the_members_of_an_object_are_the_texts_of_its_values(value: Any, ascii: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    found = members(text.encode())
    assert {key: json.loads(each) for key, each in found.items()} == value
    for each in found.values():
        assert each == each.strip()
        assert each in text.encode()


def test_the_texts_stay_as_they_are() -> None:
    found = members(b' {"a" : "\\u0041" ,\n"b":[1 , {"c":"]}"}],"c":1.0,"d":{},"e":-1E5,"f":null} \n')
    assert found == {
        "a": b'"\\u0041"', "b": b'[1 , {"c":"]}"}]', "c": b"1.0", "d": b"{}", "e": b"-1E5", "f": b"null"
    }  # fmt: skip


@pytest.mark.parametrize("text", [b"{}", b" { } ", b"{\n}\n"])
def test_an_empty_object_has_no_members(text: bytes) -> None:
    assert members(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"1", b'"{}"', b"null", b"{", b"}", b'{"a"}', b'{"a":}', b'{"a":1', b'{"a":1,}', b"{,}",
        b'{"a":1}x', b'{"a":1}{}',
        b'{a:1}', b'{"a":1 "b":2}', b'{"a":[1}', b'{"a":[1', b'{"a":"x}', b'{"\\x":1}', b'{"\n":1}', b"{}{}", b'{1:1}',
    ],
)  # fmt: skip
def test_values_other_than_objects_have_no_members(text: bytes) -> None:
    with pytest.raises(MalformedJson):
        members(text)


def test_a_value_nested_as_deep_as_it_likes_has_a_text() -> None:
    deep = b"[" * 300_000 + b"]" * 300_000
    assert members(b'{"a":' + deep + b',"b":1}') == {"a": deep, "b": b"1"}
