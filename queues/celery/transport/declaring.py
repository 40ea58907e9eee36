"""AMQP arguments of queues as policies of the store, and the declarations of a connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from queues.addresses import queue_problem
from queues.celery.transport.errors import InvalidQueueName
from queues.celery.transport.store_connection import StoreConnection
from queues.celery.transport.temporary import UNTOUCHED
from queues.reach import Operation, Protocol

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Binding:
    """A binding from an exchange to a queue."""

    exchange: str
    type: str
    routing_key: str
    queue: str


class Declared:
    """The queues that a connection has declared to stay, and their bindings, so that they can be made again.

    kombu declares a queue once a connection. When an operator deletes it then, publishing would be refused until the
    connection is another.
    """

    def __init__(self) -> None:
        self._queues: dict[str, dict[str, Any]] = {}
        self._bindings: dict[Binding, None] = {}

    def add(self, parameters: dict[str, Any]) -> None:
        """A queue was declared with these parameters of declare.sql; one that is temporary is not noted."""
        if parameters["expires"] is None:
            self._queues[parameters["name"]] = parameters

    def bind(self, binding: Binding) -> None:
        """A queue was bound."""
        if binding.queue in self._queues:
            self._bindings[binding] = None

    def unbind(self, queue: str, exchange: str, routing_key: str) -> None:
        """A binding was undone."""
        for binding in self.bindings(exchange):
            if (binding.queue, binding.routing_key) == (queue, routing_key):
                del self._bindings[binding]

    def forget_exchange(self, exchange: str) -> None:
        """An exchange was deleted."""
        for binding in self.bindings(exchange):
            del self._bindings[binding]

    def bindings(self, exchange: str) -> list[Binding]:
        """The bindings of an exchange."""
        return [binding for binding in self._bindings if binding.exchange == exchange]

    def restore(self, database: StoreConnection, queue: str) -> bool:
        """Make a queue again that is gone, and its bindings; False if it was not declared."""
        parameters = self._queues.get(queue)
        if parameters is None:
            return False
        logger.warning("the queue %r was deleted; it is made again, since there are messages for it", queue)
        with database.transaction():
            database.query("declare", **parameters)
            for binding in tuple(self._bindings):  # a publishing thread may be here
                if binding.queue == queue:
                    database.query("bind", **asdict(binding))
        return True


def declaration(
    queue: str, exclusive: bool, auto_delete: bool, arguments: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The parameters of declare.sql. Raises InvalidQueueName.

    ``x-expires``, ``x-message-ttl`` (milliseconds), ``x-max-length``, ``x-overflow`` and ``x-single-active-consumer``
    mean what they do in RabbitMQ.
    A queue that expires, is exclusive or goes with its last consumer is temporary.
    """
    if problem := queue_problem(queue, Protocol.CELERY, Operation.CREATE):
        raise InvalidQueueName(queue, problem)
    given = arguments or {}
    expires = _seconds(given.get("x-expires"))
    if expires is None and (exclusive or auto_delete):
        expires = UNTOUCHED
    drops = given.get("x-max-length") and not str(given.get("x-overflow", "")).startswith("reject")
    return {
        "name": queue,
        "auto_delete": exclusive or auto_delete,
        "expires": expires,
        "ttl": _seconds(given.get("x-message-ttl")),
        "max_length": given.get("x-max-length") or None,
        "overflow": "drop-oldest" if drops else "reject",
        "single_active_consumer": bool(given.get("x-single-active-consumer")),
    }


def _seconds(milliseconds: Any) -> float | None:
    return None if milliseconds is None else max(float(milliseconds) / 1000, 0.001)
