"""The admin user and the development key, made once: the password is printed once, the key every time."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from django.contrib.auth import authenticate, get_user_model

from brokersite import bootstrap
from brokersite.environment import Environment
from hydra.models import Node, Vote
from queues.models import ApiKey
from queues.operations import keys

pytestmark = pytest.mark.django_db


def printed_password(line: str) -> str:
    return line.split(", password ")[1].split()[0]


def test_the_admin_user_is_made_once_and_its_password_is_printed_once(tmp_path: Path) -> None:
    line = bootstrap.ensure_admin(tmp_path)
    name, password = line.removeprefix("user ").split(", ")[0], printed_password(line)
    user = authenticate(username=name, password=password)
    assert user is not None
    assert user.is_superuser
    assert bootstrap.ensure_admin(tmp_path) == f"user admin, password in {tmp_path / 'admin_password'}"
    assert get_user_model().objects.count() == 1
    assert stat.S_IMODE((tmp_path / "admin_password").stat().st_mode) == 0o600


def test_a_password_that_was_changed_is_not_printed(tmp_path: Path) -> None:
    first = bootstrap.ensure_admin(tmp_path)
    user = get_user_model().objects.get(username="admin")
    user.set_password("another")
    user.save()
    line = bootstrap.ensure_admin(tmp_path)
    assert line.startswith("user admin, with the password you gave it")
    assert printed_password(first) not in line


def test_an_admin_whose_kept_password_is_gone_keeps_the_one_it_has(tmp_path: Path) -> None:
    password = printed_password(bootstrap.ensure_admin(tmp_path))
    (tmp_path / "admin_password").unlink()
    assert "with the password you gave it" in bootstrap.ensure_admin(tmp_path)
    assert authenticate(username="admin", password=password) is not None


def test_the_development_key_is_made_once(tmp_path: Path) -> None:
    key = bootstrap.ensure_key(tmp_path)
    assert len(key) >= 20
    assert bootstrap.ensure_key(tmp_path) == key
    assert ApiKey.objects.get().name == "development"
    assert stat.S_IMODE((tmp_path / "development_key").stat().st_mode) == 0o600


def test_a_new_database_gets_the_key_that_is_kept(tmp_path: Path) -> None:
    key = bootstrap.ensure_key(tmp_path)
    ApiKey.objects.all().delete()
    assert bootstrap.ensure_key(tmp_path) == key
    assert ApiKey.objects.count() == 1


def test_an_empty_file_is_no_key(tmp_path: Path) -> None:
    (tmp_path / "development_key").write_text("\n")
    key = bootstrap.ensure_key(tmp_path)
    assert len(key) > 20
    (tmp_path / "development_key").write_text("")
    assert bootstrap.ensure_key(tmp_path).startswith("'development' exists, but ")


def test_a_key_whose_file_is_gone_or_says_another_is_said_to_be_unknown(tmp_path: Path) -> None:
    bootstrap.ensure_key(tmp_path)
    (tmp_path / "development_key").write_text("another\n")
    assert bootstrap.ensure_key(tmp_path).startswith("'development' exists, but ")
    (tmp_path / "development_key").unlink()
    assert bootstrap.ensure_key(tmp_path).startswith("'development' exists, but ")
    assert ApiKey.objects.count() == 1


def test_a_revoked_key_is_not_printed(tmp_path: Path) -> None:
    bootstrap.ensure_key(tmp_path)
    keys.revoke_key("development")
    assert bootstrap.ensure_key(tmp_path).startswith("'development' is revoked")


def test_the_secret_of_hydra_nodes_is_made_once_and_is_that_of_all_commands_with_the_directory(tmp_path: Path) -> None:
    before = Environment.read({"DATA_DIR": str(tmp_path)})
    assert before.BROKER_HYDRA_SECRET == ""
    bootstrap.ensure_hydra_secret(tmp_path)
    bootstrap.ensure_hydra_secret(tmp_path)
    kept = (tmp_path / "hydra_secret").read_text().strip()
    assert len(kept) == 32
    assert Environment.read({"DATA_DIR": str(tmp_path)}).BROKER_HYDRA_SECRET == kept
    given = {"DATA_DIR": str(tmp_path), "BROKER_HYDRA_SECRET": "off"}
    assert Environment.read(given).BROKER_HYDRA_SECRET == "off"
    assert stat.S_IMODE((tmp_path / "hydra_secret").stat().st_mode) == 0o600


def test_the_node_of_up_founds_a_network_where_the_database_has_never_known_one() -> None:
    assert bootstrap.knows_no_hydra_network()
    node = Node.objects.create(name="alpha", voter="0" * 16)
    assert not bootstrap.knows_no_hydra_network()
    node.delete()
    assert bootstrap.knows_no_hydra_network()
    Vote.objects.create(voter="0" * 16, name="alpha", term=1, pledge=7)
    assert not bootstrap.knows_no_hydra_network()
