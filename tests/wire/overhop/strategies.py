"""Values that Overhop can carry, and bytes that look like MessagePack."""

from typing import Any

from hypothesis import strategies as st

INT64 = st.integers(-(2**63), 2**63 - 1)
ATOMS = st.none() | st.booleans() | INT64 | st.text(max_size=40) | st.binary(max_size=40)
VALUES: st.SearchStrategy[Any] = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=18) | st.dictionaries(st.text(max_size=8), inner, max_size=18),
    max_leaves=30,
)
PAYLOADS: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(max_size=8), VALUES, max_size=5)
RIDS = st.text(min_size=1, max_size=40)

# Bytes of MessagePack that is often nearly right: heads of every kind, and what may follow them.
PIECES = st.one_of(
    st.sampled_from([bytes((head,)) for head in range(256)]),
    st.sampled_from(["80", "81", "90", "91", "a0", "a161", "c0", "01", "cb3ff0000000000000", "ca3f800000"]).map(
        bytes.fromhex
    ),
    st.sampled_from(["c403", "c40161", "d40100", "c70101ff", "cfffffffffffffffff", "cf7fffffffffffffff"]).map(
        bytes.fromhex
    ),
    st.sampled_from(["dc0001", "dd00000001", "de0001", "df00000001", "ddffffffff", "d901e9", "a2c3a9"]).map(
        bytes.fromhex
    ),
)
NEARLY = st.lists(PIECES, max_size=25).map(b"".join) | st.binary(max_size=40)
