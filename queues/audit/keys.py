"""Ed25519 keys as text: PEM for a private key, base64 for a public one."""

from __future__ import annotations

import base64
import binascii
import hashlib

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from queues.audit.errors import InvalidAuditKey


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
