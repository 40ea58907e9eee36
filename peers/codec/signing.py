"""The signature of envelopes, HMAC-SHA256 over a canonical form (docs/protocols/peerbus.md, "Signatures"). No I/O.

The canonical form is a JSON object of eight members in a fixed order, the body spliced in as it stands. What "as it
stands" is differs: Go's encoder, with which the first adapters sign, drops insignificant whitespace and escapes `<`,
`>`, `&`, U+2028 and U+2029; others splice the bytes verbatim. `sign` signs, and `canonical` returns, Go's form;
`verify` takes a signature over any of the spellings, which all mean the same envelope.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Final

import orjson

from peers.codec.parsing import MalformedJson, loads, members
from peers.errors import WeakSecret
from queues.formats.canonical import json_string

#: The signed strings in their order; the body follows.
FIELDS: Final = ("protocol_version", "id", "from", "to", "ts", "source", "kind")
#: Bytes of the shortest secret: as many as the digest has.
MIN_SECRET: Final = 32

_KEYS: Final = tuple(f'"{field}":'.encode() for field in FIELDS)
_SIGNATURE: Final = re.compile("[0-9a-fA-F]{64}")
# In valid JSON these stand nowhere but in strings.
_ESCAPED: Final = re.compile(b"[<>&]|\xe2\x80[\xa8\xa9]")
_ESCAPES: Final = {
    b"<": rb"\u003c", b">": rb"\u003e", b"&": rb"\u0026", b"\xe2\x80\xa8": rb"\u2028", b"\xe2\x80\xa9": rb"\u2029"
}  # fmt: skip
_SIGNIFICANT: Final = re.compile(rb'(?:[^" \t\n\r]++|"(?:[^"\\]++|\\.)*+")++', re.DOTALL)


def key_of(secret: str | bytes) -> bytes:
    """Return a shared secret as the bytes to sign with; a text counts as UTF-8. Raises WeakSecret."""
    key = secret.encode() if isinstance(secret, str) else bytes(secret)
    if len(key) < MIN_SECRET:
        raise WeakSecret(f"a secret has {MIN_SECRET} bytes or more, and this one {len(key)}")
    return key


def compact(body: bytes) -> bytes:
    """Return a JSON text without insignificant whitespace; nothing else is changed."""
    return b"".join(_SIGNIFICANT.findall(body))


def escape(body: bytes) -> bytes:
    r"""Return a JSON text with `<`, `>`, `&`, U+2028 and U+2029 in its strings as \u003c and so on."""
    return _ESCAPED.sub(lambda found: _ESCAPES[found[0]], body)


def canonical(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the canonical form: the fields (absent ones as "") and a body of JSON; an empty one counts as null."""
    return _spliced([json_string(fields.get(field, "")).encode() for field in FIELDS], escape(compact(body)) or b"null")


def _spliced(strings: Sequence[bytes], body: bytes) -> bytes:
    parts = [key + string for key, string in zip(_KEYS, strings, strict=True)]
    return b'{%s,"body":%s}' % (b",".join(parts), body)


def sign(fields: Mapping[str, str], body: bytes, secret: str | bytes) -> str:
    """Return the signature of an envelope: 64 hexadecimal digits in lower case. Raises WeakSecret."""
    return digest(canonical(fields, body), secret)


def digest(form: bytes, secret: str | bytes) -> str:
    """Return the signature of a canonical form. Raises WeakSecret."""
    return _digest(key_of(secret), form).hex()


def verify(envelope: bytes, secret: str | bytes) -> bool:
    """Whether an envelope carries a signature made with this secret. Raises WeakSecret."""
    key = key_of(secret)
    try:
        spelled = members(envelope)
        values = {field: _string(spelled, field) for field in (*FIELDS, "hmac")}
    except MalformedJson:
        return False
    if not _SIGNATURE.fullmatch(values["hmac"]):
        return False
    signature = bytes.fromhex(values["hmac"])
    body = spelled.get("body", b"null")
    return any(
        hmac.compare_digest(_digest(key, form), signature)
        for form in _forms(values, [spelled.get(field, b'""') for field in FIELDS], body)
    )


def _digest(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hashlib.sha256)


def _string(spelled: Mapping[str, bytes], field: str) -> str:
    value = loads(spelled.get(field, b'""'))
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MalformedJson(f"{field} is no string")
    return value


def _forms(values: Mapping[str, str], spelled: list[bytes], body: bytes) -> Iterator[bytes]:
    """The canonical forms that a signer may have meant, each once, Go's first.

    Read as JSON each is the same eight values, so that none lets a signature pass for another envelope.
    """
    go = tuple(json_string(values[field]).encode() for field in FIELDS)
    plain = tuple(orjson.dumps(values[field]) for field in FIELDS)
    received = tuple(b'""' if string == b"null" else string for string in spelled)
    compacted = compact(body)
    bodies = dict.fromkeys((escape(compacted), compacted, body))
    for strings, spliced in product(dict.fromkeys((go, plain, received)), bodies):
        yield _spliced(strings, spliced)
