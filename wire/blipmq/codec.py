"""BlipMQ v1 frames and payloads: bytes in, tuples out, and back. No I/O.

    +------------+---------------+--------------------+-------------+
    | u32 length | u8 frame type | u64 correlation id | payload ... |      all integers big-endian
    +------------+---------------+--------------------+-------------+

`length` counts everything after itself: at least 9, at most 16 MiB. A `BlipMQReader` cuts a byte stream into frames,
the `parse_*` functions read payloads and the `encode_*` functions write whole frames. The section names are
those of docs/protocols/blipmq.md.

A frame is a plain tuple and its type a plain int: an object for each frame is what costs at 100,000 a second.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from wire.framing import F, FrameReader, StreamError

MAX_FRAME_SIZE: Final = 16 * 1024 * 1024
MAX_TEXT_SIZE: Final = 0xFFFF  # topics, keys and NACK messages have a u16 length
PROTOCOL_VERSION: Final = 1

#: Frame type, correlation id, payload.
Frame = tuple[int, int, bytes]


class FrameType(IntEnum):
    """The byte after the length (section "Frames"). Any other value ends the connection."""

    HELLO = 0x01
    AUTH = 0x02
    PUBLISH = 0x03
    SUBSCRIBE = 0x04
    ACK = 0x05
    NACK = 0x06
    PING = 0x07
    PONG = 0x08
    POLL = 0x09


# The same as plain ints: comparing with these is several times faster than with enum members.
HELLO, AUTH, PUBLISH, SUBSCRIBE, ACK, NACK, PING, PONG, POLL = (int(kind) for kind in FrameType)

HEADER: Final = struct.Struct(">IBQ")
HEADER_SIZE: Final = HEADER.size
LENGTH_SIZE: Final = 4
MIN_LENGTH: Final = HEADER_SIZE - LENGTH_SIZE
U16: Final = struct.Struct(">H")
U64: Final = struct.Struct(">Q")

_pack_header, _read_header = HEADER.pack, HEADER.unpack_from
_QOS_AND_SIZE = struct.Struct(">BH")
_TWO_U16 = struct.Struct(">HH")


class Reject(NamedTuple):
    """The code and the message of a NACK (section "NACK")."""

    code: int
    message: str


UNAUTHENTICATED: Final = Reject(401, "unauthenticated")
INVALID_API_KEY: Final = Reject(401, "invalid API key")
FORBIDDEN: Final = Reject(401, "forbidden")
UNSUPPORTED_VERSION: Final = Reject(426, "unsupported protocol version")
HELLO_ALREADY_PERFORMED: Final = Reject(400, "HELLO already performed")
HELLO_NOT_PERFORMED: Final = Reject(400, "HELLO not performed")
ALREADY_AUTHENTICATED: Final = Reject(400, "already authenticated")
INVALID_HELLO: Final = Reject(400, "invalid HELLO payload")
INVALID_AUTH: Final = Reject(400, "invalid AUTH payload")
INVALID_PUBLISH: Final = Reject(400, "invalid PUBLISH payload")
INVALID_SUBSCRIBE: Final = Reject(400, "invalid SUBSCRIBE payload")
INVALID_ACK: Final = Reject(400, "invalid ACK payload")
INVALID_NACK: Final = Reject(400, "invalid NACK payload")
INVALID_POLL: Final = Reject(400, "invalid POLL payload")
EMPTY_TOPIC: Final = Reject(400, "empty topic")
INVALID_QOS: Final = Reject(400, "invalid QoS value")
ZERO_SUBSCRIPTION: Final = Reject(400, "subscription_id must be non-zero")
UNKNOWN_DELIVERY: Final = Reject(404, "unknown subscription or delivery tag")
QUEUE_FULL: Final = Reject(503, "queue full")
TOO_MANY_CONNECTIONS: Final = Reject(503, "too many connections with this API key")
OVERFULL: Final = Reject(503, "too many incomplete frames")

#: Bytes of the largest frame that a handshake needs: an AUTH with the longest key.
MAX_HANDSHAKE_SIZE: Final = LENGTH_SIZE + MIN_LENGTH + 2 + MAX_TEXT_SIZE


def durable_publish_failed(reason: str) -> Reject:
    """The NACK for a publish that could not be made durable."""
    return Reject(500, f"durable publish failed: {reason}")


class FrameTooLarge(ValueError):
    """A frame to be sent would be longer than MAX_FRAME_SIZE allows."""


class PayloadError(ValueError):
    """A whole frame whose payload breaks the rules: answer with `reject` as a NACK and go on."""

    def __init__(self, reject: Reject) -> None:
        super().__init__(reject.message)
        self.reject = reject
        self.code, self.message = reject


class BlipMQReader(FrameReader[F]):
    """Cuts received bytes into frames; `limit` is the largest value of the length field that is accepted."""

    def __init__(self, limit: int = MAX_FRAME_SIZE) -> None:
        super().__init__(limit)

    @property
    def correlation_id(self) -> int:
        """The correlation id of the incomplete frame; 0 when there is none, or it has not come."""
        return _read_header(self._rest)[2] if len(self._rest) >= HEADER_SIZE else 0

    def _size(self, rest: bytes) -> int:
        if len(rest) < LENGTH_SIZE:
            return LENGTH_SIZE
        length = int.from_bytes(rest[:LENGTH_SIZE], "big")
        if not MIN_LENGTH <= length <= self._limit:
            raise StreamError(f"frame length {length} is not in {MIN_LENGTH}..{self._limit}")
        if len(rest) == LENGTH_SIZE:
            return LENGTH_SIZE + 1
        if not HELLO <= rest[LENGTH_SIZE] <= POLL:
            raise StreamError(f"unknown frame type 0x{rest[LENGTH_SIZE]:02x}")
        return LENGTH_SIZE + length


class Decoder(BlipMQReader[Frame]):
    """Gives each frame by itself."""

    def _cut(self, data: bytes, found: list[Frame]) -> int:
        append, limit = found.append, self._limit
        at, end = 0, len(data)
        while end - at >= HEADER_SIZE:
            length, kind, correlation_id = _read_header(data, at)
            stop = at + LENGTH_SIZE + length
            if stop > end or not MIN_LENGTH <= length <= limit or not HELLO <= kind <= POLL:
                break
            append((kind, correlation_id, data[at + HEADER_SIZE : stop]))
            at = stop
        return at


def parse_hello(payload: bytes) -> int:
    """Return the protocol version a HELLO asks for; raise PayloadError unless it is 2 bytes."""
    if len(payload) != U16.size:
        raise PayloadError(INVALID_HELLO)
    return int.from_bytes(payload, "big")


def parse_auth(payload: bytes) -> str:
    """Return the API key of an AUTH; raise PayloadError unless its length is exact and it is UTF-8."""
    if len(payload) < U16.size or len(payload) != U16.size + int.from_bytes(payload[:2], "big"):
        raise PayloadError(INVALID_AUTH)
    return _text(payload[U16.size :], INVALID_AUTH)


def _text(data: bytes, invalid: Reject) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise PayloadError(invalid) from None


def parse_publish(payload: bytes) -> tuple[int, bytes, bytes]:
    """Return QoS (0 or 1), topic (UTF-8, not empty) and body (may be empty) of a PUBLISH.

    Raises PayloadError with the first that applies: "invalid PUBLISH payload", "empty topic",
    "invalid QoS value" (section "PUBLISH").
    """
    start = _QOS_AND_SIZE.size
    if len(payload) < start:
        raise PayloadError(INVALID_PUBLISH)
    qos, size = _QOS_AND_SIZE.unpack_from(payload)
    topic = payload[start : start + size]
    if len(topic) != size:
        raise PayloadError(INVALID_PUBLISH)
    _check_topic(topic, qos, INVALID_PUBLISH)
    return qos, topic, payload[start + size :]


def parse_subscribe(payload: bytes) -> tuple[bytes, int]:
    """Return topic (UTF-8, not empty) and QoS (0 or 1) of a SUBSCRIBE; bytes after the QoS are ignored.

    Raises PayloadError with the first that applies: "invalid SUBSCRIBE payload", "empty topic",
    "invalid QoS value" (section "SUBSCRIBE").
    """
    size = int.from_bytes(payload[:2], "big")
    if len(payload) < U16.size + size + 1:
        raise PayloadError(INVALID_SUBSCRIBE)
    topic, qos = payload[2 : 2 + size], payload[2 + size]
    _check_topic(topic, qos, INVALID_SUBSCRIBE)
    return topic, qos


def _check_topic(topic: bytes, qos: int, invalid: Reject) -> None:
    if not topic.isascii():
        _text(topic, invalid)
    if not topic:
        raise PayloadError(EMPTY_TOPIC)
    if qos > 1:
        raise PayloadError(INVALID_QOS)


def parse_ack(payload: bytes) -> int:
    """Return the subscription id of a client's ACK; raise PayloadError unless it is 8 bytes and not 0."""
    return _parse_subscription(payload, INVALID_ACK)


