"""Values at and past every limit, for each protocol's strategies: texts, bytes, integers, numbers of repetitions."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

#: Code points that databases, JSON and UTF-8 treat each in its own way: NUL, controls, separators, the last ones.
ODD = "\0\x01\x1b\x7f\x85\xa0\xad\u0300\u200f\u2028\ufeff\ufffe\uffff\U0010ffff😀é/%*?[]{}'\"\\:;,.$_- \n\r\t"

#: Lengths around every limit on text and bytes that a protocol has.
LENGTHS = (0, 1, 2, 63, 64, 65, 127, 128, 254, 255, 256, 1000, 2000, 2001, 8000, 65_534, 65_535, 65_536)

#: Integers around every limit of a field, a column or a C type.
INTEGERS = tuple(
    sorted({sign * 2**bits + step for bits in (0, 7, 8, 15, 16, 31, 32, 53, 63, 64) for step in (-1, 0, 1)
            for sign in (1, -1)})
)  # fmt: skip

#: Bytes that are no UTF-8: a surrogate, an overlong NUL, a cut character, a byte that never occurs.
NOT_UTF8 = (b"\xed\xa0\x80", b"\xc0\x80", b"\xe2\x82", b"\xff", b"\xf4\x90\x80\x80")


def texts(longest: int = 65_535) -> st.SearchStrategy[str]:
    """Texts that UTF-8 can carry, up to `longest` characters."""
    lengths = st.sampled_from([length for length in LENGTHS if length <= longest])
    repeated = st.builds(lambda one, length: one * length, st.sampled_from(ODD + "ax"), lengths)
    return repeated | st.text(max_size=20) | st.text(st.sampled_from(ODD), max_size=20)


def octets(longest: int = 65_535) -> st.SearchStrategy[bytes]:
    """Bytes that may be UTF-8 and may not, about as long as `longest`."""
    encoded = texts(longest).map(lambda text: text.encode()[:longest])
    return encoded | st.sampled_from(NOT_UTF8) | st.binary(max_size=40)


def integers(least: int = -(2**63), most: int = 2**63 - 1) -> st.SearchStrategy[int]:
    """Integers near limits, within bounds."""
    return st.sampled_from([value for value in INTEGERS if least <= value <= most]) | st.integers(least, most)


#: Repetitions of the same input in a row.
TIMES = st.sampled_from((1, 1, 1, 2, 50, 2000))

#: Texts that Python has and UTF-8, JSON columns or PostgreSQL have not.
UNSTORABLE = ("\0", "a\0b", "name-\udcff", "\ud83d", "\udc00\ud800", "\\\0", "\ud83d\ude00")
#: Numbers that no column has, or none of the usual size.
NUMBERS = (math.nan, math.inf, -math.inf, -0.0, 5e-324, 1.8e308 / 1.0001, 1e300, 10**400, True)


def any_text(longest: int = 65_536) -> st.SearchStrategy[str]:
    """Any text of Python's."""
    return texts(longest) | st.sampled_from(UNSTORABLE) | st.text(st.characters(), max_size=20)


def any_value(longest: int = 65_536) -> st.SearchStrategy[Any]:
    """Any value that a program may give: texts, bytes, numbers, and lists and dicts of them."""
    plain = st.one_of(
        any_text(longest), octets(longest), integers(), st.sampled_from(NUMBERS), st.floats(), st.none(), st.booleans()
    )
    names = any_text(64)
    return plain | st.lists(plain, max_size=3) | st.dictionaries(names, plain | st.lists(plain, max_size=2), max_size=3)
