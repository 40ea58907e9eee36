"""The days of the audit chains: partitions made ahead, and old ones dropped behind a signed anchor."""

from __future__ import annotations

from datetime import date

from django.db import DEFAULT_DB_ALIAS, transaction

from queues.audit.anchor import Anchor
from queues.audit.anchor_file import AnchorFile
from queues.audit.anchoring import try_anchor
from queues.audit.errors import ChainBusy
from queues.audit.signing import Signer, signer
from queues.models import AnchorKind
from queues.store.queries import lock_limit, query

#: Days for which there are partitions, today's included.
AHEAD = 7
#: Making and dropping want a lock that readers of a whole chain hold for minutes, and behind which all others wait.
LOCK_TIMEOUT = "1s"


def make_partitions(using: str = DEFAULT_DB_ALIAS) -> int:
    """Make the partitions of the next days; returns how many were missing. Raises ChainBusy: try again later."""
    with transaction.atomic(using=using), lock_limit(LOCK_TIMEOUT, using, ChainBusy()):
        [(made,)] = query("audit_make_partitions", using, days=AHEAD)
    return int(made)


def drop_old(days: int, using: str = DEFAULT_DB_ALIAS) -> int:
    """Drop the rows of all days (UTC) that lie more than `days` before today; returns how many rows those were.

    In the same transaction an anchor of kind `retention` is signed for each chain, with the last row that goes: from
    it the rest is verified; a chain that takes no anchor is logged, and keeps no other's rows. For proof that the
    dropped rows were right, verify before. Older anchors go too.
    Only one process does it at a time: others return 0. Raises ChainBusy while whole chains are read,
    InvalidAuditKey or OSError when there is no key to sign with.
    """
    by = signer()
    anchors: list[Anchor] = []
    with transaction.atomic(using=using), lock_limit(LOCK_TIMEOUT, using, ChainBusy()):
        [(mine,)] = query("audit_try_lock", using)
        [(old, before)] = query("audit_old", using, days=days)
        if not mine or not old:
            return 0
        rows = _sign_what_goes(by, before, using, anchors)
        query("audit_drop", using, before=before)
    AnchorFile.default().append(anchor.line for anchor in anchors)
    return rows


def _sign_what_goes(by: Signer, before: date, using: str, anchors: list[Anchor]) -> int:
    """Write the anchors, forget those that are older; returns how many rows go."""
    rows = 0
    old = query("audit_last_old", using, before=before)
    for first, chain, name, seq, *last in old:
        if (anchor := try_anchor(by, AnchorKind.RETENTION, using, chain, name, seq, *last)) is not None:
            anchors.append(anchor)
            query("audit_forget_anchors", using, chain=chain, seq=seq)
        rows += seq - first + 1
    return rows
