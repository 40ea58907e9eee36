"""Which addresses each protocol may reach, and for what: one table, asked at every entry.

The table says what a protocol is able to do at all. An API key narrows it by patterns (`covers`). Pure: neither Django
nor asyncio.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

#: Names of queues that begin so are the system's.
SYSTEM_PREFIX: Final = "_"
#: The queue of Overhop's own, which its clients may look at.
SYSTEM_QUEUE: Final = "_system"
#: Queues of peers' mailboxes.
MAILBOX_PREFIX: Final = "_peer/"
#: Queues behind subscriptions of topics.
SUBSCRIPTION_PREFIX: Final = "_subscription/"
#: The queue of the site's own tasks.
SITE_TASKS: Final = "fivewire"
#: Celery's own default queue.
CELERY_DEFAULT: Final = "celery"
#: Beginnings and ends of the names that Celery and kombu choose: events, direct queues of workers, replies, pidboxes.
CELERY_PREFIXES: Final = ("celery@", "celeryev.", "amq.gen-")
CELERY_SUFFIXES: Final = (".pidbox",)
#: Words of which a pattern must have one in full to cover a name of Celery's.
CELERY_WORDS: Final = ("celery", "pidbox", "amq.gen-")

#: A set of characters in a pattern, which spells no word.
CLASS: Final = re.compile(r"\[!?\]?[^\]]*\]")


class Protocol(StrEnum):
    """The ways in."""

    OVERHOP = "overhop"
    BLIPMQ = "blipmq"
    SSPQ = "sspq"
    PEERBUS = "peerbus"
    #: The durable queues of a Hydra node.
    HYDRA = "hydra"
    #: The transport of kombu.
    CELERY = "celery"
    #: `queues.api` and the tasks backend.
    DJANGO = "django"
    #: The admin and the shell.
    OPERATOR = "operator"
    #: A route: it consumes from its source and publishes to its target.
    ROUTE = "route"


class AddressKind(StrEnum):
    """Kinds of addresses."""

    QUEUE = "queue"
    TOPIC = "topic"
    PEER = "peer"
    #: A queue or pidbox of Celery's, by its name.
    CELERY = "celery"
    #: Overhop's `_system`.
    SYSTEM = "system"
    MAILBOX = "mailbox"
    SUBSCRIPTION = "subscription"
    #: Any other queue that begins with `_`.
    RESERVED = "reserved"
    #: A topic that begins with `_`.
    RESERVED_TOPIC = "reserved topic"


class Operation(StrEnum):
    """A kind of access."""

    #: That it exists, its policy and counts.
    SEE = "see"
    #: Its messages, which stay.
    READ = "read"
    PUBLISH = "publish"
    CONSUME = "consume"
    CREATE = "create"
    #: Pause, purge, delete, remove messages.
    MANAGE = "manage"


_SEE, _READ, _PUBLISH = Operation.SEE, Operation.READ, Operation.PUBLISH
_CONSUME, _CREATE, _MANAGE = Operation.CONSUME, Operation.CREATE, Operation.MANAGE
_ALL = frozenset(Operation)
_OPERATE = frozenset({_SEE, _READ, _MANAGE})
_BOTH = frozenset({_PUBLISH, _CONSUME})

#: All others are refused.
REACH: Final[Mapping[Protocol, Mapping[AddressKind, frozenset[Operation]]]] = MappingProxyType(
    {
        Protocol.OVERHOP: {
            AddressKind.QUEUE: _ALL,
            AddressKind.SYSTEM: frozenset({_SEE, _READ, _CONSUME}),
            # Only a Celery client publishes there: the message would be executed.
            AddressKind.CELERY: frozenset({_SEE, _READ, _CONSUME, _MANAGE}),
        },
        Protocol.BLIPMQ: {AddressKind.TOPIC: _BOTH, AddressKind.RESERVED_TOPIC: _BOTH},
        Protocol.SSPQ: {AddressKind.QUEUE: _BOTH},
        Protocol.PEERBUS: {
            AddressKind.QUEUE: frozenset({_PUBLISH}),
            AddressKind.TOPIC: frozenset({_PUBLISH}),
            AddressKind.PEER: _BOTH,
        },
        Protocol.HYDRA: {AddressKind.QUEUE: _BOTH},
        Protocol.CELERY: {AddressKind.QUEUE: _ALL, AddressKind.CELERY: _ALL},
        Protocol.DJANGO: {
            AddressKind.QUEUE: _ALL,
            AddressKind.CELERY: _ALL,
            AddressKind.TOPIC: frozenset({_PUBLISH}),
            AddressKind.RESERVED_TOPIC: frozenset({_PUBLISH}),
        },
        Protocol.OPERATOR: {
            AddressKind.QUEUE: _ALL,
            AddressKind.CELERY: _ALL,
            AddressKind.TOPIC: _OPERATE | {_PUBLISH},
            AddressKind.RESERVED_TOPIC: _OPERATE | {_PUBLISH},
            AddressKind.PEER: _OPERATE,
            AddressKind.SYSTEM: _OPERATE | {_PUBLISH},
            # The gateway would sign a message published there; a route to peer:NAME is the way.
            AddressKind.MAILBOX: _OPERATE,
            AddressKind.SUBSCRIPTION: _OPERATE | {_PUBLISH},
            AddressKind.RESERVED: _OPERATE | {_PUBLISH},
        },
        Protocol.ROUTE: {
            AddressKind.QUEUE: _BOTH,
            AddressKind.CELERY: _BOTH,
            AddressKind.TOPIC: _BOTH,
            AddressKind.RESERVED_TOPIC: _BOTH,
            AddressKind.PEER: frozenset({_PUBLISH}),
        },
    }
)

#: The lists of an API key of which one must cover the name.
LISTS: Final[Mapping[Operation, tuple[str, ...]]] = MappingProxyType(
    {
        _SEE: ("publish", "consume", "manage"),
        _READ: ("consume",),
        _PUBLISH: ("publish",),
        _CONSUME: ("consume",),
        _CREATE: ("manage",),
        _MANAGE: ("manage",),
    }
)


def kind_of(address: str, name: str) -> AddressKind:
    """The kind of an address: "queue", "topic" or "peer" and a name. Raises ValueError for another word."""
    if address == "topic":
        return AddressKind.RESERVED_TOPIC if name.startswith(SYSTEM_PREFIX) else AddressKind.TOPIC
    if address == "peer":
        return AddressKind.PEER
    if address != "queue":
        raise ValueError(f"{address!r} is no kind of address")
    if not name.startswith(SYSTEM_PREFIX):
        return AddressKind.CELERY if is_celery(name) else AddressKind.QUEUE
    if name == SYSTEM_QUEUE:
        return AddressKind.SYSTEM
    if name.startswith(MAILBOX_PREFIX):
        return AddressKind.MAILBOX
    return AddressKind.SUBSCRIPTION if name.startswith(SUBSCRIPTION_PREFIX) else AddressKind.RESERVED


def is_celery(name: str) -> bool:
    """Whether a queue's name is one that Celery, kombu or the site's own tasks use."""
    return name in (SITE_TASKS, CELERY_DEFAULT) or name.startswith(CELERY_PREFIXES) or name.endswith(CELERY_SUFFIXES)


def is_allowed(protocol: Protocol, operation: Operation, address: str, name: str) -> bool:
    """Whether the table allows it. Raises ValueError for an address that is no "queue", "topic" or "peer"."""
    return operation in REACH[protocol].get(kind_of(address, name), ())


def covers(patterns: Iterable[str], address: str, name: str) -> bool:
    """Whether one of an API key's patterns covers an address; a peer's is ``peer:NAME``.

    A queue of Celery's is covered only by its own name or by a pattern that has one of `CELERY_WORDS` in full.
    """
    text = f"peer:{name}" if address == "peer" else name
    found = (pattern for pattern in patterns if fnmatchcase(text, pattern))
    if kind_of(address, name) is not AddressKind.CELERY:
        return any(True for _ in found)
    words = [word for word in CELERY_WORDS if word in name]
    return any(pattern == name or any(word in CLASS.sub("*", pattern) for word in words) for pattern in found)
