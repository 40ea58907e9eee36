"""Reasons that have one cause are one group, whatever numbers, ids and values they name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queues.formats.reasons import MAX_REASON, NO_REASON, fingerprint

WORDS = st.text("abcdefghij klm\n.", max_size=20)
#: Values of each kind, by their placeholder.
VARYING = {
    "<number>": st.one_of(
        st.integers(0, 1 << 64).map(str), st.floats(0, 1e9).map("{:.3f}".format), st.integers(1000).map("{:,}".format)
    ),
    "<id>": st.one_of(
        st.uuids(version=4).map(str), st.uuids(version=4).map(lambda id: id.hex), st.integers(0, 1 << 64).map(hex)
    ),
    "<value>": st.one_of(
        st.text("ab 1'-").map(repr), st.text("ab 1-").map('"{}"'.format), st.text("ab 1").map("“{}”".format)
    ),
    "<address>": st.one_of(
        st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map("[{}]:80".format),
        st.integers(1, 65535).map("10.0.0.7:{}".format), st.integers(1).map("http://shop{}.example/a?b=1".format),
        st.integers(1).map("ann{}@shop.example".format),
    ),
    "<time>": st.datetimes().filter(lambda at: at.year > 999).map(str),
}  # fmt: skip


@pytest.mark.parametrize("kind", VARYING)
@given(data=st.data())
def test_reasons_that_differ_in_one_value_are_one_group(kind: str, data: st.DataObject) -> None:
    before, after = data.draw(WORDS), data.draw(WORDS)
    reasons = [f"{before} {data.draw(VARYING[kind])} {after}" for _ in range(2)]
    assert fingerprint(reasons[0]) == fingerprint(reasons[1]) == " ".join(f"{before} {kind} {after}".split())


@given(st.one_of(st.text(), st.text("'\"`“”<>@:/.-+0x1aeZT \\[]", max_size=60)))
def test_any_text_has_a_group_without_a_number(text: str) -> None:
    assert fingerprint(text)
    assert not re.search("[0-9]", fingerprint(text))


@pytest.mark.parametrize(
    ("reason", "group"),
    [
        ("card refused for order 4711", "card refused for order <number>"),
        ("order A17: HTTP 503", "order A<number>: HTTP <number>"),
        ("KeyError: 'tenant-5'", "KeyError: <value>"),
        ("can't connect to 10.0.0.7:5432, won't try again", "can't connect to <address>, won't try again"),
        ("<Job object at 0x7f3a2b>", "<Job object at <id>>"),
        ("blob 3f2a9c1b7d is gone", "blob <id> is gone"),
        ("deadbeef, decade and face are words", "deadbeef, decade and face are words"),
        ("took 1.5e+10 s, at most -3", "took <number> s, at most -<number>"),
        ("  two\n lines ", "two lines"),
        ("", NO_REASON),
        (None, NO_REASON),
    ],
)
def test_what_varies_is_replaced_and_the_rest_stays(reason: str | None, group: str) -> None:
    assert fingerprint(reason) == group


def test_only_the_beginning_of_a_long_reason_counts() -> None:
    assert fingerprint("x" * MAX_REASON + "1") == fingerprint("x" * MAX_REASON + "y")
