"""An anchor: what a chain's hash was at a seq, said with a key that is not in the database.

A chain's anchors are numbered, and each covers the digest of the signature before, so none can be taken out unseen.
The signed text is one line of JSON; its keys and their order are those of `Anchor.message`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from queues.formats.canonical import json_string

#: In place of the signature before the first.
NOTHING = hashlib.sha256(b"").digest()


class Origin(NamedTuple):
    """The database of a chain by name, and when the chain was created there."""

    database: str
    created: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchor:
    """One anchor. `hash` and `previous` are bytes; `key` is the fingerprint of the key that signed.

    `origin` belongs to the copy, and is not signed."""

    chain: str
    number: int
    seq: int
    hash: bytes
    at: datetime
    kind: str
    previous: bytes
    key: str = ""
    signature: bytes = b""
    origin: Origin | None = field(default=None, compare=False)

    @property
    def message(self) -> bytes:
        """The signed bytes."""
        return (
            f'{{"chain":{json_string(self.chain)},"number":{self.number},"seq":{self.seq},"hash":"{self.hash.hex()}",'
            f'"at":"{time_text(self.at)}","kind":{json_string(self.kind)},"previous":"{self.previous.hex()}"}}'
        ).encode()

    @property
    def digest(self) -> bytes:
        """The part of this anchor that the next one covers."""
        return hashlib.sha256(self.signature).digest()

    @property
    def line(self) -> bytes:
        """The anchor as a line of a file: the signed text, the key's fingerprint, the signature and the origin."""
        signature = base64.b64encode(self.signature).decode()
        text = f',"key":{json_string(self.key)},"signature":"{signature}"'
        if self.origin is not None:
            text += f',"database":{json_string(self.origin.database)},"created":{json_string(self.origin.created)}'
        return self.message[:-1] + f"{text}}}\n".encode()


def time_text(at: datetime) -> str:
    """A time as anchors write it: UTC, with microseconds."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def digest_before(signature: bytes | None) -> bytes:
    """The part of the anchor before that an anchor covers, from its signature; None: it is the first."""
    return NOTHING if signature is None else hashlib.sha256(bytes(signature)).digest()


def parse_line(line: bytes) -> Anchor | None:
    """The anchor in a line of a file; None when it is none."""
    try:
        given: dict[str, Any] = json.loads(line)
        return Anchor(
            chain=str(given["chain"]), number=int(given["number"]), seq=int(given["seq"]),
            hash=bytes.fromhex(given["hash"]), at=datetime.fromisoformat(given["at"]), kind=str(given["kind"]),
            previous=bytes.fromhex(given["previous"]), key=str(given["key"]),
            signature=base64.b64decode(given["signature"], validate=True),
            # Lines that were written before lines said so have none.
            origin=Origin(str(given["database"]), str(given["created"])) if "database" in given else None,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError):
        return None
