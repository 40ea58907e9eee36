"""Common behaviour of all commands when something is missing."""

from __future__ import annotations

from argparse import ArgumentTypeError
from typing import Any

import pytest
from django.db import OperationalError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.errors import UndefinedTable

from queues.management.shell import moment
from tests.queues.shell import Shell

pytestmark = pytest.mark.django_db(transaction=True)

COMMANDS = (
    "queue list", "route list", "apikey list", "periodic list", "definitions export -", "connections", "etl list",
    "audit show", "peer disconnect bob", "top --count 1",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OperationalError("no route to host"), "The database is away: no route to host"),
        (ProgrammingError("no table"), "The database is not up to date; run manage.py migrate."),
    ],
    ids=["away", "empty"],
)
def test_a_database_that_is_away_or_empty_is_said_in_one_line(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, command: str, error: Exception, said: str
) -> None:
    error.__cause__ = UndefinedTable() if isinstance(error, ProgrammingError) else None

    def fail(*args: Any, **options: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(BaseDatabaseWrapper, "cursor", fail)
        outcome = shell(*command.split())
    assert (outcome.status, outcome.err) == (1, f"CommandError: {said}\n")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-11-22", "2026-11-22T00:00:00+00:00"), ("2026-11-22T08:30", "2026-11-22T08:30:00+00:00"),
        ("2026-11-22T08:30:00+01:00", "2026-11-22T08:30:00+01:00"), ("20261122", "2026-11-22T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_a_time_is_a_day_or_a_moment_and_utc_unless_it_says_otherwise(text: str, at: str) -> None:
    assert moment(text).isoformat() == at


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-11-22T25:00", ""])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"'{text}' is no time"):
        moment(text)
