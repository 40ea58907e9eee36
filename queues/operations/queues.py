"""Operators' actions on queues and messages, over Django's connection. Running nodes hear of it at the commit.

Long work is done in batches, each a transaction of its own unless the caller has one open; `progress` is called after
each with the number of messages done so far. Counts change in the same transaction as the messages. `by` is who does
it: the audit chain of an audited queue says so.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections, transaction
from django.db.models import DurationField

from queues.engine.api import Purge, QueueNotFound
from queues.errors import Busy, InvalidFields
from queues.errors import OperationError as OperationError  # the base of the errors here
from queues.formats.texts import shown
from queues.models import Mailbox, Outcome, Queue, State, Subscription
from queues.operations.audit_log import declare
from queues.operations.messages import LEASES, WAITING, Progress, get_queue, newest, no_progress, purge_batches
from queues.permissions.addresses import queue_problem
from queues.permissions.rules import Operation, Protocol, is_allowed
from queues.store.counts import queue_counts
from queues.store.queries import lock_limit, notify, query, whole

#: Messages removed in the transaction that deletes a queue, at most: while it lasts no publish is stored.
LAST_BATCH = 20_000
#: The number of times that deleting a queue starts over because messages keep coming.
ROUNDS = 20
#: Milliseconds to wait for open transactions that have published to a queue before its deletion is given up.
LOCK_TIMEOUT = "5000"
#: The fields of a queue's policy: what operators set, and what a clone, definitions and `queue show` have of a queue.
POLICY = tuple(
    field.name for field in Queue._meta.concrete_fields if field.editable and field.name not in ("id", "name")
)
DURATIONS = tuple(name for name in POLICY if isinstance(Queue._meta.get_field(name), DurationField))


class InvalidQueue(InvalidFields):
    """A queue cannot have this name or policy."""


class QueueExists(OperationError):
    """There is a queue of this name."""


class QueueNotEmpty(OperationError):
    """The queue still holds messages."""


class QueueIsMailbox(OperationError):
    """The queue belongs to a peer."""


class QueueBusy(Busy):
    """A transaction that has published to the queue is still open, or messages keep arriving."""


def policy_problems(queue: Queue) -> dict[str, list[str]]:
    """Errors in a queue's times and dead-letter target, by field, that the columns themselves would take."""
    problems: dict[str, list[str]] = {}
    for field in DURATIONS:
        value = getattr(queue, field)
        least = timedelta(0) if field.startswith("retry") else timedelta(microseconds=1)
        if value is not None and value < least:
            problems[field] = [f"It must be {'0 or more' if least == timedelta(0) else 'more than 0'}."]
    target = queue.dead_letter_queue
    if target is not None and not is_allowed(Protocol.OPERATOR, Operation.PUBLISH, "queue", target.name):
        problems["dead_letter_queue"] = [f"Nothing can be moved to {target.name!r}: it is the system's."]
    elif target is not None and (way := dead_letter_cycle(queue)):
        problems["dead_letter_queue"] = [f"Dead letters would come back: {' → '.join(way)}."]
    return problems


def dead_letter_cycle(queue: Queue) -> list[str]:
    """The names of the queues over which a queue's dead letters would come back to it; empty when they do not."""
    way, seen, target = [queue.name], {queue.pk}, queue.dead_letter_queue
    while target is not None:
        way.append(target.name)
        if target.pk in seen:
            return way
        seen.add(target.pk)
        target = target.dead_letter_queue
    return []


def _problems(validate: Callable[[], object]) -> dict[str, list[str]]:
    """The errors of Django's validation, by field."""
    try:
        validate()
    except ValidationError as error:
        return {field: list(texts) for field, texts in error.message_dict.items()}
    return {}


def create_queue(name: str, using: str = DEFAULT_DB_ALIAS, by: str = "", **policy: Any) -> Queue:
    """Make a queue. `policy` has fields of `Queue`; times are timedeltas or seconds.

    Raises QueueExists, or InvalidQueue for a name or policy that cannot be.
    """
    for field in DURATIONS:
        if isinstance(policy.get(field), int | float):
            try:
                policy[field] = timedelta(seconds=policy[field])
            except (OverflowError, ValueError) as error:
                raise InvalidQueue({field: [f"{shown(policy[field])} seconds is no time."]}) from error
    queue = Queue(name=name, **policy)
    problems = policy_problems(queue)
    if problem := queue_problem(name, Protocol.OPERATOR, Operation.CREATE):
        raise InvalidQueue({"name": [problem]})
    problems |= _problems(lambda: queue.full_clean(problems, validate_unique=False, validate_constraints=False))
    if problems:
        raise InvalidQueue(problems)
    try:
        with transaction.atomic(using=using):
            declare(by, using)
            queue.save(using=using, force_insert=True)
    except IntegrityError as error:  # only now a query for each constraint: which one is it?
        if Queue.objects.using(using).filter(name=name).exists():
            raise QueueExists(f"There is a queue {name!r} already.") from error
        raise InvalidQueue(_problems(queue.full_clean) or {NON_FIELD_ERRORS: [str(error)]}) from error
    return queue


