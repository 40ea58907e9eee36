"""Appending to audit chains from Django code, on the caller's own database connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, OperationalError, transaction

from queues.audit.errors import AuditError, HeadNotLocked, NoSuchChain
from queues.audit.events import MAX_ROWS, AuditEvent, AuditRecord, Head, append_parameters, columns
from queues.models import AuditChain
from queues.store.queries import query

logger = logging.getLogger(__name__)

#: The chain of every letter between peers, that of what operators do, and the beginning of a queue's.
PEERBUS = "peerbus"
OPERATORS = "operators"
QUEUE = "queue:"


def queue_chain(name: str) -> str:
    """The chain of an audited queue."""
    return f"{QUEUE}{name}"


def get_chain(name: str, using: str = DEFAULT_DB_ALIAS) -> AuditChain:
    """The chain of this name. Raises NoSuchChain."""
    chain = AuditChain.objects.using(using).filter(name=name).first()
    if chain is None:
        raise NoSuchChain(repr(name))
    return chain


def append(chain: str, events: Sequence[AuditEvent], using: str = DEFAULT_DB_ALIAS) -> None:
    """Append events to a chain: inside `transaction.atomic()` they are there if and when that commits.

    The chain is locked from here to the commit, so this belongs at the end of a short transaction; a long one, or
    one that does not know its end, uses `journal`. Chains that one transaction appends to must be taken in order of
    their names, as `append_all` does, or two such transactions may deadlock. Wants the default isolation level.
    Raises InvalidEvent.
    """
    columns(events)  # what cannot be stored is refused before it could spoil the caller's transaction
    with transaction.atomic(using=using, savepoint=False):
        for part in AuditRecord(events).parts:
            _append_after(_lock(chain, using), part, using)


def append_all(events: Mapping[str, Sequence[AuditEvent]], using: str = DEFAULT_DB_ALIAS) -> None:
    """Append to several chains at once, or to none. Raises InvalidEvent."""
    for of_chain in events.values():
        columns(of_chain)
    with transaction.atomic(using=using, savepoint=False):
        for chain in sorted(events):
            append(chain, events[chain], using)


def journal(chain: str, events: Sequence[AuditEvent], using: str = DEFAULT_DB_ALIAS) -> None:
    """Note events that `seal` will move into their chain, soon after the caller's transaction commits.

    Takes no lock. Events keep the order in which they were noted, but events of a transaction that commits late
    come after others that were noted later and sealed before. Raises InvalidEvent.
    """
    prepared = [columns(events[start : start + MAX_ROWS]) for start in range(0, len(events), MAX_ROWS)]
    with transaction.atomic(using=using, savepoint=False):
        for part in prepared:
            query("audit_journal", using, chain=chain, **part)


def waiting(using: str = DEFAULT_DB_ALIAS) -> dict[str, int]:
    """The number of events that wait in the journal for each chain."""
    return dict(query("audit_waiting", using))


def seal(using: str = DEFAULT_DB_ALIAS) -> int:
    """Move what waits in the journal into its chains; returns how many events that were.

    Each chain in transactions of its own, so not inside `transaction.atomic()`. Any number may do it at once. What
    waits for a chain that takes no rows goes on waiting, and the log says so: verification is to find that, and other
    chains are not to wait for it.
    """
    sealed = 0
    for chain in waiting(using):
        try:
            moved = MAX_ROWS
            while moved == MAX_ROWS:
                moved = _seal_part(chain, using)
                sealed += moved
        except (OperationalError, InterfaceError, RuntimeError):  # away, or called inside a transaction
            raise
        except Exception as error:
            foreseen = isinstance(error, (AuditError, DatabaseError))
            logger.error("the audit journal of %r is not sealed: %s", chain, error, exc_info=not foreseen)
    return sealed


def _seal_part(chain: str, using: str) -> int:
    with transaction.atomic(using=using, durable=True):
        # The head first: who waits for it finds afterwards what the one before has left.
        head = _lock(chain, using)
        rows = sorted(query("audit_take", using, chain=chain, limit=MAX_ROWS))
        if rows:
            _append_after(head, AuditRecord(AuditEvent(*row[1:]) for row in rows), using)
    return len(rows)


def _lock(chain: str, using: str) -> Head:
    rows = query("audit_head", using, chain=chain)
    if not rows:
        raise HeadNotLocked(f"{chain} has no head")
    chain_id, seq, last = rows[0]
    return chain_id, seq, bytes(last)


def _append_after(head: Head, record: AuditRecord, using: str) -> None:
    query("audit_append", using, **append_parameters(head, record))
