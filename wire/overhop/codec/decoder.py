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
from abc import ABC, abstractmethod
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgpack import unpackb  # type: ignore[import-untyped]

from wire.overhop.codec.encoder import RECORD_DEPTH
from wire.overhop.codec.msgpack_check import (
    ELEMENTS_PER_SMALL_CONTAINER,
    MAX_DEPTH,
    MAX_ELEMENTS,
    CodecError,
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


M = TypeVar("M")


class FrameReader(ABC, Generic[M]):
    """Cuts received bytes into messages. Feed it what the socket gave, in order.

    `error` is None until the stream breaks a rule of the first tier (section "Errors"); from then on `feed`
    returns nothing and the connection has to be closed without an answer. The kept part of an incomplete frame is
    never more than its declared length, and each byte is copied a constant number of times however small the
    pieces.
    """

    __slots__ = ("_depth", "_elements", "_limit", "_most_containers", "_need", "_rest", "error")

    def __init__(
        self,
        max_envelope: int = MAX_ENVELOPE,
        *,
        max_depth: int = MAX_DEPTH,
        max_elements: int = MAX_ELEMENTS,
    ) -> None:
        """`max_envelope` is the largest length that is accepted, in bytes; the others are for one frame."""
        self.error: str | None = None
        self._limit = max_envelope
        self._depth = max_depth
        self._elements = max_elements
        self._most_containers = min(max_depth, max_elements // ELEMENTS_PER_SMALL_CONTAINER)
        self._rest = bytearray()
        self._need = LENGTH_SIZE

    @property
    def pending(self) -> int:
        """Bytes held of a frame that is not complete; not 0 at end of stream means it was cut off."""
        return len(self._rest)

    @property
    def rest(self) -> bytes:
        """The bytes of a frame that is not complete."""
        return bytes(self._rest)

    def feed(self, data: bytes) -> list[M]:
        """Return the messages that `data` completes, in order; then look at `error`."""
        found: list[M] = []
        if self.error is not None:
            return found
        if self._rest:
            if len(self._rest) + len(data) < self._need:
                self._rest += data
                return found
            data = b"".join((self._rest, data))
            self._rest = bytearray()
        try:
            self._cut(data, found)
        except CodecError as error:
            self.error = str(error)
        return found

    def _cut(self, data: bytes, found: list[M]) -> None:
        """Add the messages that are whole and keep the rest; raise CodecError at the first that is none."""
        limit = self._limit
        at, end, need = 0, len(data), LENGTH_SIZE
        while end - at >= LENGTH_SIZE:
            (length,) = read_length(data, at)
            if not 0 < length <= limit:
                raise CodecError(f"frame length is {length}, not 1 to {limit}")
            start = at + LENGTH_SIZE
            stop = start + length
            if stop > end:
                need = LENGTH_SIZE + length
                break
            at = self._read(data, start, stop, found)
        if at < end:
            self._rest += data[at:]
            self._need = need

    @abstractmethod
    def _read(self, data: bytes, start: int, stop: int, found: list[M]) -> int:
        """Add the message of the frame whose body is there, and perhaps of frames behind it; return where the last of
        these ends. Raises CodecError."""

    def _decode(self, body: bytes) -> OverhopEnvelope:
        """Return the message in a frame's body; raise CodecError."""
        if len(body) > _WORTH_A_LOOK or not is_plain(body, self._most_containers):
            check(body, self._depth, self._elements)
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


class Decoder(FrameReader[OverhopEnvelope]):
    """A `FrameReader` that gives each message by itself."""

    __slots__ = ()

    @classmethod
    def for_client(cls, max_envelope: int = MAX_ENVELOPE) -> Decoder:
        """Return a decoder for what a broker sends: lists of jobs hold many payloads, and hold them deeper."""
        return cls(max_envelope, max_depth=MAX_DEPTH + RECORD_DEPTH, max_elements=max_envelope)

    def _read(self, data: bytes, start: int, stop: int, found: list[OverhopEnvelope]) -> int:
        found.append(self._decode(data[start:stop]))
        return stop


def _unpack(data: bytes) -> Any:
    try:
        return unpackb(data)
    except ValueError as error:
        raise CodecError(f"not MessagePack as Overhop has it: {error}") from None


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
    return _unpack(data)
