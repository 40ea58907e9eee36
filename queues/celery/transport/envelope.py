"""kombu's message as it is stored, and back.

The body is the payload, byte for byte, and the headers are the headers; what else AMQP has stands in the header
``kombu``, as far as it is not what nearly all messages have: five values fewer to write, store and read a task. So a
task looks in the admin as it is. A header with the name of the broker's own, ``dead-letter``, stands there too. The
content type is Celery's, which no other protocol can give to a message: whatever else a queue has is no task, whatever
its headers say.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from kombu.serialization import registry
from kombu.transport.base import Message as BaseMessage
from kombu.utils import json as kombu_json

from queues.celery.transport.errors import UnstorableTask
from queues.engine.api import DEAD_LETTER, Content
from queues.formats.limits import MAX_DELAY, MAX_KEY, MAX_PRIORITY
from queues.formats.texts import DEEPEST, json_text, shown, storable

#: The key of AMQP's other properties in the headers column.
OWN = "kombu"
LOWEST_PRIORITY = 0
#: AMQP's highest; above 100 none is higher here.
OCTET = 255
#: The store takes a time to live of 0 as no limit.
SHORTEST = 0.001
TRANSIENT, PERSISTENT = 1, 2
#: kombu's encoder and decoder, made once: `kombu.utils.json` makes one for each text.
ENCODER = kombu_json.JSONEncoder(allow_nan=False)
DECODER = json.JSONDecoder(object_hook=kombu_json.object_hook)
#: Types of values that survive JSON unchanged.
UNCHANGED = frozenset((str, int, float, bool, type(None)))
#: Headers that Celery makes of a task's arguments for people to read.
DESCRIPTIVE = ("argsrepr", "kwargsrepr", "shadow", "origin")
NUL_OR_SURROGATE = re.compile(r"(?<!\\)(?:\\\\)*\\u(?:0000|d[89a-f][0-9a-f]{2})", re.IGNORECASE)

#: The type and encoding of bodies, and the properties of a message, where the header ``kombu`` does not say otherwise.
JSON = "application/json"
BINARY = ("binary", "ascii-8bit", None)
BODY = (JSON, "utf-8")
PROPERTIES = {"delivery_mode": PERSISTENT, "priority": LOWEST_PRIORITY}

CONTENTS: dict[int | None, tuple[str, str]] = {
    None: ("application/data", "binary"),
    Content.CELERY: BODY,
    Content.MSGPACK: ("application/x-msgpack", "binary"),
    Content.JSON: BODY,
    # No serializer's: the reader gets bytes, never a task or a command.
    Content.LETTER: ("application/vnd.fivewire.letter+json", "utf-8"),
}


class MessageRow(NamedTuple):
    """A message to store. Times are seconds from now; `ttl` None is the queue's own."""

    queue: str
    payload: bytes
    headers: str
    key: str | None = None
    delay: float = 0.0
    ttl: float | None = None
    priority: int = 0
    content: int = Content.CELERY
    #: Whether the sender wants an error if the queue does not exist. Replies, for example, may come too late.
    durable: bool = True

    def without_key(self) -> MessageRow:
        """The same, for a queue in which the key is taken."""
        return self._replace(key=None)


class Routed(NamedTuple):
    """A message on its way to the store: a row for each queue that it may reach, and its properties of AMQP."""

    message: dict[str, Any]
    exchange: str
    routing_key: str
    mandatory: bool
    rows: list[MessageRow]


class Message(BaseMessage):
    """A message as kombu's consumers get it."""

    def _decode(self) -> Any:
        """kombu's own, but for the usual serializer: a worker reads each task's body to see which protocol it has."""
        if self.content_type == JSON and JSON in (self.accept or ()) and registry._decoders[JSON] is kombu_json.loads:
            with contextlib.suppress(ValueError, TypeError, AttributeError):  # kombu says what is wrong
                return DECODER.decode(self.body.decode())
        return super()._decode()  # type: ignore[no-untyped-call]


class Unreadable(ValueError):
    """A stored message is not given to a consumer; the text says why."""


def to_row(queue: str, message: dict[str, Any], exchange: str, routing_key: str) -> MessageRow:
    """The stored form of a message that `Channel.prepare_message` made. Raises Unstorable."""
    headers, properties = message["headers"] or {}, message["properties"]
    own: dict[str, Any] = {"routing_key": routing_key, "properties": _unusual(properties)}
    if exchange:
        own["exchange"] = exchange
    if (body := (message["content-type"], message["content-encoding"])) != BODY:
        own["content_type"], own["content_encoding"] = body
    if DEAD_LETTER in headers:
        own["headers"] = {DEAD_LETTER: headers[DEAD_LETTER]}
        headers = {name: value for name, value in headers.items() if name != DEAD_LETTER}
    delay, priority = _seconds_until(headers.get("eta")), _priority(properties.get("priority"))
    return MessageRow(
        queue,
        _payload(message["body"], message["content-encoding"]),
        _json(headers | {OWN: own}),
        _key(headers.get("id")),
        delay,
        _expiration(properties.get("expiration")),
        priority,
        Content.CELERY,
        properties.get("delivery_mode") != TRANSIENT,
    )


