"""SSPQ packets: bytes in, tuples out, and back. No I/O.

    +-----------+-----------+------------------+------------------+-------------+
    | 0x55 0x99 | u8 type   | u8 retry counter | u32 payload size | payload ... |    big-endian
    +-----------+-----------+------------------+------------------+-------------+

Only SEND carries a payload that means anything. docs/protocols/sspq.md is the specification.
"""

import struct
from enum import IntEnum
from typing import Final

from wire.framing import FrameReader, StreamError

MAGIC: Final = 0x5599
MAGIC_BYTES: Final = b"\x55\x99"
MAX_PAYLOAD: Final = 16 * 1024 * 1024
MAX_RETRIES: Final = 0xFF

#: Packet type, retry counter, payload (empty for all but SEND).
Packet = tuple[int, int, bytes]


class PacketType(IntEnum):
    """The third byte of a packet (section "Packets"). A packet of any other type is skipped."""

    SEND = 0x5E
    RECEIVE = 0xEC
    CONFIRM = 0xC0
    DEAD_RECEIVE = 0xDE
    NO_RECEIVE = 0x0E


SEND, RECEIVE, CONFIRM, DEAD_RECEIVE, NO_RECEIVE = (int(kind) for kind in PacketType)

HEADER: Final = struct.Struct(">HBBI")
HEADER_SIZE: Final = HEADER.size
_KNOWN = frozenset(int(kind) for kind in PacketType)
_pack_header, _read_header = HEADER.pack, HEADER.unpack_from


class Decoder(FrameReader[Packet]):
    """Cuts received bytes into packets.

    A packet of an unknown type is passed over with its payload, however long, without keeping it; the payload of a
    known type other than SEND is dropped the same way.
    """

    def __init__(self, limit: int = MAX_PAYLOAD) -> None:
        """`limit` is the largest SEND payload that is accepted, in bytes."""
        super().__init__(limit)
        self._drop = 0  # bytes of a payload still to be dropped
        self._after: Packet | None = None  # the packet that they complete

    @property
    def truncated(self) -> bool:
        """Would an end of stream now cut off a SEND? Then it must be discarded, and counted."""
        return len(self._rest) > len(MAGIC_BYTES) and self._rest[len(MAGIC_BYTES)] == SEND

    def _cut(self, data: bytes, found: list[Packet]) -> int:
        limit, end = self._limit, len(data)
        at = self._resume(end, found) if self._drop else 0
        while end - at >= HEADER_SIZE:
            magic, kind, retries, size = _read_header(data, at)
            stop = at + HEADER_SIZE + size
            if magic != MAGIC:
                break
            if kind == SEND:
                if stop > end or size > limit:
                    break
                found.append((kind, retries, data[at + HEADER_SIZE : stop]))
            else:
                self._drop = size
                self._after = (kind, retries, b"") if kind in _KNOWN else None
                stop = at + HEADER_SIZE + self._resume(end - at - HEADER_SIZE, found)
            at = stop
        return at

    def _resume(self, available: int, found: list[Packet]) -> int:
        """Drop up to `available` bytes of a payload, return how many; at its end the packet is complete."""
        dropped = min(self._drop, available)
        self._drop -= dropped
        if not self._drop and self._after is not None:
            found.append(self._after)
            self._after = None
        return dropped

    def _size(self, rest: bytes) -> int:
        if not MAGIC_BYTES.startswith(rest[: len(MAGIC_BYTES)]):
            raise StreamError(f"magic number is 0x{rest[:2].hex()}, not 0x{MAGIC:04x}")
        size = int.from_bytes(rest[4:HEADER_SIZE], "big") if len(rest) >= HEADER_SIZE else 0
        if size > self._limit:
            raise StreamError(f"payload of {size} bytes is over {self._limit}")
        return HEADER_SIZE + size


def encode(kind: int, retries: int = 0, payload: bytes = b"") -> bytes:
    """Return a whole packet; raise ValueError for a retry counter outside 0..255 or a payload over 4 GiB."""
    try:
        return _pack_header(MAGIC, kind, retries, len(payload)) + payload
    except struct.error as error:
        raise ValueError(f"no SSPQ packet has these values: {error}") from None


def encode_send(payload: bytes, retries: int) -> bytes:
    """Return a SEND; `retries` is how many redeliveries remain, 255 for no limit."""
    return encode(SEND, retries, payload)


RECEIVE_PACKET: Final = encode(RECEIVE)
CONFIRM_PACKET: Final = encode(CONFIRM)
DEAD_RECEIVE_PACKET: Final = encode(DEAD_RECEIVE)
NO_RECEIVE_PACKET: Final = encode(NO_RECEIVE)
