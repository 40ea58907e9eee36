"""Queues, peers and keys of a benchmark's own in the project's database, removed when it ends, however it ends.

What is made has a random name; nothing else is touched. Only what the database shows to be the benchmark's is removed:
a broker may use another database than this command.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db.models import BinaryField
from django.db.models.functions import Length, Substr

from brokersite.rigs.bench.drivers.blipmq import BlipConnection, BlipMQ
from brokersite.rigs.bench.errors import BenchError
from queues.engine.api import COLD, QueueNotFound
from queues.errors import Busy
from queues.models import ApiKey, Interest, Mailbox, Message, Queue, Subscription
from queues.operations.keys import create_key
from queues.operations.mailboxes import MailboxNotFound, delete_mailbox
from queues.operations.messages import remove_messages
from queues.operations.queues import QueueNotEmpty, create_queue, delete_queue
from queues.store.counts import queue_counts

#: Seconds that the subscribers of fan-out have to acknowledge, on a machine that also runs all the others.
ACK_TIMEOUT: Final = timedelta(seconds=30)
#: Seconds for which removing is tried again while a transaction is at a queue.
_STUBBORN: Final = 10.0


def own_name() -> str:
    """A name that nothing else has."""
    return f"bench-{secrets.token_hex(5)}"


def make_key(stack: ExitStack, name: str, protocol: str) -> str:
    """A key for names that begin like this, until the stack ends."""
    patterns = [f"{name}*", f"peer:{name}*"]
    _, key = create_key(name, protocols=[protocol], publish=patterns, consume=patterns)
    stack.callback(ApiKey.objects.filter(name=name).delete)
    return key


def make_queue(stack: ExitStack) -> str:
    """A queue with default settings, until the stack ends; its name."""
    queue = create_queue(own_name())
    stack.callback(_remove, queue)
    return queue.name


def make_subscriptions(stack: ExitStack, driver: BlipMQ, count: int, audited: bool) -> tuple[int, ...]:
    """Subscriptions of the driver's topic, until the stack ends. Raises BenchError."""
    of_topic = Subscription.objects.select_related("queue").filter(topic=driver.topic.encode())
    stack.callback(lambda: list(map(_remove, [one.queue for one in of_topic.all()])))
    with closing(BlipConnection(driver)) as connection:
        ids = tuple(connection.subscribe(driver.topic) for _ in range(count))
    mine = list(of_topic.all())
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
    return ids


def remove_peers(names: Iterable[str]) -> None:
    """Remove the peers that have connected with these names."""
    for mailbox in Mailbox.objects.filter(name__in=names).select_related("queue"):
        _stubbornly(partial(delete_mailbox, mailbox.name, force=True))


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


def remove_messages_of(queue: Queue, run: int, size: int) -> None:
    """Remove the messages of the run and this size. Raises BenchError."""
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


def _remove(queue: Queue) -> None:
    """Delete a queue; one that is empty, as most are, in fewer steps."""
    try:
        _stubbornly(lambda: delete_queue(queue.name, force=queue_counts(queue.pk).held > 0))
    except QueueNotEmpty:
        _stubbornly(lambda: delete_queue(queue.name, force=True))


def _stubbornly(delete: Callable[[], object]) -> None:
    deadline = time.monotonic() + _STUBBORN
    while True:
        try:
            delete()
            return
        except (QueueNotFound, MailboxNotFound):
            return
        except Busy as error:
            if time.monotonic() > deadline:
                raise BenchError(f"The benchmark's queue could not be removed: {error}") from error
            time.sleep(0.2)
