"""Writing Overhop: values, envelopes, and the answers every server gives. No I/O.

To be imported from `wire.overhop.codec.decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgpack import ExtType, packb  # type: ignore[import-untyped]

from wire.overhop.codec.msgpack_check import MAX_DEPTH, MAX_ELEMENTS, CodecError, check
from wire.overhop.codec.names import LAST_CLIENT_TYPE, PROTOCOL_VERSION, Code, Type

#: No receiver can be configured to take a longer envelope, in bytes.
ENVELOPE_LIMIT: Final = 32 * 1024 * 1024
#: Containers inside each other in a value: it stands in a payload, and that in an envelope.
VALUE_DEPTH: Final = MAX_DEPTH - 2
#: So much deeper than in a request stands a job's payload in a list of jobs.
RECORD_DEPTH: Final = 2
_ENVELOPE_ELEMENTS: Final = 8

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1


class Unencodable(ValueError):
    """Overhop has no such value, or no receiver accepts such a frame. Nothing was sent."""


_ATOMS = frozenset((str, bytes, bool, type(None)))
_TEXT = frozenset((str,))
_OK: Final = int(Type.OK)
_ERR: Final = int(Type.ERR)
_EMPTY_MAP: Final = b"\x80"
_SHORT_SIZE: Final = 32
_SHORT: Final = tuple(bytes((0xA0 | size,)) for size in range(_SHORT_SIZE))  # heads of short strings


def _tail(t: int) -> bytes:
    packed: bytes = b"\xa1t" + packb(t) + b"\xa1v" + packb(PROTOCOL_VERSION)
    return packed


_TAILS: Final = {int(kind): _tail(kind) for kind in Type}


def encode(t: int, rid: str, p: dict[str, Any]) -> bytes:
    """Return a whole frame; raise Unencodable for what Overhop, or a receiver with the default limits, refuses."""
    if not isinstance(p, dict):
        raise Unencodable(f"a payload is a dict, not {type(p).__name__}")
    if not p:
        return encode_packed(t, rid, _EMPTY_MAP)
    if t <= LAST_CLIENT_TYPE:
        return encode_packed(t, rid, _pack(p, MAX_DEPTH - 1, MAX_ELEMENTS - _ENVELOPE_ELEMENTS))
    return encode_packed(t, rid, _pack(p, MAX_DEPTH - 1 + RECORD_DEPTH, ENVELOPE_LIMIT))


def encode_packed(t: int, rid: str, payload: bytes) -> bytes:
    """Return a whole frame around a payload that is encoded already, as `encode_value` does it.

    Raises Unencodable if `rid` is empty or no UTF-8, if `t` is no int64, or if the frame would be over the limit.
    """
    if not rid:
        raise Unencodable("a request id may not be empty")
    tail = _TAILS.get(t) or _tail(_int64(t))
    packed_rid = _SHORT[len(rid)] + rid.encode() if len(rid) < _SHORT_SIZE and rid.isascii() else _packed(rid)
    body = b"".join((b"\x84\xa1p", payload, b"\xa3rid", packed_rid, tail))
    if len(body) > ENVELOPE_LIMIT:
        raise Unencodable(f"an envelope of {len(body)} bytes is over {ENVELOPE_LIMIT}")
    return len(body).to_bytes(4, "big") + body


def encode_value(value: object) -> bytes:
    """Return a value such as a job's payload; equal values give equal bytes. Raises Unencodable."""
    return _pack(value, VALUE_DEPTH, MAX_ELEMENTS)


def ok(rid: str, p: dict[str, Any] | None = None) -> bytes:
    """Return the OK that answers the request `rid`."""
    return encode(_OK, rid, p or {})


def err(rid: str, code: Code, msg: str) -> bytes:
    """Return the ERR that answers the request `rid`."""
    return encode(_ERR, rid, {"code": code, "msg": msg})


def _packed(value: object) -> bytes:
    try:
        data: bytes = packb(value)
    except UnicodeEncodeError as error:
        raise Unencodable(f"text that is no UTF-8: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        raise Unencodable(str(error)) from None
    return data


def is_simple(value: dict[Any, Any]) -> bool:
    """Is this a map in order, of plain values that cannot be wrong? Most jobs are: they need no copy."""
    return _TEXT.issuperset(map(type, value)) and _ATOMS.issuperset(map(type, value.values())) and (
        list(value) == sorted(value)
    )


def _pack(value: object, max_depth: int, max_elements: int) -> bytes:
    if type(value) is dict and len(value) < 16 and max_depth and is_simple(value):
        return _packed(value)
    data = _packed(_canonical(value, max_depth))
    if len(data) > max_elements:  # or else there cannot be so many
        try:
            check(data, max_depth, max_elements)
        except CodecError as error:
            raise Unencodable(str(error)) from None
    return data


def _canonical(value: Any, room: int) -> Any:
    """Return `value` with its maps sorted; raise Unencodable for what Overhop lacks. `room`: levels left."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, int):
        return _int64(value)
    if isinstance(value, dict):
        return _sorted_map(value, room)
    if isinstance(value, ExtType):  # which is a tuple
        raise Unencodable("Overhop has no extension values")
    if isinstance(value, (list, tuple)):
        return _array(value, room)
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return value
    if isinstance(value, float):
        raise Unencodable(f"Overhop has no floats: {value!r}; send an integer or text")
    raise Unencodable(f"Overhop has no {type(value).__name__}: send text, or bytes")


def _sorted_map(value: dict[Any, Any], room: int) -> dict[str, Any]:
    if room <= 0:
        raise Unencodable("containers are nested too deep")
    for key in value:
        if type(key) is not str and not isinstance(key, str):
            raise Unencodable(f"a map's keys are strings, not {type(key).__name__}: {key!r:.100}")
    result: dict[str, Any] = {}
    for key in sorted(value):
        item = value[key]
        result[key] = item if type(item) in _ATOMS else _canonical(item, room - 1)
    return result


def _array(value: Sequence[Any], room: int) -> list[Any]:
    if room <= 0:
        raise Unencodable("containers are nested too deep")
    return [item if type(item) in _ATOMS else _canonical(item, room - 1) for item in value]


def _int64(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise Unencodable("an integer is outside int64")
    return int(value)
