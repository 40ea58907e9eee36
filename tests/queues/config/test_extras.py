"""The optional parts of the distribution."""

from __future__ import annotations

import tomllib

import pytest
from django.core.management import CommandError, call_command

from brokersite.environment import CHECKOUT
from queues.config import extras

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]


def test_every_extra_but_all_and_dev_is_known_by_a_package() -> None:
    assert set(PROJECT["optional-dependencies"]) - {"all", "dev"} == set(extras.PACKAGES)


def test_dev_brings_every_extra() -> None:
    named = PROJECT["optional-dependencies"]["all"][0]
    assert named == f"fivewire[{','.join(sorted(extras.PACKAGES))}]"
    assert "fivewire[all]" in PROJECT["optional-dependencies"]["dev"]


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [extras.problem(extra) for extra in extras.PACKAGES] == [None] * len(extras.PACKAGES)
    monkeypatch.setitem(extras.PACKAGES, "etl", "no_such_package")
    assert extras.problem("etl") == "The package no_such_package is not installed: pip install 'fivewire[etl]'."


def test_a_module_that_cannot_be_imported_is_traced_to_its_extra() -> None:
    assert extras.bringing("pyspark.sql") == "etl"
    assert extras.bringing("pyspark_other") is None


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("celery", "bench celery"),
        ("embedded", "torture"),
        ("etl", "bench etl"),
        ("irc", "runhydra --irc 127.0.0.1:6667 --nick one"),
        ("mcp", "peermcp --token dev-key --name model"),
        ("tasks", "runtasks"),
    ],
)
def test_a_command_without_its_extra_says_so_and_does_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], extra: str, command: str
) -> None:
    monkeypatch.setitem(extras.PACKAGES, extra, "no_such_package")
    with pytest.raises(CommandError, match=r"^The package no_such_package is not installed: pip install "):
        call_command(*command.split())
    assert capfd.readouterr().out == ""
