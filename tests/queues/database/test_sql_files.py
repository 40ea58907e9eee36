"""Named statements: what several have in common, and texts as arrays."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.db import connection
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from queues.database.sql_files import load_statement, statement_files, text_array, titled_statements
from queues.engine.statements import statement
from tests.queues.engine.named import STATEMENTS


def test_statements_are_found_in_folders_by_concern_and_fragments_are_none(tmp_path: Path) -> None:
    for folder in ("claim", "parts"):
        (tmp_path / folder).mkdir()
    for file in ("here.sql", "claim/take.sql", "parts/b.sql"):
        (tmp_path / file).write_text("select 1\n")
    assert statement_files(tmp_path) == {"here": tmp_path / "here.sql", "take": tmp_path / "claim" / "take.sql"}


def test_a_statement_has_the_text_of_what_it_includes_wherever_that_lies(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "take.sql").write_text("-- Takes.\nwith a as (\n    select 1\n),\n\\ir parts/b.sql\nselect 2\n")
    (tmp_path / "parts" / "b.sql").write_text("-- Part.\n\\ir c.sql\n")
    (tmp_path / "parts" / "c.sql").write_text("b as (select 3)\n")
    assert load_statement(tmp_path / "take.sql") == b"with a as (\nselect 1\n),\nb as (select 3)\nselect 2"


def test_statements_of_a_file_have_the_comments_above_them_as_titles(tmp_path: Path) -> None:
    (tmp_path / "fill.sql").write_text("-- Fills.\n\n-- first\nselect 1;\nselect 2\n\n-- second\nselect 3\n")
    assert titled_statements(tmp_path / "fill.sql") == {"first": "select 1;\nselect 2", "second": "select 3"}


def test_psycopg_parses_no_statement_of_the_engine_at_each_use() -> None:
    rare = {"publish_routed"}  # of Django and Celery, a message each
    lengths = {name: len(statement(name)) for name in STATEMENTS if name not in rare}
    assert {name: length for name, length in lengths.items() if length > MAX_CACHED_STATEMENT_LENGTH} == {}


@pytest.mark.django_db
def test_texts_come_out_of_an_array_as_they_went_in() -> None:
    texts = ["", "plain", 'a "quote"', "back\\slash", "{a,b}", "null", " ", "\n", "é\u2028😀"]
    with connection.cursor() as cursor:
        for given in (texts, texts[:1], []):
            cursor.execute("select %s::text[]", [text_array(given)])
            assert cursor.fetchone() == (given,)
