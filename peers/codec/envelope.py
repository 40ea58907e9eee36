"""The envelope, a message from one peer to another (docs/protocols/peerbus.md, "The envelope"). No I/O.

An envelope is its text: the broker stores and delivers it byte for byte, since the signature would not survive being
parsed and written again. `Envelope` is that text with the fields read out of it; `build` writes and signs a new one.
"""

import datetime
import json
import os
import time
import uuid
from typing import Any, Final, NamedTuple

from peers.codec import signing
from peers.codec.parsing import MalformedJson, loads, members
from peers.errors import InvalidEnvelope, MessageTooLarge
from queues.formats.canonical import json_string

#: The recipient of a broadcast.
PROTOCOL_VERSION: Final = "v1"
BROADCAST: Final = "*"
#: Bytes of a WebSocket message, and of a line.
MAX_FRAME: Final = 1 << 20
#: Bytes of an envelope's id in UTF-8.
MAX_ID: Final = 512
#: Characters of a peer's name.
MAX_NAME: Final = 240
#: Bytes that such a name has at most in UTF-8.
MAX_NAME_BYTES: Final = 4 * MAX_NAME
#: Bytes of a delivery key in UTF-8: the id and, of a broadcast, the recipient.
MAX_KEY: Final = MAX_ID + len("|") + MAX_NAME_BYTES
#: Bytes of a recipient in UTF-8: the longest are addresses of queues and topics.
MAX_RECIPIENT: Final = 4 * (len("queue:") + 255)

DELIVER_HEAD: Final = b'{"protocol_version":"v1","type":"deliver","delivery_key":'
DELIVER_MIDDLE: Final = b',"envelope":'
DELIVER_END: Final = b"}"
_AROUND: Final = len(DELIVER_HEAD + DELIVER_MIDDLE + DELIVER_END)
_MAX_CHARACTER: Final = 6  # bytes of an escape such as \u0001, the most that a character can take
_MAX_RECIPIENT: Final = len("|") + MAX_NAME * _MAX_CHARACTER


class Envelope(NamedTuple):
    """An envelope's fields, those that are absent or null as "", and its text; the version is always "v1"."""

    id: str
    #: `from` on the wire: the sender as it names itself, not always the name it is registered under.
    sender: str
    to: str
    ts: str
    source: str
    #: "broadcast" or "msg".
    kind: str
    hmac: str
    #: The envelope as it was received.
    text: bytes

    @property
    def protocol_version(self) -> str:
        """The only version there is."""
        return PROTOCOL_VERSION

    @property
    def is_broadcast(self) -> bool:
        """Whether it goes to all connected peers."""
        return self.to == BROADCAST

    @property
    def raw_body(self) -> bytes:
        """The body's text as it was received; without a body, null."""
        return members(self.text).get("body", b"null")

    @property
    def body(self) -> Any:
        """The body's value."""
        return loads(self.raw_body)


def delivered_size(id: str, broadcast: bool, envelope_size: int) -> int:
    """Return the bytes of the deliver frame around an envelope of so many.

    The recipients of a broadcast are not known yet: their names are taken to be as long as a name can be.
    """
    key = len(json_string(id).encode()) + (_MAX_RECIPIENT if broadcast else 0)
    return _AROUND + key + envelope_size


def build(
    *,
    sender: str,
    to: str,
    body: bytes,
    secret: str | bytes | None,
    source: str = "peer-bus",
    id: str | None = None,
    ts: str | None = None,
) -> Envelope:
    """Write an envelope and sign it; without a secret its signature is "".

    `body` is a JSON text, of which `encode` makes one; insignificant whitespace is dropped, and strings are spelled as
    they are signed, so that every verifier finds the same bytes however it splices them. To BROADCAST it goes to
    all connected peers. Raises InvalidEnvelope, MessageTooLarge if it could not be delivered, WeakSecret.
    """
    kind = "broadcast" if to == BROADCAST else "msg"
    fields = {
        "protocol_version": PROTOCOL_VERSION, "id": new_id() if id is None else id, "from": sender, "to": to,
        "ts": timestamp() if ts is None else ts, "source": source, "kind": kind,
    }  # fmt: skip
    _check(fields)
    signed = signing.canonical(fields, body)
    signature = "" if secret is None else signing.digest(signed, secret)
    text = b'%s,"hmac":"%s"}' % (signed[:-1], signature.encode())
    try:
        loads(body or b"null")  # by itself, or it could bring in members of its own
        loads(text)
    except MalformedJson as error:
        raise InvalidEnvelope(f"the body is no JSON that can be sent: {error}") from None
    if (size := delivered_size(fields["id"], to == BROADCAST, len(text))) > MAX_FRAME:
        raise MessageTooLarge(f"delivered, the message would have {size} bytes, over the limit of {MAX_FRAME}")
    return Envelope(fields["id"], sender, to, fields["ts"], source, kind, signature, text)


def _check(fields: dict[str, str]) -> None:
    for field in ("id", "to"):
        if not fields[field] or "\0" in fields[field]:
            raise InvalidEnvelope(f"{field} cannot be {fields[field]!r}: it is not empty and has no NUL")
    if len(fields["id"].encode(errors="replace")) > MAX_ID:
        raise InvalidEnvelope(f"an id has {MAX_ID} bytes at most")
    if len(fields["to"].encode(errors="replace")) > MAX_RECIPIENT:
        raise InvalidEnvelope(f"a recipient has {MAX_RECIPIENT} bytes at most")


def encode(value: Any) -> bytes:
    """Return a value as the JSON text of a body. Raises InvalidEnvelope for a value without a JSON form."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidEnvelope(f"the body cannot be JSON: {error}") from error


class Stamps:
    """Ids and times for new envelopes."""

    def __init__(self) -> None:
        self._last = 0

    def new_id(self) -> str:
        """Return a UUIDv7 (RFC 9562, method 3): greater than every one before, even if the clock goes back."""
        # 48 bits of milliseconds and, in the 12 bits behind the version, fractions of one.
        now = time.time_ns() * 4096 // 1_000_000
        self._last = now = max(now, self._last + 1)
        random = int.from_bytes(os.urandom(8), "big") >> 2
        return str(uuid.UUID(int=now >> 12 << 80 | 7 << 76 | (now & 0xFFF) << 64 | 2 << 62 | random))


_stamps: Final = Stamps()
new_id = _stamps.new_id


def timestamp(now: datetime.datetime | None = None) -> str:
    """Return a time, or this moment, as in RFC 3339, in UTC and with milliseconds."""
    moment = (now or datetime.datetime.now(datetime.UTC)).astimezone(datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
