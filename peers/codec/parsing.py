"""JSON as Go's `encoding/json` reads it, and the text of its outermost members. No I/O.

The reference implementation is in Go, and JSON that it accepts is accepted here too. `loads` reads a value;
`members` says where in an object's text each of its values stands, so that it can be passed on byte for byte.
"""

import json
import re
from typing import Any, Final

import orjson

_MAX_INTEGER: Final = 19  # characters of an integer that always fits into 64 bits
_DEEPEST: Final = 500  # where Python's own parser reads, whose limit differs between versions

# A pair of surrogates, half a pair (the group), or any other escape.
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)

_SPACE: Final = rb"[ \t\n\r]*+"
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_MEMBER: Final = re.compile(rb"%s(%s)%s:%s" % (_SPACE, _STRING, _SPACE, _SPACE))
_SCALAR: Final = re.compile(rb"%s|[-+.0-9A-Za-z]++" % _STRING)
_TO_BRACKET: Final = re.compile(rb'(?:[^"\[\]{}]++|%s)*+[\[\]{}]' % _STRING, re.DOTALL)
_BEGIN: Final = re.compile(rb"%s\{" % _SPACE)
_NEXT: Final = re.compile(rb"%s([,}])" % _SPACE)
_END: Final = re.compile(rb"%s\Z" % _SPACE)
_EMPTY: Final = re.compile(rb"%s\{%s\}%s\Z" % (_SPACE, _SPACE, _SPACE))


class MalformedJson(ValueError):
    """The text is not JSON, or has arrays and objects too deep in each other to be read."""


def loads(text: bytes) -> Any:
    """Return the value of a JSON text; of equal keys the last counts. Raises MalformedJson.

    As in Go, an escape that is half a surrogate pair reads as U+FFFD, and a number may be of any size: what does
    not fit into 64 bits is a float, infinite if need be. NaN and Infinity are no JSON. Arrays and objects may be 1024
    deep in each other, or 500 if there is such an escape or a number that no float can hold.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return _loads_leniently(text)


def _loads_leniently(text: bytes) -> Any:
    try:
        value = json.loads(_ESCAPE.sub(_paired, text).decode(), parse_int=_integer, parse_constant=_refuse)
    except RecursionError:
        raise MalformedJson("arrays and objects are nested too deep") from None
    except ValueError as error:
        raise MalformedJson(str(error)) from None
    if text.count(b"[") + text.count(b"{") > _DEEPEST:  # to look at each value takes as long as to read it
        outer = [value] if isinstance(value, list | dict) else []
        for _ in range(_DEEPEST):
            inner = [each.values() if isinstance(each, dict) else each for each in outer]
            outer = [each for values in inner for each in values if isinstance(each, list | dict)]
            if not outer:
                return value
        raise MalformedJson("arrays and objects are nested too deep")
    return value


def _paired(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape[1] else escape[0]


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_INTEGER else float(digits)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def members(text: bytes) -> dict[str, bytes]:
    """Return the text of each value of a JSON object by key, as it stands there; of equal keys the last counts.

    Of those texts only strings and brackets are looked at: `loads` says whether it is JSON. Raises MalformedJson for
    anything but an object.
    """
    if _EMPTY.match(text):
        return {}
    found: dict[str, bytes] = {}
    at = _after(_BEGIN, text, 0)
    while True:
        member = _MEMBER.match(text, at)
        if member is None:
            raise MalformedJson(f"no member of an object at byte {at}")
        end = _value_end(text, member.end())
        found[str(loads(member[1]))] = text[member.end() : end]
        at = _after(_NEXT, text, end)
        if text[at - 1] == 0x7D:
            _after(_END, text, at)
            return found


def _value_end(text: bytes, at: int) -> int:
    if text[at : at + 1] not in (b"{", b"["):
        return _after(_SCALAR, text, at)
    depth, at = 1, at + 1
    while depth:
        at = _after(_TO_BRACKET, text, at)
        depth += 1 if text[at - 1] in b"{[" else -1
    return at


def _after(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    found = pattern.match(text, at)
    if found is None:
        raise MalformedJson(f"no object from byte {at} on")
    return found.end()