def parse_poll(payload: bytes) -> int:
    """Return the subscription id of a POLL; raise PayloadError unless it is 8 bytes and not 0."""
    return _parse_subscription(payload, INVALID_POLL)


def _parse_subscription(payload: bytes, invalid: Reject) -> int:
    subscription = parse_accepted(payload, invalid)
    if not subscription:
        raise PayloadError(ZERO_SUBSCRIPTION)
    return subscription


def parse_accepted(payload: bytes, invalid: Reject = INVALID_ACK) -> int:
    """Return the id in a server's ACK, 0 for HELLO and AUTH; raise PayloadError unless it is 8 bytes."""
    if len(payload) != U64.size:
        raise PayloadError(invalid)
    return int.from_bytes(payload, "big")


def parse_nack(payload: bytes) -> Reject:
    """Return code and message of a server's NACK; raise PayloadError unless exact and UTF-8."""
    start = _TWO_U16.size
    if len(payload) < start or len(payload) != start + int.from_bytes(payload[2:4], "big"):
        raise PayloadError(INVALID_NACK)
    return Reject(int.from_bytes(payload[:2], "big"), _text(payload[start:], INVALID_NACK))


def parse_delivery(payload: bytes) -> tuple[int, bytes, bytes]:
    """Return QoS, topic and body of a PUBLISH from the server: the layout is that of `parse_publish`."""
    return parse_publish(payload)


