"""The upkeep of the audit chains, periodic and at an orderly stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections

from queues.audit.anchoring import anchor_all
from queues.audit.chains import seal
from queues.audit.errors import ChainBusy
from queues.audit.retention import drop_old, make_partitions
from queues.config.settings import settings
from queues.models import AnchorKind
from queues.store.queries import query

#: Nodes keep time each for itself: an anchor that is nearly old enough is.
SLACK = 0.8
#: Seconds that who stops waits for others that write anchors.
STOP_PATIENCE = 1.0


def look_after(using: str = DEFAULT_DB_ALIAS) -> None:
    """Seal the journal, make partitions, write anchors, drop old rows. Safe on any number of nodes at once.

    For a thread of its own, every BROKER_AUDIT_ANCHOR_INTERVAL seconds: `await asyncio.to_thread(look_after)`. Closes
    the thread's database connection at the end. What fails keeps nothing else from being done; then raises the first
    error: django.db.OperationalError when the database is away, InvalidAuditKey or OSError when there is no key or file
    to write with. The next call does what this one has not.
    """
    older_than = SLACK * settings.BROKER_AUDIT_ANCHOR_INTERVAL
    work: list[Callable[[], object]] = [
        lambda: seal(using),
        lambda: make_partitions(using),
        lambda: anchor_all(AnchorKind.INTERVAL, older_than=older_than, using=using),
    ]
    if settings.BROKER_AUDIT_DAYS:
        work.append(lambda: drop_old(settings.BROKER_AUDIT_DAYS, using))
    _do_each(work, using)


def anchor_at_stop(using: str = DEFAULT_DB_ALIAS) -> None:
    """Seal the journal and sign every head that has no anchor yet: all rows until now are covered.

    As `look_after`, for a process that has written its last row and stops.
    """
    _do_each([lambda: seal(using), lambda: _anchor_what_grew(using)], using)


def _anchor_what_grew(using: str) -> None:
    if query("audit_unanchored", using, older_than=0.0):  # else this process may have no key, and needs none
        anchor_all(AnchorKind.INTERVAL, using=using, patience=STOP_PATIENCE)


def _do_each(work: list[Callable[[], object]], using: str) -> None:
    first: Exception | None = None
    try:
        for do in work:
            try:
                with contextlib.suppress(ChainBusy):
                    do()
            except (OperationalError, InterfaceError):
                raise
            except Exception as error:
                first = first or error
    finally:
        connections[using].close()
    if first is not None:
        raise first
