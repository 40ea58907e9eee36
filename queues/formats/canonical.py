"""JSON strings in the one spelling that hashes and signatures are made of.

What peers sign and what the audit chain hashes is text that every implementation must spell alike. The
spelling is that of Go's `encoding/json`, which the first implementations use: besides what JSON demands,
`<`, `>`, `&`, U+2028 and U+2029 are escaped; everything else stays as it is.
"""

import re

_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SPECIAL = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029\ud800-\udfff]')
# Half a surrogate pair is no character and has no UTF-8: a decoder in Go has already put U+FFFD in its place.
_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x20), *map(ord, "<>&\u2028\u2029"))}
_ESCAPES |= {ord(character): escape for character, escape in _SHORT.items()}
_ESCAPES |= dict.fromkeys(range(0xD800, 0xE000), "\ufffd")

_special = _SPECIAL.search
_ASCII_SPECIALS = bytes((*range(0x20), *b'"\\<>&'))
#: Characters that `escape_stored` replaces: the backslash first, since the escapes of the others contain one.
_STORED_SPECIALS = bytes(code for code in _ASCII_SPECIALS if code)
_STORED_ESCAPES = [
    (chr(code).encode(), _ESCAPES[code].encode())
    for code in sorted((*_STORED_SPECIALS, 0x2028, 0x2029), key=lambda code: code != ord("\\"))
]


def json_string(text: str) -> str:
    """`text` as a JSON string, quotes included, as Go's `encoding/json` writes it.

    Total: half a surrogate pair becomes U+FFFD, so the result always has a UTF-8 form.
    """
    if _special(text) is None:
        return f'"{text}"'
    return f'"{text.translate(_ESCAPES)}"'


def is_plain(text: str) -> bool:
    """Whether every part of `text` is spelled as it is: for looking at many strings at once, joined."""
    if text.isascii():
        return len(text.encode().translate(None, _ASCII_SPECIALS)) == len(text)
    return _special(text) is None


def escape_stored(texts: bytes) -> bytes:
    """Escape many texts at once, in UTF-8, as `json_string` does, but for its quotes.

    PostgreSQL stores no NUL and UTF-8 has no bytes above F4: these may stand between the texts, and are left.
    """
    if len(texts.translate(None, _STORED_SPECIALS)) == len(texts) and b"\xe2\x80" not in texts:
        return texts
    for special, escape in _STORED_ESCAPES:
        texts = texts.replace(special, escape)
    return texts
