"""Signatures that Go's adapters make and take, and that others do."""

import hashlib
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peers.codec import signing
from peers.errors import WeakSecret
from tests.peers.strategies import spelled, texts
from tests.peers.vectors import FIELDS, SECRET, SIGNED, Signed

IDS = ["plain", "whitespace", "no body", "broadcast", "escaped by its sender", "escaped by us"]


@pytest.mark.parametrize("signed", SIGNED, ids=IDS)
def test_our_signatures_are_those_of_the_first_implementation(signed: Signed) -> None:
    assert signing.sign(signed.fields, signed.body, SECRET) == signed.hmac
    assert signing.canonical(signed.fields, signed.body).endswith(b',"body":' + signed.canonical_body + b"}")


@pytest.mark.parametrize("signed", SIGNED, ids=IDS)
def test_signatures_of_the_first_implementation_verify(signed: Signed) -> None:
    assert signing.verify(envelope(signed.fields, signed.body, signed.hmac), SECRET)


def test_the_canonical_form_has_the_fields_in_their_order_whatever_order_they_came_in() -> None:
    backwards = dict(reversed(FIELDS.items()))
    assert signing.canonical(backwards, b"[1, 2]") == (
        b'{"protocol_version":"v1","id":"01HZ0000000000000000000000","from":"alice","to":"bob",'
        b'"ts":"2026-05-18T12:00:00Z","source":"peer-bus","kind":"msg","body":[1,2]}'
    )


def test_absent_fields_are_signed_as_empty_ones() -> None:
    assert signing.canonical({"id": "1"}, b"0") == (
        b'{"protocol_version":"","id":"1","from":"","to":"","ts":"","source":"","kind":"","body":0}'
    )


def envelope(fields: dict[str, str], body: bytes, signature: str) -> bytes:
    members = [b"%s:%s" % (dumped(key), dumped(value)) for key, value in fields.items()]
    if body:
        members.append(b'"body":' + body)
    members.append(b'"hmac":' + dumped(signature))
    return b" {\n%s } " % b" ,\t".join(reversed(members))


def dumped(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


# Other signers

BODY = '{ "a": "<é\u2028>" }'
FANCY = FIELDS | {"from": "<ä>", "source": "\u2028&"}


def reference_string(text: str) -> str:
    """A JSON string as Go writes it, one character after the other."""
    short = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    spelled = []
    for character in text:
        if character in short:
            spelled.append(short[character])
        elif ord(character) < 32 or character in "<>&\u2028\u2029":
            spelled.append(f"\\u{ord(character):04x}")
        else:
            spelled.append(character)
    return '"' + "".join(spelled) + '"'


def reference_body(text: str) -> str:
    """A JSON text as Go splices it, one character after the other."""
    out, within, escaped = [], False, False
    for character in text:
        if not within and character in " \t\r\n":
            continue
        if character == '"' and not escaped:
            within = not within
        escaped = within and character == "\\" and not escaped
        out.append(f"\\u{ord(character):04x}" if character in "<>&\u2028\u2029" else character)
    return "".join(out)


def by_javascript(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def test_javascript_and_python_write_strings_alike() -> None:
    assert by_javascript("\b\f\n\r\t\x01\x7f\u2028<é😀") == '"\\b\\f\\n\\r\\t\\u0001\x7f\u2028<é😀"'


def signature(fields: dict[str, str], body: str, string: Callable[[str], str]) -> str:
    members = [f'"{field}":{string(fields[field])}' for field in signing.FIELDS]
    form = "{" + ",".join([*members, f'"body":{body}']) + "}"
    return hmac.new(SECRET.encode(), form.encode(), hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("string", "body"),
    [
        (reference_string, reference_body(BODY)),
        (reference_string, BODY),
        (by_javascript, BODY.replace(" ", "")),
        (by_javascript, BODY),
        (json.dumps, BODY.replace(" ", "")),
        (json.dumps, BODY),
    ],
    ids=["Go", "Go's strings", "JavaScript, compact", "JavaScript, verbatim", "ASCII, compact", "ASCII, verbatim"],
)
def test_a_signature_over_any_spelling_of_the_same_envelope_verifies(string: Callable[[str], str], body: str) -> None:
    members = [f'"{key}":{string(value)}' for key, value in FANCY.items()]
    text = "{" + ",".join([*members, f'"body":{BODY}', f'"hmac":"{signature(FANCY, body, string)}"']) + "}"
    assert signing.verify(text.encode(), SECRET)


def test_a_signature_over_plain_strings_verifies_however_they_are_sent() -> None:
    members = [f'"{key}":{json.dumps(value)}' for key, value in FANCY.items()]
    text = "{" + ",".join([*members, f'"body":1,"hmac":"{signature(FANCY, "1", by_javascript)}"']) + "}"
    assert "\\u00e4" in text
    assert signing.verify(text.encode(), SECRET)


def test_a_signature_in_upper_case_verifies() -> None:
    assert signing.verify(envelope(FIELDS, SIGNED[0].body, SIGNED[0].hmac.upper()), SECRET)


@given(fields=st.fixed_dictionaries({field: texts for field in signing.FIELDS}), body=spelled())
def test_the_canonical_form_is_that_of_a_slow_reference(fields: dict[str, str], body: bytes) -> None:
    members = [f'"{field}":{reference_string(fields[field])}' for field in signing.FIELDS]
    expected = "{" + ",".join([*members, f'"body":{reference_body(body.decode())}']) + "}"
    form = signing.canonical(fields, body)
    assert form.decode() == expected
    assert json.loads(form) == fields | {"body": json.loads(body)}


@given(fields=st.fixed_dictionaries({field: texts for field in signing.FIELDS}), body=spelled())
def test_any_signed_envelope_verifies_as_it_is_sent(fields: dict[str, str], body: bytes) -> None:
    assert signing.verify(envelope(fields, body, signing.sign(fields, body, SECRET)), SECRET)


# Forgeries

GENUINE = envelope(FIELDS, b'{"a":[1,2]}', signing.sign(FIELDS, b'{"a":[1,2]}', SECRET))


@pytest.mark.parametrize("field", signing.FIELDS)
def test_a_changed_field_does_not_verify(field: str) -> None:
    forged = envelope(
        FIELDS | {field: FIELDS[field] + "x"}, b'{"a":[1,2]}', signing.sign(FIELDS, b'{"a":[1,2]}', SECRET)
    )
    assert signing.verify(GENUINE, SECRET)
    assert not signing.verify(forged, SECRET)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"[1,2]", b"[1,3]"),
        (b"[1,2]", b"[1,2.0]"),
        (b'"a"', b'"\\u0061"'),
        (b'"body"', b'"Body"'),
        (b'"hmac"', b'"mac"'),
        (b'"alice"', b'["alice"]'),
        (b'"alice"', b"null"),
        (b"[1,2]", b"[1,2"),
        (b"[1,2]", b"[1,2}"),
        (b'{"a":[1,2]}', b'{"a":[1,2]},"body":0'),
        (b'"hmac":"', b'"hmac":"0'),
        (b'"hmac":"', b'"hmac":" '),
    ],
)
def test_a_changed_envelope_does_not_verify(old: bytes, new: bytes) -> None:
    assert GENUINE.count(old) == 1
    assert not signing.verify(GENUINE.replace(old, new), SECRET)


