"""Queues that live as long as somebody consumes from them."""

from __future__ import annotations

from queues.celery.transport.errors import NoSuchQueue
from queues.celery.transport.link import Link

#: The first key of the advisory lock that each consumer of a temporary queue holds; the second is the queue's id.
LOCK_CLASS = 74660
#: Seconds that a queue which goes with its last consumer stays when that has died without a word.
PATIENCE = 60.0
#: Seconds that such a queue waits for its first consumer, if it says nothing itself.
UNTOUCHED = 86_400.0


def hold(link: Link, name: str, queue: int) -> bool:
    """Consume from a temporary queue; returns whether it is to go with its last consumer. Raises NoSuchQueue."""
    link.query("hold", lock_class=LOCK_CLASS, queue=queue)
    found = link.query("held", queue=queue, patience=PATIENCE)
    if not found:
        link.query("release", lock_class=LOCK_CLASS, queue=queue)
        raise NoSuchQueue(name)
    return bool(found[0][0])


def release(link: Link, queue: int, auto_delete: bool) -> None:
    """Consume no longer."""
    link.query("release", lock_class=LOCK_CLASS, queue=queue)
    if auto_delete:
        link.query("drop", lock_class=LOCK_CLASS, queues=[queue])


def sweep(link: Link) -> None:
    """Delete those that nobody has consumed from for too long: their consumers have died, or have never come."""
    [(queues,)] = link.query("sweep", lock_class=LOCK_CLASS)
    if queues:
        link.query("drop_unused", lock_class=LOCK_CLASS, queues=queues)
