"""The notifications that nodes and operators send each other: their types, their texts and the one reader of both.

The channel is open to every role that may connect to the database, to speak and to listen. So a text is a claim, not a
fact: `parse` takes it only with the members, types and ranges of its type, a handler acts only on queues that its node
knows already, and only looks into the tables. Instructions are more than a hint: their texts go through a table that
other roles can neither write nor read, and a notification says only that there is one.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

CHANNEL = "fivewire"
#: Bytes of one text: PostgreSQL refuses 8,000 and more.
MAX_BYTES = 7900
#: Seconds in which messages may follow those of a notification without one of their own.
FOLLOWING = 0.005
#: Characters of an operator's name that are passed on.
MAX_NAME = 200

_INT = (1 << 31) - 1
_BIGINT = (1 << 63) - 1

T = TypeVar("T")


class Malformed(ValueError):
    """The text is not a notification; the message says why."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Messages became ready: queues, and for each an id below which none did. If they are `followed`, others may have
    become so within :data:`FOLLOWING` seconds of the notification, and are not announced."""

    queues: dict[int, int]
    followed: bool = False

    def texts(self) -> Iterator[str]:
        end = ', "followed": true}' if self.followed else "}"
        for part in _parts(f'"{queue}": {first}' for queue, first in self.queues.items()):
            yield f'{{"ready": {{{part}}}{end}'


@dataclass(frozen=True, slots=True)
class Dead:
    """Dead letters came to these queues, or came back."""

    queues: tuple[int, ...]

    def texts(self) -> Iterator[str]:
        for part in _parts(map(str, self.queues)):
            yield f'{{"dead": [{part}]}}'


@dataclass(frozen=True, slots=True)
class InterestChange:
    """A node serves these queues from now on, or (not `on`) no longer."""

    queues: tuple[int, ...]
    node: int
    on: bool


@dataclass(frozen=True, slots=True)
class Gone:
    """A node has ended."""

    node: int

    def texts(self) -> Iterator[str]:
        yield json.dumps({"gone": self.node})


@dataclass(frozen=True, slots=True)
class Changed:
    """A row of a table changed: `table` is queue, key, route, subscription, periodic or bulk."""

    table: str
    id: int


@dataclass(frozen=True, slots=True)
class Transient:
    """A QoS 0 message for the subscription with this queue on this node."""

    queue: int
    node: int
    body: bytes

    def texts(self) -> Iterator[str]:
        body = base64.b64encode(self.body).decode("ascii")
        yield json.dumps({"transient": self.queue, "node": self.node, "body": body})


@dataclass(frozen=True, slots=True)
class RemoteAck:
    """A consumer with this API key acknowledged deliveries that another node may have made."""

    queue: int
    tags: tuple[int, ...]
    consumer: int | None

    def texts(self) -> Iterator[str]:
        for part in _parts(map(str, self.tags)):
            yield f'{{"ack": {self.queue}, "tags": [{part}], "consumer": {json.dumps(self.consumer)}}}'


@dataclass(frozen=True, slots=True)
class Purge:
    """An operator purged a queue of the messages with ids up to `high`, without their priorities."""

    queue: int
    by: str
    high: int

    def texts(self) -> Iterator[str]:
        yield json.dumps({"purge": self.queue, "by": self.by[:MAX_NAME], "high": self.high})


@dataclass(frozen=True, slots=True)
class MailboxLost:
    """A mailbox was given to this connection of a node; None: an operator ended this one, which had it."""

    queue: int
    connection: int
    node: int | None


@dataclass(frozen=True, slots=True)
class Disconnected:
    """An operator ends client connections of a node, by their numbers."""

    node: int
    connections: tuple[int, ...]

    def texts(self) -> Iterator[str]:
        for part in _parts(map(str, self.connections)):
            yield f'{{"disconnect": [{part}], "node": {self.node}}}'


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """Other consumers than before are the active ones of these queues."""

    queues: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """An operator looks at the connections of clients: nodes tell for a while what these do."""

    def texts(self) -> Iterator[str]:
        yield '{"watched": "connections"}'


@dataclass(frozen=True, slots=True)
class Instructed:
    """There are instructions for nodes, the earliest with this id."""

    first: int


Hint = Ready | Dead | InterestChange | Gone | Changed | ActiveChanged | Instructed | Watched
Instruction = Transient | RemoteAck | Purge | MailboxLost | Disconnected
Notification = Hint | Instruction
#: Types sent from Python. SQL functions and triggers send the others.
SendableHint = Ready | Dead | Gone | Watched
SendableInstruction = Transient | RemoteAck | Purge | Disconnected
Sendable = SendableHint | SendableInstruction


def recipient(instruction: SendableInstruction) -> int | None:
    """The node that an instruction is for; None: every node."""
    return instruction.node if isinstance(instruction, Transient | Disconnected) else None


def parse(text: str) -> Hint:
    """Read a notification. Its type is its first member's name. Raises Malformed, also for an instruction."""
    return _parse(text, _HINTS)


