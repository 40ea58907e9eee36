"""Operators' actions on peers' mailboxes, over Django's connection: look, disconnect, free a name, delete.

Running nodes hear of it at the commit, and end the connections concerned.
"""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections

from queues.errors import Busy, OperationError
from queues.models import Mailbox, Outcome, State
from queues.operations import queues as queue_operations
from queues.operations.messages import WAITING, Progress, no_progress, purge_batches
from queues.permissions.addresses import name_problem
from queues.store.counts import queue_counts
from queues.store.queries import lock_limit, whole

#: Milliseconds to wait for open transactions that have published to a mailbox before its deletion is given up.
QUEUE_TIMEOUT = "5000"
#: Milliseconds to wait for those that have looked at any mailbox. All peers wait meanwhile; a letter takes one or two.
TABLE_TIMEOUT = "500"


class MailboxNotFound(OperationError):
    """There is no peer of this name."""


class MailboxNotConnected(OperationError):
    """The peer is not connected."""


class MailboxConnected(OperationError):
    """The peer is connected."""


class MailboxNotEmpty(OperationError):
    """The peer's mailbox still holds letters."""


class MailboxBusy(Busy):
    """Another transaction has the mailbox locked."""


def get_mailbox(name: str, using: str = DEFAULT_DB_ALIAS) -> Mailbox:
    """The mailbox of this name. Raises MailboxNotFound."""
    mailboxes = Mailbox.objects.using(using).select_related("queue", "owner", "node")
    mailbox = None if name_problem(name) else mailboxes.filter(name=name).first()
    if mailbox is None:
        raise MailboxNotFound(f"There is no peer {name!r}.")
    return mailbox


def node_of(mailbox: Mailbox) -> str | None:
    """The node of a peer's connection; None when it is away. A node that has just died has no name any more."""
    if mailbox.node_id is None:
        return None
    return str(mailbox.node) if mailbox.node is not None else f"node {mailbox.node_id}"


def disconnect(name: str, using: str = DEFAULT_DB_ALIAS) -> None:
    """End a peer's connection. What it was given and has not acknowledged waits again; it may come back at once.

    Raises MailboxNotFound or MailboxNotConnected.
    """
    if not _empty(get_mailbox(name, using), False, using):
        raise MailboxNotConnected(f"{name!r} is not connected.")


def free_name(name: str, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Let the next API key that comes have a name, with the letters that wait; returns whether a connection was ended.

    Raises MailboxNotFound.
    """
    return _empty(get_mailbox(name, using), True, using)


def _empty(mailbox: Mailbox, forget_owner: bool, using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("select queues_empty_mailbox(%s, %s)", [mailbox.pk, forget_owner])
        return bool(cursor.fetchone()[0])


def delete_mailbox(
    name: str, force: bool = False, progress: Progress = no_progress, using: str = DEFAULT_DB_ALIAS
) -> int:
    """Delete a mailbox and, with `force`, the peer's connection and every letter held; returns how many those were.

    From then on letters to the name are dropped, until a peer registers it. Raises MailboxNotFound, without `force`
    MailboxConnected or MailboxNotEmpty, and MailboxBusy, QueueBusy or Busy: then it is there still.
    """
    mailbox, done = get_mailbox(name, using), 0
    if force:
        _empty(mailbox, True, using)
        for state in (*WAITING, State.DEAD):
            for gone in purge_batches(mailbox.queue_id, state, Outcome.PURGED, using):
                done += gone
                progress(done)

    def delete() -> int:
        _keep_out(mailbox, using)
        if not force:
            _refuse_used(mailbox, using)
        _empty(mailbox, True, using)  # a peer may have registered meanwhile
        Mailbox.objects.using(using).filter(pk=mailbox.pk).delete()
        return queue_operations.delete_queue(mailbox.queue.name, force=force, using=using)

    done += whole(delete, using)
    progress(done)
    return done


def _keep_out(mailbox: Mailbox, using: str) -> None:
    """Lock the mailbox: no letter is sent to it, and no peer takes it. Raises MailboxNotFound, MailboxBusy.

    Who publishes to its queue is kept out by the lock on the queue's row. A peer's transaction takes no lock on whom it
    sends to, but it reads the table of mailboxes: after the lock on that all of them see that this one is gone. The
    order and the short patience matter: another transaction may hold the table and wait for the queue.
    """
    busy = MailboxBusy(f"{mailbox.name!r} is in use by an open transaction; try again.")
    with connections[using].cursor() as cursor:
        with lock_limit(QUEUE_TIMEOUT, using, busy):
            cursor.execute("select 1 from queues_queue where id = %s for update", [mailbox.queue_id])
        with lock_limit(TABLE_TIMEOUT, using, busy):
            cursor.execute("lock table queues_mailbox in access exclusive mode")
        cursor.execute("select 1 from queues_mailbox where queue_id = %s", [mailbox.pk])
        if cursor.fetchone() is None:
            raise MailboxNotFound(f"There is no peer {mailbox.name!r}.")


def _refuse_used(mailbox: Mailbox, using: str) -> None:
    if Mailbox.objects.using(using).filter(pk=mailbox.pk, node__isnull=False).exists():
        raise MailboxConnected(f"{mailbox.name!r} is connected.")
    if held := queue_counts(mailbox.queue_id, using).held:
        raise MailboxNotEmpty(f"{mailbox.name!r} holds {held:,} letters.")
