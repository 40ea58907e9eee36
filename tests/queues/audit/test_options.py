"""The settings of the audit chains are refused at start when they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from brokersite.environment import Environment
from brokersite.options import InvalidEnvironment
from queues.audit.signing import Signer


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