def set_paused(name: str, paused: bool, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Deliver nothing more from a queue, which still takes messages, or deliver again; returns whether that is a
    change. Raises QueueNotFound."""
    queue = get_queue(name, using)
    return Queue.objects.using(using).filter(pk=queue.pk, paused=not paused).update(paused=paused) > 0


# Deleting a queue.


def delete_queue(
    name: str, force: bool = False, progress: Progress = no_progress, using: str = DEFAULT_DB_ALIAS, by: str = ""
) -> int:
    """Delete a queue and, with `force`, every message it holds; returns how many those were.

    Its subscription goes with it, and queues that sent their dead letters to it keep them from now on. Raises
    QueueNotFound, QueueNotEmpty without `force`, QueueBusy or Busy, or QueueIsMailbox.
    """
    queue = get_queue(name, using)
    if (mailbox := Mailbox.objects.using(using).filter(pk=queue.pk).first()) is not None:
        raise QueueIsMailbox(f"{name!r} is the mailbox of the peer {mailbox.name!r}: delete the peer.")
    if not force:
        return whole(lambda: _delete_empty(queue, 0, using, by), using)
    was_paused, done = queue.paused, 0
    set_paused(name, True, using)  # so that nodes take nothing more into memory
    try:
        for _ in range(ROUNDS):
            done = _empty(queue, done, progress, using, by)
            try:
                done += whole(lambda: _delete_empty(queue, LAST_BATCH, using, by), using)
            except QueueNotEmpty:
                continue
            progress(done)
            return done
        raise QueueBusy(f"{name!r} was emptied {ROUNDS} times, and messages keep arriving. Stop its producers first.")
    except BaseException:
        Queue.objects.using(using).filter(pk=queue.pk).update(paused=was_paused)
        raise


def _empty(queue: Queue, done: int, progress: Progress, using: str, by: str) -> int:
    """Purge every state in batches, leases too; `done` and what was removed."""
    start = done
    for state in (*WAITING, State.DEAD, State.LEASED, State.DEAD_LEASED):
        if state in LEASES and not queue_counts(queue.pk, using).held:
            break  # leases have no index: they are not looked for in vain
        if state is State.LEASED:
            whole(lambda: query("unpack_queue", using, queue=queue.pk), using)
        for gone in purge_batches(queue.pk, state, Outcome.PURGED, using, by=by):
            done += gone
            progress(done)
    if done > start:
        notify(using, Purge(queue.pk, by, newest(using)))
    return done


def _delete_empty(queue: Queue, most: int, using: str, by: str) -> int:
    """Delete a queue that holds at most this many messages, and these; returns how many. Raises QueueNotEmpty. For a
    transaction that ends with it.

    Publishes of other transactions are kept out: those on Django connections by the lock on the queue's row, the
    engine's by the lock on the topology. Locks are taken in the same order everywhere.
    """
    pk = queue.pk
    published = QueueBusy(f"A transaction that has published to {queue.name!r} is still open.")
    with connections[using].cursor() as cursor:
        with lock_limit(LOCK_TIMEOUT, using, published):
            cursor.execute("select 1 from queues_queue where id = %s for update", [pk])
            if cursor.fetchone() is None:
                raise QueueNotFound(repr(queue.name))
            cursor.execute("select 1 from queues_queuecount where queue_id = %s for update", [pk])
        cursor.execute("select pg_advisory_xact_lock(hashtext('queues_topology'))")
    held = queue_counts(pk, using).held
    if held > most:
        raise QueueNotEmpty(f"{queue.name!r} holds {held} messages.")
    gone = 0
    for state in (State.DELAYED, State.READY, State.DEAD) if held else ():
        gone += sum(purge_batches(pk, state, Outcome.PURGED, using, by=by))
    if held > gone:  # leased meanwhile
        raise QueueNotEmpty(f"{queue.name!r} holds {held - gone} messages.")
    declare(by, using)
    _delete_rows(pk, using)
    return gone


def _delete_rows(pk: int, using: str) -> None:
    """Delete a queue's own rows. What is left of its tallies goes when they are folded."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "delete from queues_queuetally where id in"
            " (select id from queues_queuetally where queue_id = %s for update skip locked)", [pk]
        )  # fmt: skip
        for text in (
            "delete from queues_subscription where queue_id = %s",
            "update queues_queue set dead_letter_queue_id = null where dead_letter_queue_id = %s",
            "delete from queues_queuecount where queue_id = %s",
            "delete from queues_joblog where queue_id = %s",
            "delete from queues_queue where id = %s",
        ):
            cursor.execute(text, [pk])


def delete_subscription(id: int, using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """End a subscription and delete its queue with its backlog; returns how many messages that held.

    Raises QueueNotFound when there is no such subscription, or QueueBusy.
    """
    subscription = Subscription.objects.using(using).select_related("queue").filter(pk=id).first()
    if subscription is None:
        raise QueueNotFound(f"there is no subscription {id}")
    return delete_queue(subscription.queue.name, force=True, using=using, by=by)
