"""Queues, peers and keys of a benchmark's own in the project's database, removed when it ends, however it ends.

What is made has a random name; nothing else is touched. Only what the database shows to be the benchmark's is removed:
a broker may use another database than this command.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db.models import BinaryField
from django.db.models.functions import Length, Substr

from brokersite.rigs.bench.drivers.blipmq import BlipConnection, BlipMQ
from brokersite.rigs.bench.errors import BenchError
from queues.counts import queue_counts
from queues.engine.consume.interest import COLD
from queues.engine.errors import QueueNotFound
from queues.errors import Busy
from queues.models import ApiKey, Interest, Message, Queue, Subscription
from queues.operations.keys import create_key
from queues.operations.mailboxes import MailboxNotFound, delete_mailbox
from queues.operations.messages import remove_messages
from queues.operations.queues import QueueNotEmpty, create_queue, delete_queue

#: Seconds that the subscribers of fan-out have to acknowledge, on a machine that also runs all the others.
ACK_TIMEOUT: Final = timedelta(seconds=30)
#: Seconds for which removing is tried again while a transaction is at a queue.
_STUBBORN: Final = 10.0


def own_name() -> str:
    """A name that nothing else has."""
    return f"bench-{secrets.token_hex(5)}"


@contextmanager
def temporary_key(name: str, protocol: str) -> Iterator[str]:
    """A key for names that begin like this."""
    patterns = [f"{name}*", f"peer:{name}*"]
    _, key = create_key(name, protocols=[protocol], publish=patterns, consume=patterns)
    try:
        yield key
    finally:
        ApiKey.objects.filter(name=name).delete()


@contextmanager
def temporary_queue(name: str, audited: bool) -> Iterator[None]:
    """A queue with default settings."""
    create_queue(name, audited=audited)
    try:
        yield
    finally:
        _remove(lambda: delete_queue(name, force=True))


@contextmanager
def temporary_subscriptions(driver: BlipMQ, count: int, audited: bool) -> Iterator[tuple[int, ...]]:
    """Subscriptions of the driver's topic. Raises BenchError."""
    try:
        connection = BlipConnection(driver)
        ids = tuple(connection.subscribe(driver.topic) for _ in range(count))
        connection.close()
        mine = _of_topic(driver.topic)
        if set(ids) != {one.pk for one in mine}:
            raise BenchError(
                f"The broker at {driver.endpoint} does not use this command's database: run it with the broker's"
                f" DATABASE_URL. Its subscriptions of {driver.topic!r} stay, for its operator to delete."
            )
        changes: dict[str, Any] = {"audited": True} if audited else {}
        if count > 1:
            changes["ack_timeout"] = ACK_TIMEOUT
        if changes:
            Queue.objects.filter(pk__in=[one.queue_id for one in mine]).update(**changes)
        yield ids
    finally:
        for one in _of_topic(driver.topic):
            _remove(partial(_delete, one.queue))


def _delete(queue: Queue) -> None:
    """Delete a queue; one that is empty, as most are, in fewer steps."""
    try:
        delete_queue(queue.name, force=queue_counts(queue.pk).held > 0)
    except QueueNotEmpty:
        delete_queue(queue.name, force=True)


def _of_topic(topic: str) -> list[Subscription]:
    return list(Subscription.objects.select_related("queue").filter(topic=topic.encode()))


@contextmanager
def temporary_peers(names: Sequence[str]) -> Iterator[None]:
    """Peers with these names, which connect themselves."""
    try:
        yield
    finally:
        for name in names:
            with suppress(MailboxNotFound):
                _remove(lambda name=name: delete_mailbox(name, force=True))  # type: ignore[misc]


def unused_queue(name: str) -> Queue:
    """A queue that others may use too, when they do not. Raises BenchError when it holds messages or has consumers."""
    queue = Queue.objects.filter(name=name).first()
    if queue is None:
        raise BenchError(f"This command's database has no queue {name!r}: run it with the broker's DATABASE_URL.")
    deadline = time.monotonic() + COLD + 2.0  # nodes serve a queue for a while after its last consumer
    while (served := Interest.objects.filter(queue=queue).exists()) and time.monotonic() < deadline:
        time.sleep(0.2)
    held = queue_counts(queue.pk).held
    if held or served:
        reason = f"holds {held:,} messages" if held else "has consumers"
        raise BenchError(
            f"The queue {name!r} {reason}, and SSPQ has one queue for all clients of a listener. Give the benchmark a"
            " listener of its own: `runwire --sspq-also HOST:PORT=QUEUE`, and here --address and --sspq-queue."
        )
    return queue


@contextmanager
def removed_messages(queue: Queue, run: int, size: int) -> Iterator[None]:
    """Messages of the run and this size are removed from the queue at the end."""
    try:
        yield
    finally:
        deadline = time.monotonic() + _STUBBORN
        own = Substr("payload", 1, 2, output_field=BinaryField())
        left = Message.objects.annotate(own=own, length=Length("payload")).filter(
            queue=queue, own=run.to_bytes(2), length=size
        )
        while ids := list(left.values_list("pk", flat=True)):
            if not remove_messages(queue.name, ids):  # nodes hand back what their consumers have left
                if time.monotonic() > deadline:
                    raise BenchError(f"{len(ids):,} of the benchmark's messages stay in the queue {queue.name!r}.")
                time.sleep(0.1)


def _remove(delete: Callable[[], object]) -> None:
    deadline = time.monotonic() + _STUBBORN
    while True:
        try:
            delete()
        except Busy as error:
            if time.monotonic() > deadline:
                raise BenchError(f"The benchmark's queue could not be removed: {error}") from error
            time.sleep(0.2)
        except QueueNotFound:
            return
        else:
            return
