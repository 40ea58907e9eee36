"""Jobs of the store on the wire: their names and payloads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from queues.engine.api import Content
from wire.overhop.codec.columns import AlikeTexts
from wire.overhop.codec.decoder import decode_value
from wire.overhop.codec.encoder import Unencodable, encode_value
from wire.overhop.codec.hot_frames import text_head
from wire.overhop.codec.msgpack_check import CodecError

#: Queues whose names of jobs are remembered.
MAX_QUEUES = 100_000
#: The last three hexadecimal digits of a jid: ids come in blocks of 4096. And the columns of these digits.
_DIGITS = [f"{n:03x}".encode() for n in range(4096)]
_COLUMNS = [b"".join(_DIGITS)[place::3] for place in range(3)]
#: So many jids are worth being held as columns.
_MANY = 8


class JobNames:
    """Makes the jids of one queue: `<queue>:<uuid>`, as `queues.engine.uuids.message_uuid` has them."""

    __slots__ = ("_prefix", "head")

    def __init__(self, queue: str, queue_uuid: str) -> None:
        self._prefix = f"{queue}:{queue_uuid[:13]}-8000-"
        #: The beginning of each jid as MessagePack.
        self.head = text_head(len(self._prefix.encode()) + len("8000-000000000000"))

    def _block(self, block: int) -> str:
        """The beginning of the jids of a block of ids; three digits follow."""
        return f"{self._prefix}{0x8000 | block >> 36:04x}-{block & 0xFFFFFFFFF:09x}"

    def jid(self, id: int) -> str:
        """The jid of the job with this first id."""
        return f"{self._block(id >> 12)}{id & 4095:03x}"

    def jids(self, ids: Sequence[int]) -> Sequence[bytes]:
        """The jids of the jobs with these first ids, of which there is one at least, as UTF-8."""
        if len(ids) == 1:
            return [self.jid(ids[0]).encode()]
        low, high = (ids[0], ids[-1]) if isinstance(ids, range) else (min(ids), max(ids))
        if low >> 12 != high >> 12:
            return [jid for _, some in groupby(ids, _block_of) for jid in self.jids(list(some))]
        start = self._block(low >> 12).encode()
        if not (isinstance(ids, range) and len(ids) >= _MANY):
            return [start + _DIGITS[id & 4095] for id in ids]
        digits = slice(low & 4095, (high & 4095) + 1, ids.step)
        columns = {place: column[digits] for place, column in enumerate(_COLUMNS, len(start))}
        return AlikeTexts(start + bytes(3), columns, len(ids))


#: The names of the jobs of one queue, by its name and its UUID.
job_names = lru_cache(MAX_QUEUES)(JobNames)


def _block_of(id: int) -> int:
    return id >> 12


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
