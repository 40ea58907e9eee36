"""Writing signed anchors, into the database and into the file beside it."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime
from time import monotonic, sleep

from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, OperationalError, transaction

from queues.audit.anchor import Anchor, digest_before
from queues.audit.anchor_file import AnchorFile
from queues.audit.origin import origin
from queues.audit.signing import Signer, signer
from queues.models import AnchorKind, AuditAnchor
from queues.store.queries import query

logger = logging.getLogger(__name__)

#: Seconds between looks whether another process has written its anchors.
LOOK = 0.05


def anchor_all(
    kind: AnchorKind = AnchorKind.MANUAL, older_than: float = 0.0, using: str = DEFAULT_DB_ALIAS, patience: float = 0.0
) -> list[Anchor]:
    """Write an anchor for every chain that has grown since its last one; returns them.

    Chains whose last anchor is not `older_than` seconds are left for later. Only one process does it at a time: others
    return nothing, or try for `patience` seconds. A chain that takes no anchor is logged and left out. Raises
    InvalidAuditKey or OSError when there is no key to sign with or no file to copy to.
    """
    by = signer()
    deadline = monotonic() + patience
    while (anchors := _anchor_all(by, kind, older_than, using)) is None:
        if monotonic() >= deadline:
            return []
        sleep(LOOK)
    # After the commit: what the file has and the database has not would count as taken out of the database.
    AnchorFile.default().append(anchor.line for anchor in anchors)
    return anchors


def _anchor_all(by: Signer, kind: AnchorKind, older_than: float, using: str) -> list[Anchor] | None:
    """The anchors that were written; None when another process writes some."""
    with transaction.atomic(using=using):
        [(mine,)] = query("audit_try_lock", using)
        if not mine:
            return None
        tried = (try_anchor(by, kind, using, *row) for row in query("audit_unanchored", using, older_than=older_than))
        return [anchor for anchor in tried if anchor is not None]


def try_anchor(
    by: Signer, kind: AnchorKind, using: str, chain_id: int, chain: str, seq: int, last_hash: bytes, number: int,
    signature: bytes | None, at: datetime, created_at: datetime,
) -> Anchor | None:  # fmt: skip
    """Sign the next anchor of a chain, at the row `seq` with this hash, and store it in the current transaction; the
    last one has this number and signature. The fault of one chain is logged, and keeps no other from its anchor."""
    try:
        with transaction.atomic(using=using):
            unsigned = Anchor(
                chain=chain, number=number + 1, seq=seq, hash=bytes(last_hash), at=at, kind=kind.value,
                previous=digest_before(signature), origin=origin(created_at, using),
            )  # fmt: skip
            anchor = signed(unsigned, by)
            AuditAnchor.objects.using(using).create(
                chain_id=chain_id, number=anchor.number, seq=seq, hash=anchor.hash, at=at, kind=anchor.kind,
                previous=anchor.previous, key=anchor.key, signature=anchor.signature,
            )  # fmt: skip
            return anchor
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        foreseen = isinstance(error, DatabaseError)
        logger.error("the audit chain %r gets no anchor at seq %d: %s", chain, seq, error, exc_info=not foreseen)
        return None


def signed(anchor: Anchor, by: Signer) -> Anchor:
    """The anchor with its signature."""
    return replace(anchor, key=by.fingerprint, signature=by.sign(anchor.message))