def test_the_wrong_secret_does_not_verify() -> None:
    assert not signing.verify(GENUINE, SECRET[::-1])


@pytest.mark.parametrize("signature", ["", "00", "z" * 64, "\uff10" * 64, "0" * 63, "0" * 65])
def test_a_malformed_signature_does_not_verify(signature: str) -> None:
    assert not signing.verify(envelope(FIELDS, b"1", signature), SECRET)


@given(st.binary(max_size=60) | spelled())
def test_any_bytes_are_verified_without_an_error(data: bytes) -> None:
    assert not signing.verify(data, SECRET)


@given(st.data())
def test_an_envelope_with_any_byte_changed_means_the_same_or_does_not_verify(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(GENUINE) - 1))
    changed = GENUINE[:at] + data.draw(st.binary(min_size=1, max_size=1)) + GENUINE[at + 1 :]
    if signing.verify(changed, SECRET):
        assert meaning(changed) == meaning(GENUINE)


def meaning(text: bytes) -> Any:
    value = json.loads(text)
    return value | {"hmac": value["hmac"].lower()}


# Secrets


def test_a_secret_may_be_bytes() -> None:
    assert signing.sign(FIELDS, SIGNED[0].body, SECRET.encode()) == SIGNED[0].hmac
    assert signing.verify(GENUINE, SECRET.encode())


@pytest.mark.parametrize("secret", ["", "x" * 31, b"x" * 31, "ü" * 15])
def test_a_short_secret_is_refused_rather_than_used(secret: str | bytes) -> None:
    with pytest.raises(WeakSecret, match=r"32 bytes or more, and this one \d+$"):
        signing.sign(FIELDS, b"1", secret)
    with pytest.raises(WeakSecret):
        signing.verify(GENUINE, secret)


def test_a_secret_is_as_long_as_its_utf8() -> None:
    assert signing.key_of("ü" * 16) == "ü".encode() * 16


def test_a_large_body_with_strings_and_brackets_is_compacted() -> None:
    body = b"[" + b'{"a": "x y", "b": [[], {}]},' * 30_000 + b"0]"
    assert signing.compact(body) == body.replace(b'": ', b'":').replace(b', "b', b',"b').replace(b", {}", b",{}")
