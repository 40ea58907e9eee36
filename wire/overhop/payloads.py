"""Jobs of the store on the wire: their names and payloads."""

from __future__ import annotations

import json
from typing import Any

from queues.engine import Content
from wire.overhop.codec import CodecError, decode_value
from wire.overhop.encoding import Unencodable, encode_value

#: The last three hexadecimal digits of a jid.
_DIGITS = [f"{n:03x}" for n in range(4096)]
DIGITS = [digits.encode() for digits in _DIGITS]


class JobNames:
    """Makes the jids of one queue: `<queue>:<uuid>`, as `queues.jobs.job_uuid` has them."""

    __slots__ = ("_block", "_head", "_prefix", "_start")

    def __init__(self, queue: str, queue_uuid: str) -> None:
        self._prefix = f"{queue}:{queue_uuid[:13]}-8000-"
        #: The block of 4096 ids whose common beginning is at hand: ids come in blocks.
        self._block = -1
        self._start = ""
        size = len(self.jid(0).encode())
        self._head = bytes((0xD9, size)) if size < 256 else bytes((0xDA, size >> 8, size & 255))

    def _begin(self, block: int) -> None:
        self._block = block
        digits = f"{block:013x}"
        self._start = f"{self._prefix}{0x8000 | block >> 36:04x}-{digits[-9:]}"

    def jid(self, id: int) -> str:
        """The jid of the job with this first id."""
        if id >> 12 != self._block:
            self._begin(id >> 12)
        return self._start + _DIGITS[id & 4095]

    def packed(self, id: int) -> bytes:
        """The same as MessagePack."""
        return self._head + self.jid(id).encode()

    def pack(self, jid: str) -> bytes:
        """One of these jids as MessagePack; all have the same length."""
        return self._head + jid.encode()


def payload_value(payload: bytes, content: int | None) -> bytes:
    """A stored payload as an encoded value: JSON becomes a value if it can be one, everything else is bytes.

    Raises Unencodable.
    """
    if content == Content.MSGPACK:
        return payload
    if content == Content.JSON:
        try:
            return encode_value(json.loads(payload))
        except (ValueError, RecursionError):  # floats, or no JSON after all
            pass
    return encode_value(payload)


def payload_object(payload: bytes | None, content: int | None) -> Any:
    """A stored payload as a value for an answer; None when it is not kept."""
    if payload is None:
        return None
    try:
        return decode_value(payload_value(payload, content))
    except (CodecError, Unencodable):  # somebody else's word for what it is
        return payload


__all__ = ["JobNames", "Unencodable", "payload_object", "payload_value"]
