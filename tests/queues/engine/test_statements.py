"""Parameters of statements."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
from psycopg.adapt import PyFormat

from queues.database.sql_files import array
from queues.engine import statements
from queues.engine.message import Content
from queues.engine.statements import numbered
from tests.queues.engine.named import STATEMENTS


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
        ([1, None], "{1,null}"),
        ([True, False], "{true,false}"),
    ],
)
def test_an_array_is_its_values_as_postgresql_reads_them(values: Iterable[object], text: str) -> None:
    assert array(values) == text


def test_every_statement_has_numbers_for_its_parameters_from_the_first_to_the_last() -> None:
    for name in STATEMENTS:
        text, names, formats = numbered(name)
        assert {int(number) for number in re.findall(rb"\$(\d+)", text)} == set(range(1, len(names) + 1)), name
        assert len(names) == len(set(names)) == len(formats), name
        assert b"%(" not in text, name


def test_a_parameter_that_comes_again_has_its_number_and_a_percent_sign_stays_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = {
        "again": b"select %(b)s, %(a)b, %(b)s where 'a%%' like %(c)t",
        "torn": b"select %(a)s, %(a)b",
    }
    monkeypatch.setattr(statements, "statement", texts.__getitem__)
    assert numbered("again") == (
        b"select $1, $2, $1 where 'a%' like $3",
        ("b", "a", "c"),
        (PyFormat.AUTO, PyFormat.BINARY, PyFormat.TEXT),
    )
    with pytest.raises(ValueError, match="two formats"):
        numbered("torn")
