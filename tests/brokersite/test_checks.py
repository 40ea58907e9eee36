"""System checks of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.checks import run_checks

from tests.queues.test_checks import ids


def test_a_generated_secret_is_warned_of_before_deployment_where_the_database_may_be_shared(
    settings: Any, tmp_path: Path
) -> None:
    settings.DATA_DIR = tmp_path
    (tmp_path / "secret_key").write_text(settings.SECRET_KEY + "\n")
    settings.DATABASE_URL = None
    assert ids(run_checks(include_deployment_checks=True)) == []
    settings.DATABASE_URL = "postgresql://localhost/one"
    assert ids(run_checks()) == []
    assert ids(run_checks(include_deployment_checks=True)) == ["fivewire.W002"]
    (tmp_path / "secret_key").write_text("another")
    assert ids(run_checks(include_deployment_checks=True)) == []


def test_debug_pages_for_other_hosts_are_warned_of(settings: Any) -> None:
    settings.DEBUG = True
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
    assert ids(run_checks()) == []
    settings.ALLOWED_HOSTS = ["localhost", "broker.example"]
    assert ids(run_checks()) == ["fivewire.W003"]