def parse_instruction(text: str) -> Instruction:
    """Read an instruction as it was in the table. Raises Malformed."""
    return _parse(text, _INSTRUCTIONS)


def _parse(text: str, readers: Mapping[str, Callable[[dict[str, Any]], T]]) -> T:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {type(error).__name__}") from None
    if not isinstance(message, dict) or not message:
        raise Malformed("no JSON object with members")
    word = next(iter(message))
    reader = readers.get(word)
    if reader is None:
        raise Malformed("its type is unknown")
    try:
        return reader(message)
    except KeyError as error:
        raise Malformed(f"{error} is missing") from None


def _parts(items: Iterable[str]) -> Iterator[str]:
    """Join ASCII items into lists that fit into a text beside its other members."""
    part: list[str] = []
    size = 0
    for item in items:
        if part and size + len(item) > MAX_BYTES - 100:
            yield ", ".join(part)
            part, size = [], 0
        part.append(item)
        size += len(item) + 2
    if part:
        yield ", ".join(part)


def _int(value: Any, lowest: int, highest: int) -> int:
    if type(value) is not int or not lowest <= value <= highest:
        raise Malformed("a number is no integer or out of range")
    return value


def _id(value: Any) -> int:
    return _int(value, 0, _INT)


def _bigint(value: Any) -> int:
    return _int(value, -_BIGINT, _BIGINT)


def _optional(value: Any) -> int | None:
    return None if value is None else _bigint(value)


def _list(value: Any, item: Callable[[Any], int]) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise Malformed("a member is no list")
    return tuple(map(item, value))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed("a member is no text")
    return value


def _key(value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 10):
        raise Malformed("a queue is no number")
    return _id(int(value))


def _ready(message: dict[str, Any]) -> Ready:
    queues = message["ready"]
    if not isinstance(queues, dict):
        raise Malformed("ready is no object")
    return Ready({_key(queue): _bigint(first) for queue, first in queues.items()}, message.get("followed") is True)


def _transient(message: dict[str, Any]) -> Transient:
    try:
        body = base64.b64decode(_text(message["body"]), validate=True)
    except (binascii.Error, ValueError):
        raise Malformed("body is no base64") from None
    return Transient(_id(message["transient"]), _id(message["node"]), body)


def _interest(word: str, on: bool) -> Callable[[dict[str, Any]], InterestChange]:
    return lambda message: InterestChange(_list(message[word], _id), _id(message["node"]), on)


def _changed(table: str) -> Callable[[dict[str, Any]], Changed]:
    return lambda message: Changed(table, _bigint(message[table]))


def _watched(message: dict[str, Any]) -> Watched:
    if message["watched"] != "connections":
        raise Malformed("what is looked at is unknown")
    return Watched()


_HINTS: dict[str, Callable[[dict[str, Any]], Hint]] = {
    "ready": _ready,
    "dead": lambda message: Dead(_list(message["dead"], _id)),
    "interest": _interest("interest", True),
    "disinterest": _interest("disinterest", False),
    "gone": lambda message: Gone(_id(message["gone"])),
    "active": lambda message: ActiveChanged(_list(message["active"], _id)),
    "watched": _watched,
    "instructions": lambda message: Instructed(_bigint(message["instructions"])),
    **{table: _changed(table) for table in ("queue", "key", "route", "subscription", "periodic", "bulk")},
}
_INSTRUCTIONS: dict[str, Callable[[dict[str, Any]], Instruction]] = {
    "transient": _transient,
    "ack": lambda message: RemoteAck(
        _id(message["ack"]), _list(message["tags"], _bigint), _optional(message["consumer"])
    ),
    "purge": lambda message: Purge(
        _id(message["purge"]), _text(message.get("by", ""))[:MAX_NAME], _bigint(message["high"])
    ),
    "mailbox": lambda message: MailboxLost(
        _id(message["mailbox"]), _bigint(message["connection"]), _id(message["node"])
    ),
    "evicted": lambda message: MailboxLost(_id(message["evicted"]), _bigint(message["connection"]), None),
    "disconnect": lambda message: Disconnected(_id(message["node"]), _list(message["disconnect"], _bigint)),
}
