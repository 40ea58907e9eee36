"""The Ed25519 keys that sign anchors, and those whose signatures count."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from queues.audit.errors import InvalidAuditKey
from queues.audit.keys import fingerprint, parse_private_key, parse_public_key, raw
from queues.config.secret_files import read_secret, write_secret
from queues.config.settings import settings

#: Public keys by fingerprint.
Trusted = Mapping[str, Ed25519PublicKey]


class Signer:
    """Signs with one private key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key()
        self.fingerprint = fingerprint(self.public_key)

    @property
    def public_text(self) -> str:
        """The public key as BROKER_AUDIT_TRUSTED_KEYS takes it."""
        return base64.b64encode(raw(self.public_key)).decode()

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def signer() -> Signer:
    """The signer with this installation's key, which is generated if it is not set and there is none.

    Raises InvalidAuditKey, or OSError when the file cannot be read or made.
    """
    path = _key_path()
    if settings.BROKER_AUDIT_KEY is None and not path.exists():
        write_secret(path, _generated_pem(), replace=False)
    return Signer(_read_private_key(path))


def trusted_keys() -> Trusted:
    """This installation's public key, if there is one already, and BROKER_AUDIT_TRUSTED_KEYS. Raises as `signer`."""
    keys = [parse_public_key(text) for text in settings.BROKER_AUDIT_TRUSTED_KEYS]
    path = _key_path()
    if path.exists():
        keys.append(_read_private_key(path).public_key())
    return {fingerprint(key): key for key in keys}


def is_signed(key: Ed25519PublicKey, message: bytes, signature: bytes) -> bool:
    """Whether this key has signed this message."""
    try:
        key.verify(signature, message)
    except InvalidSignature:
        return False
    return True


def _key_path() -> Path:
    given: Path | None = settings.BROKER_AUDIT_KEY
    return given if given is not None else Path(settings.DATA_DIR) / "audit_key"


def _read_private_key(path: Path) -> Ed25519PrivateKey:
    try:
        return parse_private_key(read_secret(path).encode())
    except InvalidAuditKey as error:
        raise InvalidAuditKey(f"{path}: {error.detail}") from error


def _generated_pem() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode().strip()
