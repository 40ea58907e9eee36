"""Links to the rows of a message, or of a peer's letters, in the audit chains."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from django.db.models import Model, Q
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from queues.audit.chains import OPERATORS, PEERBUS, queue_chain
from queues.engine.api import message_uuid
from queues.models import AuditChain, AuditHead, AuditRow, Content, Mailbox, Message, Queue, State
from queues.models.queue import QueueKind
from queues.operations.audit_log import record_id

#: Rows from or to a peer are looked for among so many of the newest; and those of so many letters of its mailbox.
NEWEST_ROWS = 10_000
NEWEST_LETTERS = 10
#: Rows that a peer's page shows.
ROWS_OF_PEER = 20

CHAIN, SEARCH = "chain", "q"


def rows_address(chain: int, search: str = "") -> str:
    """The page of a chain's rows, perhaps those that a search finds (see `queues.admin.audit_search`)."""
    query = {CHAIN: str(chain)} | ({SEARCH: search} if search else {})
    return f"{reverse('admin:queues_auditrow_changelist')}?{urlencode(query)}"


def operators_address(obj: Model) -> str:
    """The rows of what operators did to an object; empty when they have done nothing yet."""
    chain = AuditChain.objects.filter(name=OPERATORS).values_list("pk", flat=True).first()
    return "" if chain is None else rows_address(chain, f"id:{record_id(obj)}")


def records_of(queue: Queue | None, id: int, content: int | None, key: str | None) -> dict[str, str]:
    """By what id a message is known, by chain; `id` is its first one, and `queue` None when that was deleted."""
    records = {}
    if content == Content.LETTER and key:
        records[PEERBUS] = key
    elif queue is not None and queue.kind == QueueKind.MAILBOX:  # a route has brought it
        records[PEERBUS] = str(message_uuid(queue.uuid, id))
    if queue is not None:
        records[queue_chain(queue.name)] = str(id)
    return records


def audit_links(queue: Queue | None, id: int, content: int | None, key: str | None) -> SafeString:
    """Links to the rows of a message, in each chain that may have some."""
    records = records_of(queue, id, content, key)
    chains = AuditChain.objects.filter(name__in=records).values_list("pk", "name")
    links = ((rows_address(pk, f"id:{records[name]}"), name) for pk, name in chains)
    return format_html_join(", ", '<a href="{}">Audit: {}</a>', links) or format_html("{}", "not audited")


def rows_of_peer(mailbox: Mailbox) -> tuple[int | None, list[AuditRow]]:
    """The chain of letters, None if there is none yet, and its newest rows that concern a peer, newest first.

    These are among the newest of the chain, or of letters that its mailbox holds: from a name nothing leads to the
    rest but reading it all.
    """
    head = AuditHead.objects.filter(chain__name=PEERBUS).order_by("-next_seq").first()
    if head is None:
        return None, []
    rows = AuditRow.objects.filter(chain_id=head.chain_id)
    name = mailbox.name
    near = rows.filter(Q(sender=name) | Q(recipient=name), seq__gte=head.next_seq - NEWEST_ROWS)
    found = {row.seq: row for row in near.order_by("-seq")[:ROWS_OF_PEER]}
    if letters := _newest_letters(mailbox):
        since = min(letter.published_at for letter in letters)
        held = rows.filter(record_id__in=_keys(mailbox, letters), at__gte=since)
        found |= {row.seq: row for row in held.order_by("-seq")[:ROWS_OF_PEER]}
    return head.chain_id, [found[seq] for seq in sorted(found, reverse=True)[:ROWS_OF_PEER]]


def _newest_letters(mailbox: Mailbox) -> list[Message]:
    """Some that wait and some that are out: each is found by an index."""
    mine = Message.objects.filter(queue_id=mailbox.queue_id).defer("payload", "headers")
    waiting = mine.filter(state=State.READY).order_by("-id")[:NEWEST_LETTERS]
    out = mine.filter(tag__isnull=False).order_by("-tag", "-id")[:NEWEST_LETTERS]
    return [*waiting, *out]


def _keys(mailbox: Mailbox, letters: Iterable[Message]) -> list[str]:
    return [
        records_of(mailbox.queue, letter.origin_id or letter.pk, letter.content, letter.key)[PEERBUS]
        for letter in letters
    ]
