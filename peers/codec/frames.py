"""Peerbus frames: JSON objects, one a WebSocket message (docs/protocols/peerbus.md, "Frames"). No I/O.

The broker reads with `handshake` and `parse_frame` and writes `peers_frame` and `deliver_frame`; a client reads with
`parse_pushed` and writes the rest. After the handshake nothing is an error: a frame without meaning is Ignored, with a
reason to count it under. `peers.codec.lines` has the framing for streams of bytes.
"""

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson

from peers.codec.envelope import (
    BROADCAST,
    DELIVER_END,
    DELIVER_HEAD,
    DELIVER_MIDDLE,
    MAX_FRAME,
    MAX_ID,
    MAX_KEY,
    MAX_NAME,
    MAX_RECIPIENT,
    PROTOCOL_VERSION,
    Envelope,
    delivered_size,
)
from peers.codec.parsing import MalformedJson, loads, members
from queues.formats.canonical import is_plain, json_string


class Register(NamedTuple):
    """The first frame: the token, and the name to register."""

    token: str
    name: str


class Ack(NamedTuple):
    """The delivery with this key has been consumed."""

    key: str


class PeersRequest(NamedTuple):
    """A request for the names of connected peers."""


class Ignored(NamedTuple):
    """A frame that means nothing, and why, in a few words of a fixed set."""

    reason: str


class Peers(NamedTuple):
    """The names of connected peers."""

    names: list[str]


class Deliver(NamedTuple):
    """A message for this peer, acknowledged by its key."""

    key: str
    envelope: Envelope


class Rejection(NamedTuple):
    """The close frame of the broker."""

    code: int
    reason: str


#: Frames from a client.
Frame = Register | Ack | PeersRequest | Envelope | Ignored
#: Frames from a broker.
Pushed = Peers | Deliver | Ignored

# In the order in which a handshake is checked.
NO_FRAME: Final = Rejection(1002, "no handshake frame")
NOT_TEXT: Final = Rejection(1003, "handshake must be text")
MALFORMED: Final = Rejection(1007, "malformed handshake")
NOT_REGISTER: Final = Rejection(1008, "first frame must be register")
UNSUPPORTED_VERSION: Final = Rejection(1008, "unsupported protocol version")
EMPTY_NAME: Final = Rejection(1008, "empty peer name")
UNUSABLE_NAME: Final = Rejection(1008, "peer name cannot be used")
INVALID_TOKEN: Final = Rejection(1008, "invalid bearer token")
PERSISTENCE_FAILED: Final = Rejection(1011, "peer persistence failed")
NAME_CLAIMED: Final = Rejection(1008, "name claimed under a different token")
# Later.
TAKEN_OVER: Final = Rejection(1008, "taken over by a new connection")
SLOW_CONSUMER: Final = Rejection(1008, "slow consumer")
TOO_BIG: Final = Rejection(1009, "message too big")
GOING_AWAY: Final = Rejection(1001, "going away")

NOT_JSON: Final = Ignored("not JSON")
NO_OBJECT: Final = Ignored("not an object")
WRONG_TYPE: Final = Ignored("field of a wrong type")
EMPTY_ACK: Final = Ignored("ack without an id")
UNKNOWN_ACK: Final = Ignored("ack of an impossible id")
WRONG_DIRECTION: Final = Ignored("frame of the other side")
OTHER_VERSION: Final = Ignored("unsupported protocol version")
NO_ID: Final = Ignored("envelope without an id")
NO_RECIPIENT: Final = Ignored("envelope without a recipient")
UNSTORABLE: Final = Ignored("id or recipient that cannot be stored")
WRONG_KIND: Final = Ignored("kind and recipient disagree")
TOO_LARGE: Final = Ignored("too large to be delivered")
NO_KEY: Final = Ignored("deliver without a delivery key")

#: The fields of an envelope on the wire; each may be missing.
_values_of: Final = itemgetter("id", "to", "kind", "protocol_version", "from", "ts", "source", "hmac")
_RESERVED: Final = ("queue:", "topic:")
_TYPED: Final = b'{"protocol_version":"v1","type":'
_ACK_HEAD: Final = _TYPED + b'"ack","id":"'
_PLAIN_HEAD: Final = DELIVER_HEAD + b'"'
_PLAIN_MIDDLE: Final = b'"' + DELIVER_MIDDLE
#: A line that is an ack as most clients spell it, with a key that needs no escapes.
_PLAIN_ACK: Final = re.compile(rb'^%s([ !#-\[\]-~]{1,%d})"\}$' % (re.escape(_ACK_HEAD), MAX_KEY), re.MULTILINE)
# An envelope up to here fits into a deliver frame whatever its id is.
# An id and a recipient of so many characters are not too long whatever these are.
_SHORT: Final = MAX_ID // 4
_SMALL: Final = MAX_FRAME - delivered_size("\0" * MAX_ID, True, 0)


