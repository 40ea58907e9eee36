"""The Ed25519 keys that sign anchors, and those whose signatures count."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from queues.audit.errors import InvalidAuditKey
from queues.secretfiles import read_secret, write_secret
from queues.settings import settings

__all__ = ["InvalidAuditKey", "Signer", "Trusted", "parse_private_key", "parse_public_key", "signer", "trusted_keys"]

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


def parse_private_key(pem: bytes) -> Ed25519PrivateKey:
    """The private key in a PEM file. Raises InvalidAuditKey."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidAuditKey(str(error)) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidAuditKey(f"it is a {type(key).__name__}")
    return key


def parse_public_key(text: str) -> Ed25519PublicKey:
    """A public key written as base64. Raises InvalidAuditKey."""
    try:
        return Ed25519PublicKey.from_public_bytes(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise InvalidAuditKey(repr(text)) from error


def raw(key: Ed25519PublicKey) -> bytes:
    """A public key's 32 bytes."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def fingerprint(key: Ed25519PublicKey) -> str:
    """The fingerprint of a public key: the first half of its SHA-256, hexadecimal."""
    return hashlib.sha256(raw(key)).hexdigest()[:32]


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
