"""JSON for Hypothesis: values, and texts of them spelled in all the ways that JSON allows."""

import json
from typing import Any

from hypothesis import strategies as st

texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.text(
    st.sampled_from('<>&"\\/\b\f\n\r\t\0\x7f\u2028\u2029é😀')
)
scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=12
)


@st.composite
def spelled(draw: st.DrawFn) -> bytes:
    """A JSON text: with or without whitespace, with characters as they are or escaped."""
    value = draw(values)
    indent = draw(st.sampled_from([None, "\t", " \r"]))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=indent)
    return text.encode()