def handshake(text: bytes | None) -> Register | Rejection:
    """Read a connection's first frame; None stands for one that is binary.

    A Register is fit: the remaining question is whether the token may have the name.
    """
    if text is None:
        return NOT_TEXT
    try:
        fields = loads(text)
    except MalformedJson:
        return MALFORMED
    if not isinstance(fields, dict):
        return NOT_REGISTER
    given = [fields.get(field) for field in ("type", "protocol_version", "token", "name")]
    if not all(value is None or isinstance(value, str) for value in given):
        return MALFORMED
    kind, version, token, name = ("" if value is None else value for value in given)
    if kind != "register":
        return NOT_REGISTER
    if version != PROTOCOL_VERSION:
        return UNSUPPORTED_VERSION
    if not name:
        return EMPTY_NAME
    return Register(token, name) if _is_usable(name) else UNUSABLE_NAME


def _is_usable(name: str) -> bool:
    return len(name) <= MAX_NAME and "\0" not in name and name != BROADCAST and not name.startswith(_RESERVED)


def _is_longer(text: str, limit: int) -> bool:
    """Whether a text has more bytes in UTF-8; four times its characters are the most."""
    return len(text) * 4 > limit and (len(text) > limit or len(text.encode()) > limit)


def parse_frame(text: bytes) -> Frame:
    """Read a frame that a client has sent after its register."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            fields = loads(text)
        except MalformedJson:
            return NOT_JSON
    if type(fields) is not dict:
        return NO_OBJECT
    kind = fields.get("type")
    if kind is None or type(kind) is not str:
        return envelope_of(fields, text)
    if kind == "ack":
        return _ack(fields.get("id"))
    if kind == "peers":
        return PeersRequest()
    if kind == "register":
        return _register(fields)
    return WRONG_DIRECTION if kind == "deliver" else envelope_of(fields, text)


def plain_acks(texts: Sequence[bytes]) -> list[str]:
    """The keys of frames if all of them are acks in the usual spelling, read at once; else nothing."""
    if not texts[0].startswith(_ACK_HEAD):
        return []
    lines = b"\n".join(texts)
    keys = _PLAIN_ACK.findall(lines)
    if not len(keys) == len(texts) == lines.count(b"\n") + 1:
        return []
    return b"\n".join(keys).decode().split("\n")


def is_typed(text: bytes) -> bool:
    """Whether a frame is, in the usual spelling, anything but an envelope."""
    return text.startswith(_TYPED)


def plain_envelopes(texts: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """The ids and recipients of frames, read at once, if all of them are short envelopes to one peer each that name
    every field; else nothing."""
    nothing: tuple[list[str], list[str]] = [], []
    try:
        found = [*map(orjson.loads, texts)]
        ids, recipients, kinds, versions, *others = zip(*map(_values_of, found), strict=True)
        all_ids, all_recipients, *_ = map("".join, (ids, recipients, kinds, versions, *others))
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return nothing
    if (
        any("type" in fields for fields in found) or set(versions) != {PROTOCOL_VERSION} or "broadcast" in kinds
        or BROADCAST in recipients or not all(ids) or not all(recipients) or "\0" in all_ids or "\0" in all_recipients
        or max(map(len, ids)) > _SHORT or max(map(len, recipients)) > _SHORT or max(map(len, texts)) > _SMALL
    ):  # fmt: skip
        return nothing
    return [*ids], [*recipients]


def _ack(key: object) -> Frame:
    if not key:
        return EMPTY_ACK
    if not isinstance(key, str):
        return WRONG_TYPE
    if "\0" in key or _is_longer(key, MAX_KEY):
        return UNKNOWN_ACK
    return Ack(key)


def _register(fields: dict[str, Any]) -> Frame:
    token, name = fields.get("token"), fields.get("name")
    return Register(token, name) if isinstance(token, str) and isinstance(name, str) else WRONG_TYPE


def envelope_of(fields: dict[str, Any], text: bytes) -> Envelope | Ignored:
    """Return the envelope that has these fields and this text, unless it could not be routed or delivered."""
    get: Callable[[str], Any] = fields.get
    if get("protocol_version") != PROTOCOL_VERSION:
        return OTHER_VERSION
    id, to, kind = get("id"), get("to"), get("kind")
    envelope = Envelope(id, get("from"), to, get("ts"), get("source"), kind, get("hmac"), text)
    try:
        "".join(envelope[:-1])
    except TypeError:
        return _without_null(envelope)
    if (  # nearly all are direct messages with short ids
        id and to and kind != "broadcast" and to != BROADCAST and "\0" not in id and "\0" not in to
        and len(id) <= _SHORT and len(to) <= _SHORT and len(text) <= _SMALL
    ):  # fmt: skip
        return envelope
    return _flaw(envelope) or envelope


def _without_null(envelope: Envelope) -> Envelope | Ignored:
    """The envelope with "" for absent and null fields, which are the same to Go."""
    if not all(field is None or isinstance(field, str) for field in envelope[:-1]):
        return WRONG_TYPE
    envelope = Envelope._make(["" if field is None else field for field in envelope])
    return _flaw(envelope) or envelope


def _flaw(envelope: Envelope) -> Ignored | None:
    id, to, broadcast = envelope.id, envelope.to, envelope.to == BROADCAST
    if not id:
        return NO_ID
    if not to:
        return NO_RECIPIENT
    if broadcast != (envelope.kind == "broadcast"):
        return WRONG_KIND
    if "\0" in id or "\0" in to or _is_longer(id, MAX_ID) or _is_longer(to, MAX_RECIPIENT):
        return UNSTORABLE
    size = len(envelope.text)
    return TOO_LARGE if size > _SMALL and delivered_size(id, broadcast, size) > MAX_FRAME else None


def parse_pushed(text: bytes) -> Pushed:
    """Read a frame that a broker has sent."""
    try:
        spelled = members(text)
        kind = loads(spelled.get("type", b"null"))
        if kind == "peers":
            return _peers(loads(spelled.get("names", b"[]")))
        if kind == "deliver":
            return _deliver(spelled)
    except MalformedJson:
        return NOT_JSON
    return WRONG_DIRECTION


def _peers(names: object) -> Pushed:
    if names is None:
        return Peers([])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return WRONG_TYPE
    return Peers(names)


def _deliver(spelled: dict[str, bytes]) -> Pushed:
    key = loads(spelled.get("delivery_key", b"null"))
    if not key or not isinstance(key, str):
        return NO_KEY
    text = spelled.get("envelope", b"null")
    fields = loads(text)
    if not isinstance(fields, dict):
        return NO_OBJECT
    envelope = envelope_of(fields, text)
    return Deliver(key, envelope) if isinstance(envelope, Envelope) else envelope


def deliver_frame(key: str, envelope: bytes) -> bytes:
    """The frame that delivers an envelope, whose bytes stay as they are."""
    return b"".join((DELIVER_HEAD, json_string(key).encode(), DELIVER_MIDDLE, envelope, DELIVER_END))


def deliver_frames(keys: Sequence[str], envelopes: Sequence[bytes]) -> list[bytes]:
    """The frames that deliver envelopes under these keys, one at least."""
    if not is_plain("".join(keys)):
        return [*map(deliver_frame, keys, envelopes)]
    join = b"".join
    spelled = "\n".join(keys).encode().split(b"\n")
    return [
        join((_PLAIN_HEAD, key, _PLAIN_MIDDLE, envelope, DELIVER_END))
        for key, envelope in zip(spelled, envelopes, strict=True)
    ]


def peers_frame(names: Sequence[str]) -> bytes:
    """The frame with the names of connected peers: the answer to a register and to a request for them."""
    listed = ",".join(map(json_string, names)).encode()
    return b'{"protocol_version":"v1","type":"peers","names":[%s]}' % listed


def register_frame(token: str, name: str) -> bytes:
    """A client's first frame."""
    return b'{"protocol_version":"v1","type":"register","token":%s,"name":%s}' % (
        json_string(token).encode(),
        json_string(name).encode(),
    )


def ack_frame(key: str) -> bytes:
    """The frame that says that the delivery with this key is consumed."""
    return b'{"protocol_version":"v1","type":"ack","id":%s}' % json_string(key).encode()


def peers_request() -> bytes:
    """The frame that asks for the connected peers; it is answered when everything sent before is stored."""
    return b'{"protocol_version":"v1","type":"peers"}'
