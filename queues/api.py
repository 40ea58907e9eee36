"""Publishing from Django code, on the caller's own database connection.

Inside ``transaction.atomic()`` a message belongs to that transaction: it is delivered if and when it commits.
Outside it is a transaction of its own, durable when `publish` returns::

    from queues.api import publish

    with transaction.atomic():
        order.save()
        publish("orders", json.dumps({"order": order.pk}).encode(), key=f"order-{order.pk}")

Where a message goes is decided by the statement that stores it: a subscription or route that is committed later does
not see it. A queue's maximum length is exact for a publish outside a transaction; inside one the queue is not locked
until the commit, so transactions that run at the same time may exceed it by what each of them publishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from queues.config.settings import settings
from queues.ends import ended
from queues.engine.api import DEAD_LETTER, QueueFull, QueueNotFound, statement_parts
from queues.errors import BrokerError
from queues.formats.contents import NoSuchContent, canonical_msgpack
from queues.formats.limits import MAX_ATTEMPTS, MAX_DELAY, MAX_KEY, MAX_PRIORITY
from queues.formats.texts import is_storable, json_text, shown
from queues.models import Content
from queues.permissions.addresses import SYSTEMS, InvalidAddress, parse_address
from queues.permissions.rules import Operation, Protocol, is_allowed
from queues.store.queries import announce_ready, drop_oldest, query

__all__ = ["InvalidAddress", "InvalidMessage", "Outgoing", "QueueFull", "QueueNotFound", "publish", "publish_many"]

#: Bytes of all headers as JSON.
MAX_HEADERS = 64 * 1024

Seconds = float | timedelta


class InvalidMessage(BrokerError, ValueError):
    """A message cannot be stored as it is; the text says why."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for `publish_many` that has more than a body: `Outgoing(b"…", headers={…}, delay=5)`.

    The arguments are those of `publish`.
    """

    body: bytes | bytearray | memoryview
    _: KW_ONLY
    headers: Mapping[str, Any] | None = None
    delay: Seconds | None = None
    ttl: Seconds | None = None
    key: str | None = None
    max_attempts: int | None = None
    priority: int = 0
    content_type: str | None = None


Row = tuple[bytes, str | None, str | None, float, float | None, int | None, int, int | None]


def publish(
    address: str,
    body: bytes | bytearray | memoryview,
    *,
    headers: Mapping[str, Any] | None = None,
    delay: Seconds | None = None,
    ttl: Seconds | None = None,
    key: str | None = None,
    max_attempts: int | None = None,
    priority: int = 0,
    content_type: str | None = None,
    using: str = DEFAULT_DB_ALIAS,
) -> int | None:
    """Publish one message to "orders", "queue:orders" or "topic:prices".

    `headers` is a dict that JSON can express. `delay` and `ttl` (time to live, counted from the end of the delay;
    default: the queue's) are seconds or timedeltas. `key` is unique within a queue as long as a message with it is
    stored there: publishing it again stores nothing and returns the id of the message that has it. `max_attempts`
    overrides the queue's number of deliveries; 0 is without limit. Of higher `priority` (-100 to 100) means delivered
    sooner; within one, first in is first out. `content_type` is "application/json" or "application/msgpack" for a
    body that consumers of protocols with values of their own (Overhop) get as a value; others get bytes.

    Returns the id by which the message can be found for ever, the first one if it went to several queues, or None
    when the topic has no subscription: then it is dropped, as in any publish/subscribe system.

    Raises QueueNotFound, QueueFull, InvalidAddress, InvalidMessage, or TypeError for a body that is not bytes. None
    of these spoils the caller's transaction.
    """
    message = Outgoing(
        body=body, headers=headers, delay=delay, ttl=ttl, key=key, max_attempts=max_attempts, priority=priority,
        content_type=content_type,
    )  # fmt: skip
    return publish_many(address, [message], using=using)[0]


def publish_many(
    address: str, messages: Iterable[Outgoing | bytes | bytearray | memoryview], *, using: str = DEFAULT_DB_ALIAS
) -> list[int | None]:
    """Publish several messages to one address, in order, all or none: bodies, or `Outgoing` for those that need more::

        publish_many("orders", [b"order 7", Outgoing(b"order 8", headers={"by": "the shop"}, delay=60)])

    Returns and raises what `publish` does, with one id a message. One statement stores thousands, and nodes are told
    once for each: much cheaper than as many calls of `publish`.
    """
    kind, name = parse_address(address)
    if not is_allowed(Protocol.DJANGO, Operation.PUBLISH, kind, name):
        raise InvalidAddress(address, SYSTEMS)
    rows = [_row(one if isinstance(one, Outgoing) else Outgoing(one)) for one in _several(messages)]
    exact = not connections[using].in_atomic_block
    steps = list(statement_parts(rows, lambda row: len(row[0])))
    ids: list[int | None] = []
    ready: dict[int, int] = {}
    error: Exception | None = None
    # The savepoint takes back what was stored when the rest is refused, without spoiling the caller's transaction.
    in_steps = len(steps) > 1 or (len(rows) > 1 and any(row[1] is not None for row in rows))
    with transaction.atomic(using=using, savepoint=in_steps):
        for part in steps:
            stored, error = _store(kind, name, part, exact, using, ready)
            if error is not None:
                if in_steps:
                    transaction.set_rollback(True, using=using)
                break
            ids += stored
        if error is None:
            announce_ready(using, ready)
    if error is not None:
        ended("rejected", len(rows))
        raise error
    ended("unheard", sum(id is None for id in ids))
    return ids


def _several(messages: object) -> Iterable[Any]:
    """The messages of a list. Raises TypeError for what is one message, or no list of them: a dictionary would be its
    keys, and bytes numbers."""
    if isinstance(messages, Outgoing | str | bytes | bytearray | memoryview | Mapping):
        raise TypeError(
            f"publish_many takes a list of bodies or Outgoing, not {type(messages).__name__}; for one message there is "
            "publish"
        )
    if not isinstance(messages, Iterable):
        raise TypeError(f"publish_many takes a list of bodies or Outgoing, not {type(messages).__name__}")
    return messages


def _store(
    kind: str, name: str, rows: Sequence[Row], exact: bool, using: str, ready: dict[int, int]
) -> tuple[list[int | None], Exception | None]:
    """Store some rows: an id for each, or the reason why none was stored. Adds to `ready`, which is announced."""
    bodies, keys, headers, delays, ttls, attempts, priorities, contents = (
        list(column) for column in zip(*rows, strict=True)
    )
    [(exists, reached, full, dropping, stored, new, _)] = query(
        "publish_routed", using, kind=kind, name=name, exact=exact, bodies=bodies, keys=keys, headers=headers,
        delays=delays, ttls=ttls, attempts=attempts, priorities=priorities, contents=contents,
    )  # fmt: skip
    if not exists:
        return [], QueueNotFound(f"{name!r}; create it with: manage.py queue create {name}")
    if full:
        return [], QueueFull(", ".join(repr(queue) for queue in full))
    for queue, first in (new or {}).items():
        ready[int(queue)] = min(first, ready.get(int(queue), first))
    if not reached:
        return [None] * len(rows), None
    for queue in dropping or ():
        _make_room(queue, using)
    ids: list[int | None] = list(stored)
    if None in ids:
        return _find_taken(kind, name, rows, ids, reached, exact, using, ready)
    return ids, None


def _find_taken(
    kind: str, name: str, rows: Sequence[Row], ids: list[int | None], reached: list[int], exact: bool, using: str,
    ready: dict[int, int],
) -> tuple[list[int | None], Exception | None]:  # fmt: skip
    """Fill in the ids of the messages whose keys were taken. One that has just left is no reason not to publish."""
    taken = sorted({row[1] for row, id in zip(rows, ids, strict=True) if id is None and row[1] is not None})
    known: dict[str | None, int] = dict(query("find_keys", using, queues=reached, keys=taken))
    ids = [known.get(row[1]) if id is None else id for row, id in zip(rows, ids, strict=True)]
    free = [n for n, id in enumerate(ids) if id is None]
    if not free:
        return ids, None
    again, error = _store(kind, name, [rows[n] for n in free], exact, using, ready)
    for n, id in zip(free, again, strict=False):
        ids[n] = id
    return ids, error


def _make_room(queue: int, using: str) -> None:
    """Drop the oldest messages of a queue that has more than it may."""
    [(room,)] = query("room", using, queue=queue)
    if room is not None and room < 0:
        drop_oldest(queue, -room, using)


def _row(message: Outgoing) -> Row:
    """A message as the statement takes it. Raises TypeError or InvalidMessage."""
    attempts = message.max_attempts
    if attempts is not None and (
        not isinstance(attempts, int) or isinstance(attempts, bool) or not 0 <= attempts <= MAX_ATTEMPTS
    ):
        raise InvalidMessage(f"max_attempts is {shown(attempts)}; it must be a whole number from 0 to {MAX_ATTEMPTS}.")
    ttl = None if message.ttl is None else _seconds("ttl", message.ttl)
    if ttl == 0:
        raise InvalidMessage("ttl is 0; it must be more, or None for the queue's own.")
    delay = 0.0 if message.delay is None else _seconds("delay", message.delay)
    body, content = _body(message.body), _content(message.content_type)
    if content == Content.MSGPACK:
        try:
            body = canonical_msgpack(body)
        except NoSuchContent as error:
            raise InvalidMessage(f"The body cannot go by {message.content_type}: {error}.") from error
    return (
        body, _key(message.key), _headers(message.headers), delay, ttl, attempts, _priority(message.priority), content,
    )  # fmt: skip


def _priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > MAX_PRIORITY:
        raise InvalidMessage(
            f"priority is {shown(priority)}; it must be a whole number from -{MAX_PRIORITY} to {MAX_PRIORITY}."
        )
    return priority


def _content(content_type: str | None) -> int | None:
    if content_type is None:
        return None
    for content in Content:
        if content.label == content_type:
            return int(content)
    known = ", ".join(content.label for content in Content)
    raise InvalidMessage(f"content_type is {shown(content_type)}; it must be one of {known}, or None for bytes.")


def _body(body: object) -> bytes:
    if isinstance(body, str):
        raise TypeError("a message's body is bytes, not str; encode it: body.encode()")
    if not isinstance(body, bytes | bytearray | memoryview):
        raise TypeError(
            f"a message's body is bytes, not {type(body).__name__}; turn it into bytes first, "
            "for example with json.dumps(body).encode()"
        )
    data = bytes(body)
    if len(data) > settings.BROKER_MAX_FRAME:
        raise InvalidMessage(f"The body has {len(data)} bytes; BROKER_MAX_FRAME allows {settings.BROKER_MAX_FRAME}.")
    return data


def _key(key: object) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str):
        raise TypeError(f"a message's key is a str, not {type(key).__name__}")
    if not is_storable(key):
        raise InvalidMessage("The key has a NUL character or is no Unicode text, and cannot be stored.")
    if not 0 < (size := len(key.encode())) <= MAX_KEY:
        raise InvalidMessage(f"The key has {size} bytes as UTF-8; it must have 1 to {MAX_KEY}.")
    return key


def _headers(headers: object) -> str | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise TypeError("a message's headers are a dict with str keys")
    if DEAD_LETTER in headers:
        raise InvalidMessage(f"The header {DEAD_LETTER} is the broker's own: publish the message without it.")
    try:
        text = json_text(dict(headers))
    except (TypeError, ValueError) as error:
        raise InvalidMessage(f"The headers cannot be written as JSON: {error}.") from error
    if (size := len(text.encode())) > MAX_HEADERS:
        raise InvalidMessage(f"The headers have {size} bytes as JSON; at most {MAX_HEADERS} are allowed.")
    return text


def _seconds(name: str, value: object) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= value <= MAX_DELAY:
        raise InvalidMessage(f"{name} is {shown(value)} seconds; it must be from 0 to {MAX_DELAY:.0f}.")
    return float(value)
