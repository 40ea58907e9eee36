"""A refused value is named by its place and its request, whatever else is in the frame."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.overhop.peer import framed
from wire.overhop.codec.decoder import Decoder
from wire.overhop.codec.explanation import explain
from wire.overhop.codec.msgpack_check import MAX_DEPTH, RefusedValue, check

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=40) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=40,
)
REFUSED: list[Any] = [1.5, float("nan"), 2**63, msgpack.Timestamp(1), msgpack.ExtType(5, b"x" * 5)]


@pytest.mark.parametrize("refused", REFUSED)
@given(before=VALUES, after=VALUES)
def test_the_path_and_the_request_are_found(refused: Any, before: Any, after: Any) -> None:
    payload = {"a": before, "job_payload": [before, {"x": after, "price": [1, refused]}, 2.5], "z": after}
    body: bytes = msgpack.packb({"p": payload, "rid": "r-7", "t": 14, "v": 2})
    with pytest.raises(RefusedValue) as caught:
        check(body)
    assert explain(body, caught.value.at) == ("p.job_payload[1].price[1]", "r-7")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_can_be_looked_at(data: bytes, at: int) -> None:
    explain(data, at)


def test_hostile_depths_and_claims_cost_nothing() -> None:
    for data in (b"\x91" * 1_000_000, b"\x92" + b"\xdd\xff\xff\xff\xff" * 10, b"\xc9\xff\xff\xff\xff", b"\xdb"):
        assert explain(data, MAX_DEPTH + 2) == ("", "")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"jid": "x", "result": {"at": 1.5}}, "floats are not allowed at p.result.at"),
        ({"q": "x", "job_payload": [1, 2**63]}, "an integer is over 2**63 - 1 at p.job_payload[1]"),
        ({"q": "x", "job_payload": msgpack.Timestamp(1)}, "extension values are not allowed at p.job_payload"),
    ],
)
def test_a_decoder_says_where(payload: dict[str, Any], words: str) -> None:
    decoder = Decoder()
    assert decoder.feed(framed(msgpack.packb({"v": 2, "t": 20, "rid": "a", "p": payload}))) == []
    assert (decoder.error, decoder.rid) == (words, "a")