def from_row(
    payload: bytes, headers: Mapping[str, Any] | None, content: int | None, attempts: int, foreign: bool,
    channel: Any, tag: int | str, consumer: str,
) -> Message:  # fmt: skip
    """A stored message for a consumer of a channel; `tag` is the one of the delivery, `consumer` the consumer's.

    Raises Unreadable for one that no Celery client has published, unless the consumer takes `foreign` ones.
    """
    if content != Content.CELERY and not foreign:
        raise Unreadable("it was not published by a Celery client")
    own = (headers or {}).get(OWN)
    own = own if isinstance(own, dict) else {}
    kept = own.get("headers")
    headers = {**(kept if isinstance(kept, dict) else {}), **(headers or {})}  # Celery writes to it
    headers.pop(OWN, None)
    for name, value in headers.items():
        if type(value) not in UNCHANGED:
            headers[name] = _revived(value)
    content_type, encoding = CONTENTS[content]
    encoding = own.get("content_encoding", encoding)
    properties = PROPERTIES | (own.get("properties") or {})
    return Message(  # type: ignore[no-untyped-call]
        body=payload if payload or encoding in BINARY else "",  # kombu decodes no empty body
        content_type=own.get("content_type", content_type),
        content_encoding=encoding,
        headers=headers,
        properties=properties,
        delivery_info={
            "exchange": own.get("exchange", ""),
            "routing_key": own.get("routing_key"),
            "priority": properties["priority"],
            "redelivered": attempts > 0,
            "consumer_tag": consumer,
        },
        postencode="utf-8" if payload else None,
        channel=channel,
        delivery_tag=tag,
    )


def _unusual(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The properties that differ from the defaults."""
    kept = {name: value for name, value in properties.items() if name not in ("delivery_info", "delivery_tag")}
    for name, usual in PROPERTIES.items():
        if kept.get(name) == usual:
            del kept[name]
    return kept


def _payload(body: Any, encoding: str | None) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        raise UnstorableTask(f"The body is of type {type(body).__name__}; without a serializer it is text or bytes.")
    try:
        return body.encode("utf-8" if encoding in BINARY else encoding)
    except (UnicodeEncodeError, LookupError) as error:
        raise UnstorableTask(f"The body cannot be encoded: {error}.") from error


def _json(headers: dict[str, Any]) -> str:
    try:
        text: str = ENCODER.encode(headers)
        if text.count("[") + text.count("{") <= DEEPEST and not ("\\u" in text and NUL_OR_SURROGATE.search(text)):
            return text
        # A pair of surrogates is a character; a single half cannot be stored.
        values = json.loads(text)
        values |= {name: storable(values[name]) for name in DESCRIPTIVE if isinstance(values.get(name), str)}
        return json_text(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnstorableTask(f"The headers cannot be stored as JSON: {error}.") from error


def _revived(value: Any) -> Any:
    """A header's value as it was: kombu writes what JSON has no form for as an object."""
    if isinstance(value, dict):
        return kombu_json.object_hook({name: _revived(member) for name, member in value.items()})
    if isinstance(value, list):
        return [_revived(member) for member in value]
    return value


def _key(task: Any) -> str | None:
    if isinstance(task, str) and 0 < len(task) <= MAX_KEY // 4 and "\0" not in task:
        return task
    return None


def _priority(priority: Any) -> int:
    if priority is None:
        return LOWEST_PRIORITY
    if not isinstance(priority, int) or not 0 <= priority <= OCTET:
        raise UnstorableTask(f"The priority is {shown(priority)}; it must be a whole number from 0 to {OCTET}.")
    return min(int(priority), MAX_PRIORITY)


def _expiration(milliseconds: Any) -> float | None:
    if milliseconds is None:
        return None
    try:
        seconds = float(milliseconds) / 1000
        if not 0 <= seconds < math.inf:
            raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        raise UnstorableTask(f"The expiration is {shown(milliseconds)}; it must be milliseconds.") from error
    return max(SHORTEST, min(seconds, MAX_DELAY))


def _seconds_until(eta: Any) -> float:
    """Seconds from now to a task's ETA, as Celery writes it; 0 when there is none or it is over."""
    if not isinstance(eta, str | datetime):
        return 0.0
    try:
        moment = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    except ValueError:
        return 0.0  # an invalid time: the worker rejects it
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())
