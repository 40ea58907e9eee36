"""System checks of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from brokersite import checks
from tests.queues.test_checks import ids
from tests.wire.net.test_tls import Authority


def kept(directory: Path, secret: str) -> None:
    """Keep a secret as the site does: for its owner's eyes only."""
    path = directory / "secret_key"
    path.touch(0o600)
    path.write_text(secret)


def before_deployment(settings: Any, **changed: Any) -> list[str]:
    """What a well configured site is warned of with some settings changed."""
    well = {
        "ALLOWED_HOSTS": ["broker.example"], "BROKER_TLS_CERT": "chain.pem", "BROKER_ALLOW": ["10.0.0.0/8"],
        "BROKER_TLS_PROXY": True, "BROKER_HYDRA_SECRET": "x" * 40, "DATABASE_URL": None,
    }  # fmt: skip
    for name, value in (well | changed).items():
        setattr(settings, name, value)
    return [one for one in ids(run_checks(include_deployment_checks=True)) if one.startswith("fivewire.W")]


@pytest.mark.parametrize(
    ("changed", "found"),
    [
        ({}, []),
        ({"BROKER_TLS_CERT": None}, ["fivewire.W006"]),
        ({"BROKER_ALLOW": ()}, ["fivewire.W007"]),
        ({"BROKER_ALLOW": (), "BROKER_TLS_CLIENT_CA": "ca.pem"}, []),
        ({"BROKER_TLS_PROXY": False}, ["fivewire.W008"]),
        ({"ALLOWED_HOSTS": ["*"]}, ["fivewire.W009"]),
        ({"PEERBUS_HMAC_SECRET": "0123456789abcdef0123456789abcdef"}, ["fivewire.W010"]),
        ({"PEERBUS_HMAC_SECRET": "random but short"}, ["fivewire.W010"]),
        ({"PEERBUS_TOKEN": "dev-key"}, ["fivewire.W010"]),
        ({"BROKER_PEERBUS_RELAXED": True}, ["fivewire.W013"]),
        ({"BROKER_HYDRA_SECRET": "off"}, ["fivewire.W013"]),
        ({"BROKER_HYDRA_SECRET": "off", "BROKER_HYDRA_TLS_CERT": "node.pem"}, []),
        ({"DEBUG": True}, ["fivewire.W003"]),
        ({"ALLOWED_HOSTS": ["localhost"], "BROKER_TLS_CERT": None, "BROKER_ALLOW": (), "BROKER_TLS_PROXY": False}, []),
    ],
)  # fmt: skip
def test_what_a_deployment_has_wrong_is_warned_of_before(
    settings: Any, tmp_path: Path, changed: dict[str, Any], found: list[str]
) -> None:
    assert before_deployment(settings, DATA_DIR=tmp_path, **changed) == found


def test_the_password_of_an_example_is_warned_of(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(settings.DATABASES["default"], "PASSWORD", "secret")
    assert before_deployment(settings, DATA_DIR=tmp_path) == ["fivewire.W010"]
    [one] = checks.check_secrets(None)
    assert "the password of DATABASE_URL" in one.msg


def test_a_secret_that_others_may_read_is_warned_of_with_the_command_that_mends_it(
    settings: Any, tmp_path: Path
) -> None:
    key = tmp_path / "listener.key"
    for path in (key, tmp_path / "hydra_secret"):
        path.touch(0o644)
    given = {"DATA_DIR": tmp_path, "BROKER_TLS_KEY": key}
    assert before_deployment(settings, **given) == ["fivewire.W011"] * 2
    [first, _] = checks.check_secrets(None)
    assert first.hint == f"chmod 600 {key}"
    for path in (key, tmp_path / "hydra_secret"):
        path.chmod(0o600)
    assert before_deployment(settings, **given) == []


def test_a_certificate_that_ends_soon_is_warned_of(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, _ = Authority(tmp_path).issue("server")  # for an hour
    given = {"DATA_DIR": tmp_path, "BROKER_TLS_CERT": certificate}
    assert before_deployment(settings, **given) == ["fivewire.W012"]
    monkeypatch.setattr(checks, "RENEWAL", 0)
    assert before_deployment(settings, **given) == []


def test_a_projects_own_checks_stay_as_they_are(settings: Any) -> None:
    """Ours say ours alone: no check of Django's is silenced or added to."""
    assert settings.SILENCED_SYSTEM_CHECKS == []
    assert {one.id for one in checks.check_secrets(None)} <= {"fivewire.W010", "fivewire.W011"}


def test_a_generated_secret_is_warned_of_before_deployment_where_the_database_may_be_shared(
    settings: Any, tmp_path: Path
) -> None:
    settings.DATA_DIR, settings.ALLOWED_HOSTS = tmp_path, ["localhost"]
    kept(tmp_path, settings.SECRET_KEY + "\n")
    settings.DATABASE_URL = None
    assert ids(run_checks(include_deployment_checks=True)) == []
    settings.DATABASE_URL = "postgresql://localhost/one"
    assert ids(run_checks()) == []
    assert ids(run_checks(include_deployment_checks=True)) == ["fivewire.W002"]
    kept(tmp_path, "another")
    assert ids(run_checks(include_deployment_checks=True)) == []


def test_debug_pages_for_other_hosts_are_warned_of(settings: Any) -> None:
    settings.DEBUG = True
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
    assert ids(run_checks()) == []
    settings.ALLOWED_HOSTS = ["localhost", "broker.example"]
    assert ids(run_checks()) == ["fivewire.W003"]
