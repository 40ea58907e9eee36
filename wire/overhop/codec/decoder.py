"""Overhop frames: bytes in, messages out, and back. No I/O.

    +---------------+---------------------------------------------------------+
    | u32 length    | MessagePack map: v = 2, t = type, rid = request id, p   |      the length is big-endian
    +---------------+---------------------------------------------------------+

Values are nil, bool, int64, UTF-8 str, bin, arrays, and maps with str keys. Written maps have their keys sorted at
every depth and their integers as short as they go; read ones may have any order, and of equal keys the last
one counts. docs/protocols/overhop.md is the specification; `wire.overhop.codec.msgpack_check` is what stands between
a stranger's bytes and the MessagePack library.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from typing import Any, Final, NamedTuple

from msgpack import unpackb  # type: ignore[import-untyped]

from wire.framing import F, FrameReader, StreamError
from wire.overhop.codec.encoder import RECORD_DEPTH
from wire.overhop.codec.explanation import explain
from wire.overhop.codec.msgpack_check import (
    ELEMENTS_PER_SMALL_CONTAINER,
    MAX_DEPTH,
    MAX_ELEMENTS,
    CodecError,
    RefusedValue,
    check,
    is_plain,
)
from wire.overhop.codec.names import PROTOCOL_VERSION

#: Bytes a frame's length may claim, unless configured otherwise: `ENVELOPE_LIMIT` is the most that can be.
MAX_ENVELOPE: Final = 8 * 1024 * 1024

_LENGTH = struct.Struct(">I")
LENGTH_SIZE: Final = _LENGTH.size
read_length = _LENGTH.unpack_from
_new = tuple.__new__  # a NamedTuple's own constructor takes half as long again

#: Above this, walking over the values costs less than looking at every byte.
_WORTH_A_LOOK: Final = 4096


class OverhopEnvelope(NamedTuple):
    """One envelope: its type (any int64), its request id (not empty), and its payload."""

    t: int
    rid: str
    p: dict[str, Any]


class OverhopReader(FrameReader[F]):
    """Cuts received bytes into messages. `error` is set by a rule of the first tier (section "Errors"): the connection
    has to be closed without an answer."""

    def __init__(
        self, limit: int = MAX_ENVELOPE, *, max_depth: int = MAX_DEPTH, max_elements: int = MAX_ELEMENTS
    ) -> None:
        """`limit` is the largest length that is accepted, in bytes; the others are for one frame."""
        super().__init__(limit)
        self._depth = max_depth
        self._elements = max_elements
        #: The request id of the frame with a refused value, once there is one.
        self.rid = ""
        self._most_containers = min(max_depth, max_elements // ELEMENTS_PER_SMALL_CONTAINER)

    def _cut(self, data: bytes, found: list[F]) -> int:
        limit = self._limit
        at, end = 0, len(data)
        while end - at >= LENGTH_SIZE:
            (length,) = read_length(data, at)
            start = at + LENGTH_SIZE
            stop = start + length
            if stop > end or not 0 < length <= limit:
                break
            at = self._read(data, start, stop, found)
        return at

    def _size(self, rest: bytes) -> int:
        if len(rest) < LENGTH_SIZE:
            return LENGTH_SIZE
        (length,) = read_length(rest)
        if not 0 < length <= self._limit:
            raise StreamError(f"frame length is {length}, not 1 to {self._limit}")
        return LENGTH_SIZE + int(length)

    @abstractmethod
    def _read(self, data: bytes, start: int, stop: int, found: list[F]) -> int:
        """Add the message of the frame whose body is there, and perhaps of frames behind it; return where the last of
        these ends. Raises CodecError."""

    def _decode(self, body: bytes) -> OverhopEnvelope:
        """Return the message in a frame's body; raise CodecError."""
        if len(body) > _WORTH_A_LOOK or not is_plain(body, self._most_containers):
            try:
                check(body, self._depth, self._elements)
            except RefusedValue as error:
                path, self.rid = explain(body, error.at)
                raise CodecError(f"{error} at {path}" if path else str(error)) from None
        try:
            envelope = unpackb(body)
            v, t, rid, p = envelope["v"], envelope["t"], envelope["rid"], envelope["p"]
            if v == PROTOCOL_VERSION and type(t) is int and type(rid) is str and rid and type(p) is dict:
                return _new(OverhopEnvelope, (t, rid, p))
        except ValueError as error:
            raise CodecError(f"not MessagePack as Overhop has it: {error}") from None
        except (KeyError, TypeError):
            pass  # the envelope is no map, or has a field too few
        raise CodecError(_what_is_wrong(envelope))


class Decoder(OverhopReader[OverhopEnvelope]):
    """Gives each message by itself."""

    @classmethod
    def for_client(cls, max_envelope: int = MAX_ENVELOPE) -> Decoder:
        """Return a decoder for what a broker sends: lists of jobs hold many payloads, and hold them deeper."""
        return cls(max_envelope, max_depth=MAX_DEPTH + RECORD_DEPTH, max_elements=max_envelope)

    def _read(self, data: bytes, start: int, stop: int, found: list[OverhopEnvelope]) -> int:
        found.append(self._decode(data[start:stop]))
        return stop


def _what_is_wrong(envelope: Any) -> str:
    if type(envelope) is not dict:
        return f"the envelope is not a map but {type(envelope).__name__}"
    for field, kind in (("v", int), ("t", int), ("rid", str), ("p", dict)):
        if field not in envelope:
            return f"the envelope has no {field!r}"
        if type(envelope[field]) is not kind:
            return f"{field!r} is {type(envelope[field]).__name__}, not {kind.__name__}"
    if envelope["v"] != PROTOCOL_VERSION:
        return f"protocol version is {envelope['v']}, not {PROTOCOL_VERSION}"
    return "the request id is empty"


def decode_value(data: bytes) -> Any:
    """Return the one value in `data`, as `encode_value` writes it; raise CodecError unless Overhop allows it."""
    if len(data) > _WORTH_A_LOOK or not is_plain(data, MAX_DEPTH):
        check(data)
    try:
        return unpackb(data)
    except ValueError as error:
        raise CodecError(f"not MessagePack as Overhop has it: {error}") from None
