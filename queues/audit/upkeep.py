"""What is to be done about the audit chains by the clock."""

from __future__ import annotations

import contextlib

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections

from queues.audit.anchoring import anchor_all
from queues.audit.chains import seal
from queues.audit.errors import ChainBusy
from queues.audit.retention import drop_old, make_partitions
from queues.models import AnchorKind

#: Nodes keep time each for itself: an anchor that is nearly old enough is.
SLACK = 0.8


def look_after(using: str = DEFAULT_DB_ALIAS) -> None:
    """Seal what waits, make partitions, write anchors, drop what is too old. Safe on any number of nodes at once.

    For a thread of its own, every BROKER_AUDIT_ANCHOR_INTERVAL seconds: `await asyncio.to_thread(look_after)`. Closes
    the thread's database connection at the end. Raises django.db.OperationalError when the database is away,
    InvalidAuditKey or OSError when there is no key or file to write with; the next call does what this one has not.
    """
    try:
        seal(using)
        with contextlib.suppress(ChainBusy):
            make_partitions(using)
        anchor_all(AnchorKind.INTERVAL, older_than=SLACK * settings.BROKER_AUDIT_ANCHOR_INTERVAL, using=using)
        if settings.BROKER_AUDIT_DAYS:
            with contextlib.suppress(ChainBusy):
                drop_old(settings.BROKER_AUDIT_DAYS, using)
    finally:
        connections[using].close()
