"""Jobs of the store on the wire: their names and payloads."""

from __future__ import annotations

import json
from typing import Any

from queues.engine import Content
from wire.overhop.codec.decoder import CodecError, decode_value
from wire.overhop.codec.encoder import Unencodable, encode_value

#: The last three hexadecimal digits of a jid, as text and as bytes: ids come in blocks of 4096.
HEX = [f"{n:03x}" for n in range(4096)]
DIGITS = [digits.encode() for digits in HEX]


class JobNames:
    """Makes the jids of one queue: `<queue>:<uuid>`, as `queues.engine.uuids.message_uuid` has them."""

    __slots__ = ("_head", "_prefix")

    def __init__(self, queue: str, queue_uuid: str) -> None:
        self._prefix = f"{queue}:{queue_uuid[:13]}-8000-"
        size = len(self.jid(0).encode())
        self._head = bytes((0xD9, size)) if size < 256 else bytes((0xDA, size >> 8, size & 255))

    def start(self, id: int) -> str:
        """Return the beginning of the jids of a block of 4096 ids; the last three digits follow, as in `HEX`."""
        block = id >> 12
        return f"{self._prefix}{0x8000 | block >> 36:04x}-{block & 0xFFFFFFFFF:09x}"

    def jid(self, id: int) -> str:
        """The jid of the job with this first id."""
        return self.start(id) + HEX[id & 4095]

    def pack(self, start: str) -> bytes:
        """Return the beginning that `start` gives as MessagePack; `DIGITS` follow."""
        return self._head + start.encode()

    def packed(self, id: int) -> bytes:
        """The jid of the job with this first id as MessagePack."""
        return self.pack(self.start(id)) + DIGITS[id & 4095]


def payload_value(payload: bytes, content: int | None) -> bytes:
    """A stored payload as an encoded value: JSON becomes a value if it can be one, everything else is bytes.

    Raises Unencodable.
    """
    if content == Content.MSGPACK:
        return payload
    if content in (Content.JSON, Content.LETTER, Content.CELERY):
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
    except (CodecError, Unencodable):  # the content type is the publisher's claim
        return payload


__all__ = ["JobNames", "Unencodable", "payload_object", "payload_value"]
