"""Queues that live as long as they have consumers."""

from __future__ import annotations

from queues.celery.transport.errors import NoSuchQueue
from queues.celery.transport.store_connection import StoreConnection

#: The first key of the advisory lock that each consumer of a temporary queue holds; the second is the queue's id.
LOCK_CLASS = 74660
#: Seconds that a queue which goes with its last consumer stays when that has died without a word.
TIMEOUT = 60.0
#: The same of the lock that the connection which declared an exclusive queue holds.
OWNER_CLASS = 74661
#: Seconds that such a queue waits for its first consumer, if it says nothing itself.
UNTOUCHED = 86_400.0


def hold(database: StoreConnection, name: str, queue: int) -> bool:
    """Consume from a temporary queue; returns whether it is to go with its last consumer. Raises NoSuchQueue."""
    database.query("hold", lock_class=LOCK_CLASS, queue=queue)
    found = database.query("held", queue=queue, patience=TIMEOUT)
    if not found:
        database.query("release", lock_class=LOCK_CLASS, queue=queue)
        raise NoSuchQueue(name, "basic_consume")
    return bool(found[0][0])


def own(database: StoreConnection, queue: int) -> bool:
    """Have a queue for this connection alone; returns whether no other one has it."""
    return bool(database.query("own", owner_class=OWNER_CLASS, queue=queue)[0][0])


def release(database: StoreConnection, queue: int, auto_delete: bool) -> None:
    """Consume no longer."""
    database.query("release", lock_class=LOCK_CLASS, queue=queue)
    if auto_delete:
        database.query("drop", lock_class=LOCK_CLASS, queues=[queue])


def sweep(database: StoreConnection) -> None:
    """Delete those without a consumer for too long: their consumers have died, or have never come."""
    [(queues,)] = database.query("sweep", lock_class=LOCK_CLASS)
    if queues:
        database.query("drop_unused", lock_class=LOCK_CLASS, queues=queues)
