"""Exchanges: what leads from a routing key to queues. They are their bindings, which all processes share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from queues.celery.transport.declaring import Binding, Declared
from queues.celery.transport.errors import InvalidName, NoSuchQueue, NotFound, PreconditionFailed, Refused
from queues.celery.transport.store_connection import StoreConnection
from queues.formats.texts import is_storable

logger = logging.getLogger(__name__)

TYPES = ("direct", "topic", "fanout")
#: Exchanges that exist without a declaration, as in AMQP.
PREDECLARED = {f"amq.{type}": type for type in TYPES}
RESERVED = "amq."
#: Bytes of the name of an exchange and of a routing key.
MAX_NAME = 255


class Exchanges:
    """The exchanges of a connection. A type is declared before anything is bound, as kombu always does."""

    def __init__(self, database: StoreConnection, declared: Declared) -> None:
        self._database = database
        self._declared = declared
        self._types: dict[str, str] = dict(PREDECLARED)

    def declare(self, exchange: str, type: str, passive: bool, arguments: Mapping[str, Any] | None = None) -> None:
        """Note an exchange's type. Raises Refused for one that cannot be, or does not exist and is to."""
        check_name(exchange, "exchange_declare")
        known = self._type(exchange)
        if passive:
            if known is None:
                raise NotFound(f"exchange {exchange!r}", "exchange_declare")
            return
        if type not in TYPES:
            problem = f"COMMAND_INVALID - no exchange type {type!r}: it is one of {', '.join(TYPES)}"
            raise Refused(problem, "exchange_declare", 503)
        if known is None and exchange.startswith(RESERVED):
            raise InvalidName(exchange, "names that begin with amq. are reserved", "exchange_declare")
        if known not in (None, type):
            problem = f"the exchange {exchange!r} is of type {known}, not {type}"
            raise PreconditionFailed(problem, "exchange_declare")
        if arguments and exchange not in self._types:
            logger.warning("arguments of the exchange %r have no effect: %s", exchange, ", ".join(sorted(arguments)))
        self._types[exchange] = type

    def _type(self, exchange: str) -> str | None:
        """The type of an exchange; None if no connection has bound anything to it, and this one has not declared it."""
        if (known := self._types.get(exchange)) is not None:
            return known
        return next((type for type, _, _ in self._database.query("routed", exchange=exchange, routing_key=None)), None)

    def delete(self, exchange: str, if_unused: bool = False) -> None:
        """Delete an exchange's bindings; with `if_unused` only if it has none. Raises Refused."""
        check_name(exchange, "exchange_delete")
        if exchange.startswith(RESERVED):
            raise InvalidName(exchange, "it cannot be deleted", "exchange_delete")
        if if_unused and self._database.query("routed", exchange=exchange, routing_key=None):
            raise PreconditionFailed(f"the exchange {exchange!r} is in use", "exchange_delete")
        self._types.pop(exchange, None)
        self._declared.forget_exchange(exchange)
        self._database.query("forget_exchange", exchange=exchange)

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Lead messages with this routing key to a queue. Raises Refused, NoSuchQueue."""
        check_name(exchange, "queue_bind")
        check_name(routing_key, "queue_bind")
        if (type := self._type(exchange)) is None:
            raise NotFound(f"exchange {exchange!r}: nothing is bound to it, and it is not declared here", "queue_bind")
        if not self._database.query("bind", exchange=exchange, type=type, routing_key=routing_key, queue=queue):
            raise NoSuchQueue(queue, "queue_bind")
        self._declared.bind(Binding(exchange, type, routing_key, queue))

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        check_name(exchange, "queue_unbind")
        check_name(routing_key, "queue_unbind")
        self._declared.unbind(queue, exchange, routing_key)
        self._database.query("unbind", exchange=exchange, routing_key=routing_key, queue=queue)

    def route(self, exchange: str, routing_key: str) -> list[str]:
        """The queues that a message reaches, each once, including queues deleted after this connection bound them."""
        check_name(exchange, "basic_publish")
        check_name(routing_key, "basic_publish")
        found = self._database.query("routed", exchange=exchange, routing_key=routing_key)
        reached = dict.fromkeys(queue for type, key, queue in found if _matches(type, key, routing_key))
        for binding in self._declared.bindings(exchange):
            if binding.queue not in reached and _matches(binding.type, binding.routing_key, routing_key):
                if self._database.query("plan", name=binding.queue):  # another client has undone the binding
                    self._declared.unbind(binding.queue, exchange, binding.routing_key)
                else:
                    reached[binding.queue] = None  # publishing restores it
        return list(reached)


def check_name(name: str, method: str) -> None:
    """Raise InvalidName for an invalid exchange or routing key."""
    if not is_storable(name):
        raise InvalidName(name, "it has a NUL character or is no Unicode text, and cannot be stored", method)
    if len(name.encode()) > MAX_NAME:
        raise InvalidName(name, f"it has more than {MAX_NAME} bytes", method)


def _matches(type: str, pattern: str, routing_key: str) -> bool:
    if type == "topic":
        return matches_topic(pattern, routing_key)
    return type == "fanout" or pattern == routing_key


@lru_cache(1024)
def matches_topic(pattern: str, routing_key: str) -> bool:
    """Whether a key fits: ``*`` stands for one word, ``#`` for any number of words and for none."""
    wanted = _words(pattern)
    reached = _past_hashes({0}, wanted)
    for word in _words(routing_key):
        moved = {n if wanted[n] == "#" else n + 1 for n in reached if n < len(wanted) and wanted[n] in ("*", "#", word)}
        reached = _past_hashes(moved, wanted)
    return len(wanted) in reached


def _words(key: str) -> list[str]:
    return key.split(".") if key else []


def _past_hashes(places: set[int], wanted: list[str]) -> set[int]:
    """The places in a pattern that are reached when each ``#`` from there on may stand for no word."""
    for place in tuple(places):
        while place < len(wanted) and wanted[place] == "#":
            place += 1
            places.add(place)
    return places