def encode(kind: int, correlation_id: int, payload: bytes = b"") -> bytes:
    """Return a whole frame; raise FrameTooLarge if it would be longer than a receiver accepts."""
    length = MIN_LENGTH + len(payload)
    if length > MAX_FRAME_SIZE:
        raise FrameTooLarge(f"frame length {length} is over {MAX_FRAME_SIZE}")
    return _pack_header(length, kind, correlation_id) + payload


def encode_hello(correlation_id: int, version: int = PROTOCOL_VERSION) -> bytes:
    """Return a HELLO asking for `version`."""
    return encode(HELLO, correlation_id, U16.pack(version))


def encode_auth(correlation_id: int, key: str) -> bytes:
    """Return an AUTH; raise ValueError if the key is longer than 65535 bytes of UTF-8."""
    return encode(AUTH, correlation_id, _sized(key.encode(), "API key"))


def encode_publish(correlation_id: int, qos: int, topic: bytes, body: bytes) -> bytes:
    """Return a PUBLISH; raise ValueError for a topic over 65535 bytes, FrameTooLarge over 16 MiB in all."""
    return encode(PUBLISH, correlation_id, delivery_prefix(qos, topic) + body)


def encode_subscribe(correlation_id: int, topic: bytes, qos: int) -> bytes:
    """Return a SUBSCRIBE; raise ValueError if the topic is longer than 65535 bytes."""
    return encode(SUBSCRIBE, correlation_id, _sized(topic, "topic") + bytes((qos,)))


def encode_ack(correlation_id: int, subscription_id: int) -> bytes:
    """Return an ACK. A client's carries the delivery tag as its correlation id."""
    return _pack_header(MIN_LENGTH + U64.size, ACK, correlation_id) + U64.pack(subscription_id)


def encode_nack(correlation_id: int, code: int, message: str) -> bytes:
    """Return a NACK; a message over 65535 bytes is cut at a character."""
    text = message.encode()
    if len(text) > MAX_TEXT_SIZE:
        text = text[:MAX_TEXT_SIZE].decode(errors="ignore").encode()
    return encode(NACK, correlation_id, _TWO_U16.pack(code, len(text)) + text)


def encode_poll(correlation_id: int, subscription_id: int) -> bytes:
    """Return a POLL for the next message of a subscription."""
    return _pack_header(MIN_LENGTH + U64.size, POLL, correlation_id) + U64.pack(subscription_id)


def encode_ping(correlation_id: int) -> bytes:
    """Return a PING."""
    return _pack_header(MIN_LENGTH, PING, correlation_id)


def encode_pong(correlation_id: int) -> bytes:
    """Return the PONG that answers a PING with the same correlation id."""
    return _pack_header(MIN_LENGTH, PONG, correlation_id)


def delivery_prefix(qos: int, topic: bytes) -> bytes:
    """Return what stands before the body in a PUBLISH payload: the same for a whole subscription."""
    return bytes((qos,)) + _sized(topic, "topic")


def encode_delivery(correlation_id: int, prefix: bytes, body: bytes) -> bytes:
    """Return a PUBLISH to a subscriber, from `delivery_prefix`; raise FrameTooLarge if it would not fit."""
    return encode(PUBLISH, correlation_id, prefix + body)


def _sized(data: bytes, what: str) -> bytes:
    if len(data) > MAX_TEXT_SIZE:
        raise ValueError(f"{what} is {len(data)} bytes long, the most is {MAX_TEXT_SIZE}")
    return U16.pack(len(data)) + data
