"""Queues that live as long as they have consumers."""

from __future__ import annotations

from queues.celery.transport.errors import NoSuchQueue
from queues.celery.transport.store_connection import StoreConnection
from queues.ends import ended

#: The first key of the advisory lock that each consumer of a temporary queue holds; the second is the queue's id.
LOCK_CLASS = 74660
#: Seconds that an auto-delete queue stays after its last consumer died without closing.
TIMEOUT = 60.0
#: First key of the advisory lock held by the connection that declared an exclusive queue.
OWNER_CLASS = 74661
#: Default seconds that a temporary queue waits for its first consumer.
UNTOUCHED = 86_400.0


def hold(database: StoreConnection, name: str, queue: int) -> bool:
    """Consume from a temporary queue; returns whether it is deleted with its last consumer. Raises NoSuchQueue."""
    database.query("hold", lock_class=LOCK_CLASS, queue=queue)
    found = database.query("held", queue=queue, patience=TIMEOUT)
    if not found:
        database.query("release", lock_class=LOCK_CLASS, queue=queue)
        raise NoSuchQueue(name, "basic_consume")
    return bool(found[0][0])


def own(database: StoreConnection, queue: int) -> bool:
    """Lock an exclusive queue for this connection; False if another connection has it."""
    return bool(database.query("own", owner_class=OWNER_CLASS, queue=queue)[0][0])


def release(database: StoreConnection, queue: int, auto_delete: bool) -> None:
    """Consume no longer."""
    database.query("release", lock_class=LOCK_CLASS, queue=queue)
    if auto_delete:
        drop(database, "drop", [queue])


def sweep(database: StoreConnection) -> None:
    """Delete temporary queues that had no consumer for too long."""
    [(queues,)] = database.query("sweep", lock_class=LOCK_CLASS)
    if queues:
        drop(database, "drop_unused", queues)


def drop(database: StoreConnection, name: str, queues: list[int]) -> None:
    """Delete those of these queues that nobody uses, by one of the statements for that, with what they hold."""
    [(dropped,)] = database.query(name, lock_class=LOCK_CLASS, queues=queues)
    ended("temporary_queue", dropped)
