"""Parameters of statements."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from queues.engine.message import Content
from queues.engine.statements import array


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "{}"),
        ([1, -2, 2**63 - 1, -(2**63)], "{1,-2,9223372036854775807,-9223372036854775808}"),
        (range(3), "{0,1,2}"),
        ({7: None}, "{7}"),
        (iter([0.5, 0]), "{0.5,0}"),
        (["t", "f"], "{t,f}"),
        (["null", 3], "{null,3}"),
        ([Content.JSON], "{2}"),
    ],
)
def test_an_array_is_its_values_as_postgresql_reads_them(values: Iterable[object], text: str) -> None:
    assert array(values) == text
