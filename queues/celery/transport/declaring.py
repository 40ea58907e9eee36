"""AMQP arguments of queues as policies of the store, and the declarations of a connection."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from queues.celery.transport.envelope import SHORTEST
from queues.celery.transport.errors import InvalidName, PreconditionFailed
from queues.celery.transport.store_connection import StoreConnection
from queues.celery.transport.temporary import UNTOUCHED
from queues.formats.limits import MAX_DELAY
from queues.formats.texts import shown
from queues.permissions.addresses import queue_problem
from queues.permissions.rules import Operation, Protocol

logger = logging.getLogger(__name__)

#: Arguments of queues that are policies here, arguments that need no policy, and the values allowed for some.
OBEYED = {"x-expires", "x-message-ttl", "x-max-length", "x-overflow", "x-single-active-consumer"}
NEEDLESS = {"x-max-priority", "x-queue-type", "x-queue-mode", "x-queue-version"}
VALID: dict[str, Collection[Any]] = {
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-single-active-consumer": (True, False),
    "x-max-priority": range(256),
    "x-queue-type": ("classic", "quorum"),
}
MAX_LENGTH = 2**31 - 1


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

    def has(self, queue: str) -> bool:
        """Whether a queue is made again when it is gone."""
        return queue in self._queues

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
    """The parameters of declare.sql. Raises InvalidName, or PreconditionFailed for an invalid argument.

    ``x-expires``, ``x-message-ttl`` (milliseconds), ``x-max-length``, ``x-overflow`` and ``x-single-active-consumer``
    mean what they do in RabbitMQ.
    A queue that expires, is exclusive or goes with its last consumer is temporary.
    """
    if problem := queue_problem(queue, Protocol.CELERY, Operation.CREATE):
        raise InvalidName(queue, problem, "queue_declare")
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    for name, valid in VALID.items():
        if name in given and given[name] not in valid:
            _refuse(queue, name, given[name])
    expires = _seconds(queue, given, "x-expires", 1)
    if expires is None and (exclusive or auto_delete):
        expires = UNTOUCHED
    max_length = _whole(queue, given, "x-max-length", 1)
    drops = max_length is not None and given.get("x-overflow", "drop-head") == "drop-head"
    return {
        "name": queue,
        "auto_delete": exclusive or auto_delete,
        "expires": expires,
        "ttl": _seconds(queue, given, "x-message-ttl", 0),
        "max_length": None if max_length is None else min(max_length, MAX_LENGTH),
        "overflow": "drop-oldest" if drops else "reject",
        "single_active_consumer": bool(given.get("x-single-active-consumer")),
    }


def without_effect(arguments: Mapping[str, Any] | None) -> list[str]:
    """The arguments that a client may rely on and this store does not obey."""
    return sorted(
        name for name, value in (arguments or {}).items() if value is not None and name not in OBEYED | NEEDLESS
    )


def _seconds(queue: str, given: Mapping[str, Any], name: str, least: int) -> float | None:
    milliseconds = _whole(queue, given, name, least)
    return None if milliseconds is None else max(min(milliseconds, int(MAX_DELAY * 1000)) / 1000, SHORTEST)


def _whole(queue: str, given: Mapping[str, Any], name: str, least: int) -> int | None:
    value = given.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        _refuse(queue, name, value)
    return value


def _refuse(queue: str, name: str, value: Any) -> NoReturn:
    raise PreconditionFailed(f"invalid {name} of the queue {queue!r}: {shown(value)}", "queue_declare")
