"""System checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from queues import checks


def ids(messages: Iterable[Any]) -> list[str]:
    return [message.id for message in messages if message.id.startswith("fivewire.")]


class OtherDatabase:
    """A connection to a server with these answers."""

    def __init__(self, vendor: str = "postgresql", row: tuple[Any, ...] = ()) -> None:
        self.vendor = vendor
        self.settings_dict = {"HOST": "one"}
        self.row = row

    @contextmanager
    def cursor(self) -> Iterator[OtherDatabase]:
        yield self

    def execute(self, sql: str, parameters: list[list[str]]) -> None:
        [self.names] = parameters

    def fetchall(self) -> list[tuple[str, str]]:
        return list(zip(self.names, self.row, strict=True))


def connected_to(monkeypatch: pytest.MonkeyPatch, database: OtherDatabase) -> None:
    monkeypatch.setattr(checks, "connections", {"default": database})


def test_nothing_is_wrong_with_the_settings_of_a_first_look() -> None:
    assert ids(run_checks()) == []


def test_another_database_than_postgresql_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    connected_to(monkeypatch, OtherDatabase("sqlite"))
    assert ids(run_checks()) == ["fivewire.E001"]


@pytest.mark.django_db
def test_a_server_is_asked_when_its_database_is_to_be_checked() -> None:
    with connection.cursor() as cursor:
        cursor.execute("show fsync")
        safe = cursor.fetchone() == ("on",)
    assert ids(run_checks(databases=["default"])) == ([] if safe else ["fivewire.E003"])


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("180000", "on", "on"), []),
        (("130009", "on", "on"), ["fivewire.E002"]),
        (("140000", "off", "on"), ["fivewire.E003"]),
        (("140000", "off", "off"), ["fivewire.E003", "fivewire.E003"]),
    ],
)
def test_an_old_or_unsafe_server_is_an_error(
    monkeypatch: pytest.MonkeyPatch, row: tuple[str, ...], found: list[str]
) -> None:
    connected_to(monkeypatch, OtherDatabase(row=row))
    assert ids(checks.check_database_server(None, ["default"])) == found
    assert list(checks.check_database_server(None, None)) == []


@pytest.mark.django_db
def test_tables_of_an_early_development_version_are_refused_in_words() -> None:
    recorder = MigrationRecorder(connection)
    first, last = checks.DEVELOPMENT
    recorder.record_applied("queues", first)
    [found] = checks.check_tables(None, ["default"])
    assert (found.id, last in str(found.hint)) == ("fivewire.E006", True)
    recorder.record_applied("queues", last)
    assert list(checks.check_tables(None, ["default"])) == []


def test_a_short_secret_is_warned_of(settings: Any) -> None:
    settings.SECRET_KEY = "x" * 31
    assert ids(run_checks()) == ["fivewire.W001"]


def test_a_project_is_warned_whose_connections_would_stay_on_a_primary_that_was_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "one,two")
    assert ids(run_checks()) == ["fivewire.W005"]
