"""The audit chains as people look at them."""

from __future__ import annotations

from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.models import BooleanField, Q, QuerySet
from django.db.models.expressions import RawSQL

from queues.audit.anchor import time_text
from queues.audit.spans import MAX_SPAN, parse_span
from queues.models import AuditChain, AuditRow
from queues.store.queries import query

#: The columns of `chains`, in the order of audit_chains.sql.
CHAIN = (
    "chain", "rows", "last_at", "anchored_seq", "anchored_at", "verified_at", "verified_ok", "verified_rows", "finding",
)  # fmt: skip


def chains(using: str = DEFAULT_DB_ALIAS) -> list[dict[str, Any]]:
    """Every chain: how many rows it has had, its newest anchor, its last verification."""
    return [dict(zip(CHAIN, row, strict=True)) for row in query("audit_chains", using)]


#: Of rows with one of the ids that are given, or that stand for several messages with one of those numbers among them.
_OF_MESSAGES = """queues_audit.record_id = any(%s::text[] || array(
    select s.record_id from unnest(%s::bigint[]) as message (id), queues_audit s
    where s.event <> 'send' and s.event <> 'ack' and queues_audit_first(s.record_id) > message.id - %s
        and queues_audit_first(s.record_id) <= message.id and queues_audit_last(s.record_id) >= message.id
))"""


def rows_of(found: QuerySet[AuditRow], *records: str) -> QuerySet[AuditRow]:
    """Those rows that have one of these ids, or stand for a message with it among others."""
    spans = [span for span in map(parse_span, records) if span is not None]
    messages = [span.start for span in spans if len(span) == 1]
    if not messages:
        return found.filter(record_id__in=records)
    # By one array, which the index of ids takes; letters may have any id, one that looks like a row's of a queue, too.
    among = RawSQL(_OF_MESSAGES, (list(records), messages, MAX_SPAN), BooleanField())
    return found.filter(among, Q(record_id__in=records) | Q(chain__name__startswith="queue:"))


def rows(chain: AuditChain | None, record: str | None, limit: int, using: str = DEFAULT_DB_ALIAS) -> list[AuditRow]:
    """The last rows of a chain, of a record, or of a record in a chain, in order of chain and seq."""
    found = AuditRow.objects.using(using).select_related("chain")
    if chain is not None:
        found = found.filter(chain=chain)
    if record is not None:
        found = rows_of(found, record)
    return sorted(found.order_by("-chain", "-seq")[:limit], key=lambda row: (row.chain.name, row.seq))


def row_values(row: AuditRow) -> dict[str, Any]:
    """A row by the names that its event has when it is hashed."""
    return {
        "chain": row.chain.name, "seq": row.seq, "at": time_text(row.at), "event": row.event, "id": row.record_id,
        "from": row.sender, "to": row.recipient, "hash": bytes(row.hash).hex(),
    }  # fmt: skip
