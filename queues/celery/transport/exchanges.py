"""Exchanges: what leads from a routing key to queues. They are their bindings, which all processes share."""

from __future__ import annotations

import re
from functools import lru_cache

from kombu.exceptions import ChannelError
from kombu.transport.virtual.exchange import TopicExchange

from queues.celery.transport.declaring import Binding, Declared
from queues.celery.transport.errors import NoSuchQueue
from queues.celery.transport.store_connection import StoreConnection

TYPES = ("direct", "topic", "fanout")


class Exchanges:
    """The exchanges of a connection. A type is declared before anything is bound, as kombu always does."""

    def __init__(self, database: StoreConnection, declared: Declared) -> None:
        self._database = database
        self._declared = declared
        self._types: dict[str, str] = {}

    def declare(self, exchange: str, type: str, passive: bool) -> None:
        """Note an exchange's type. Raises ChannelError for one that cannot be, or does not exist and is to."""
        if type not in TYPES:
            raise ChannelError(f"COMMAND_INVALID - no exchange type {type!r}: it is one of {', '.join(TYPES)}")
        known = self._types.get(exchange) or self._type_of_bindings(exchange)
        if passive:
            if known is None:
                raise ChannelError(f"NOT_FOUND - no exchange {exchange!r}", (50, 10), "Channel.exchange_declare", 404)
            return
        if known not in (None, type):
            raise ChannelError(
                f"PRECONDITION_FAILED - the exchange {exchange!r} is of type {known}, not {type}",
                (50, 10), "Channel.exchange_declare", 406,
            )  # fmt: skip
        self._types[exchange] = type

    def _type_of_bindings(self, exchange: str) -> str | None:
        return next((type for type, _, _ in self._database.query("routed", exchange=exchange, routing_key=None)), None)

    def delete(self, exchange: str) -> None:
        self._types.pop(exchange, None)
        self._declared.forget_exchange(exchange)
        self._database.query("forget_exchange", exchange=exchange)

    def bind(self, queue: str, exchange: str, routing_key: str) -> None:
        """Lead messages with this routing key to a queue. Raises NoSuchQueue."""
        type = self._types.get(exchange) or self._type_of_bindings(exchange) or "direct"
        if not self._database.query("bind", exchange=exchange, type=type, routing_key=routing_key, queue=queue):
            raise NoSuchQueue(queue)
        self._declared.bind(Binding(exchange, type, routing_key, queue))

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        self._declared.unbind(queue, exchange, routing_key)
        self._database.query("unbind", exchange=exchange, routing_key=routing_key, queue=queue)

    def route(self, exchange: str, routing_key: str) -> list[str]:
        """The queues that a message reaches, each once; those deleted since this connection bound them, too."""
        found = self._database.query("routed", exchange=exchange, routing_key=routing_key)
        reached = dict.fromkeys(queue for type, key, queue in found if _matches(type, key, routing_key))
        for binding in self._declared.bindings(exchange):
            if binding.queue not in reached and _matches(binding.type, binding.routing_key, routing_key):
                if self._database.query("plan", name=binding.queue):  # another client has undone the binding
                    self._declared.unbind(binding.queue, exchange, binding.routing_key)
                else:
                    reached[binding.queue] = None  # publishing restores it
        return list(reached)


def _matches(type: str, pattern: str, routing_key: str) -> bool:
    if type == "topic":
        return _compiled(pattern).match(routing_key) is not None
    return type == "fanout" or pattern == routing_key


@lru_cache(1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(TopicExchange(None).key_to_pattern(pattern))
