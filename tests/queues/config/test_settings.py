"""The settings of the app: defaults without the site, values that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from django.core.checks import run_checks

from brokersite.environment import Environment
from queues.audit.signing import Signer
from queues.config.options import InvalidEnvironment
from queues.config.settings import DECLARED, EngineSettings, problems
from queues.config.settings import settings as ours


def pem(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def test_without_settings_a_key_is_generated_and_rows_are_kept_for_a_year(tmp_path: Path) -> None:
    env = Environment.read({"DATA_DIR": str(tmp_path)})
    assert (env.BROKER_AUDIT_KEY, env.BROKER_AUDIT_TRUSTED_KEYS) == (None, ())
    assert (env.BROKER_AUDIT_ANCHOR_INTERVAL, env.BROKER_AUDIT_DAYS) == (60.0, 365)


def test_keys_that_are_keys_are_taken(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.write_bytes(pem(key))
    trusted = f"{Signer(key).public_text}, {Signer(Ed25519PrivateKey.generate()).public_text}"
    given = {"DATA_DIR": str(tmp_path), "BROKER_AUDIT_KEY": str(path), "BROKER_AUDIT_TRUSTED_KEYS": trusted}
    env = Environment.read(given)
    assert path == env.BROKER_AUDIT_KEY
    assert len(env.BROKER_AUDIT_TRUSTED_KEYS) == 2


@pytest.mark.parametrize("content", [b"nonsense", pem(X25519PrivateKey.generate())])
def test_a_file_that_holds_no_ed25519_key_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(content)
    with pytest.raises(InvalidEnvironment, match=r"BROKER_AUDIT_KEY='.*key.pem': it must be a readable Ed25519"):
        Environment.read({"DATA_DIR": str(tmp_path), "BROKER_AUDIT_KEY": str(path)})


@pytest.mark.parametrize("key", ["nonsense", "AAAA", "é"])
def test_a_trusted_key_that_is_none_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(InvalidEnvironment, match=r"BROKER_AUDIT_TRUSTED_KEYS: .* must be an Ed25519 public key"):
        Environment.read({"DATA_DIR": str(tmp_path), "BROKER_AUDIT_TRUSTED_KEYS": key})


@pytest.mark.parametrize(("name", "value"), [("ANCHOR_INTERVAL", "0"), ("DAYS", "-1"), ("KEY", "/nowhere.pem")])
def test_values_out_of_bounds_are_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidEnvironment, match=f"BROKER_AUDIT_{name}="):
        Environment.read({"DATA_DIR": str(tmp_path), f"BROKER_AUDIT_{name}": value})


def test_a_setting_that_the_project_does_not_have_is_the_declared_default(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("BROKER_PREFETCH", "BROKER_KEY_PEPPERS", "DATA_DIR", "ETL_OUTPUT"):
        delattr(settings, name)
    assert ours.BROKER_PREFETCH == EngineSettings.BROKER_PREFETCH.default == 10_000
    assert ours.BROKER_KEY_PEPPERS == (settings.SECRET_KEY,)
    assert tmp_path / ".data" == ours.DATA_DIR
    assert ours.ETL_OUTPUT == str(tmp_path / ".data" / "etl")


def test_a_setting_of_the_project_is_taken_and_a_text_is_parsed(settings: Any, tmp_path: Path) -> None:
    settings.BROKER_PREFETCH, settings.BROKER_MAX_FRAME, settings.DATA_DIR = 7, "64KiB", str(tmp_path)
    assert (ours.BROKER_PREFETCH, ours.BROKER_MAX_FRAME, ours.DATA_DIR) == (7, 65_536, tmp_path)


def test_every_default_is_a_value_that_the_check_accepts(settings: Any) -> None:
    for name in DECLARED:
        setattr(settings, name, getattr(ours, name))
    assert problems() == []


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("BROKER_PREFETCH", 0, "BROKER_PREFETCH='0': it must be a whole number from 1 to 10000000."),
        ("BROKER_ETL_UMASK", 0o1000, "BROKER_ETL_UMASK='1000': it must be a umask, such as 077 or 027."),
        ("BROKER_AUDIT_TRUSTED_KEYS", ["x"], "must be an Ed25519 public key"),
    ],
)
def test_a_wrong_setting_of_the_project_is_an_error_of_the_system_check(
    settings: Any, name: str, value: object, problem: str
) -> None:
    setattr(settings, name, value)
    [message] = [message for message in run_checks() if message.id == "fivewire.E004"]
    assert problem in message.msg
