"""The life of one message: all that the store, the archive, the audit chains and the job log know of it, in order.

A message that was never in an audited queue has few steps: its row says when it was published, where it is and why its
last delivery failed, and nothing of the deliveries before. Nothing is changed by looking.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from django.db import DEFAULT_DB_ALIAS
from django.db.models import Q

from queues.audit.chains import OPERATORS, PEERBUS, QUEUE
from queues.audit.listing import rows_of
from queues.audit.spans import parse_span
from queues.engine.api import message_uuid
from queues.models import (
    ApiKey,
    ArchivedMessage,
    AuditJournalEntry,
    AuditRow,
    Content,
    JobLogLine,
    Message,
    Outcome,
    Queue,
    QueueKind,
    State,
)
from queues.store.queries import time_limit

#: Rows of each source that are read.
MAX_ROWS = 200
#: Milliseconds for the search in the archive, which has no index of single ids.
ARCHIVE_TIMEOUT = 900
#: Events of an audit chain that happen once in a life: the store's own words of them say more.
ONCE = ("publish", "send", "settle", "ack")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened. `at` None: the time is not known. `event` is the word of the audit chains, whose row may
    stand for so many `others` too."""

    at: datetime.datetime | None
    event: str
    who: str = ""
    detail: str = ""
    source: str = "store"
    others: int = 0

    @property
    def told(self) -> str:
        """The detail, and how many others there were."""
        with_others = f"with {_counted(self.others, 'other', 'others')}" if self.others else ""
        return ", ".join(filter(None, (self.detail, with_others)))


def is_archived(id: int, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Whether the archive has a message with this first id.

    Raises OperationalError when the archive is too large to be searched in `ARCHIVE_TIMEOUT`.
    """
    with time_limit(ARCHIVE_TIMEOUT, using):
        return ArchivedMessage.objects.using(using).with_id(id).exists()


def life_of(message: Message | ArchivedMessage, using: str = DEFAULT_DB_ALIAS) -> list[Step]:
    """The steps in the life of a message, in order; those without a time are last."""
    first_id = (message.origin_id or message.pk) if isinstance(message, Message) else message.pk
    queue = Queue.objects.using(using).filter(pk=message.queue_id).first()
    keys = _keys(message, using)
    steps = [*(_of_store(message, keys) if isinstance(message, Message) else _of_archive(message, keys))]
    steps = _merged(steps, [*_of_chains(message, first_id, queue, using)])
    steps += _of_log(first_id, using)
    last = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return sorted(steps, key=lambda step: step.at or last)


def came_over(content: int | None, key: ApiKey | None) -> str:
    """Over which protocol a message came, as far as the store can tell."""
    if content == Content.LETTER:
        return "over peerbus"
    if content == Content.CELERY:
        return "by Celery"
    if key is not None and key.protocols:
        return f"over {' or '.join(key.protocols)}"
    return ""


def _keys(row: Message | ArchivedMessage, using: str) -> dict[int, ApiKey]:
    """The API keys that a row names, by id."""
    wanted = {key for key in (row.producer_id, getattr(row, "consumer_id", None)) if key}
    return ApiKey.objects.using(using).in_bulk(wanted) if wanted else {}


def _who(id: int | None, keys: dict[int, ApiKey]) -> str:
    """The name of a key for a person."""
    if not id:
        return ""
    return keys[id].name if id in keys else f"deleted key {id}"


def _published(row: Message | ArchivedMessage, keys: dict[int, ApiKey]) -> Step:
    headers = row.headers if isinstance(row.headers, dict) else {}
    words = [came_over(row.content, keys.get(row.producer_id or 0))]
    if row.content == Content.LETTER and headers.get("from"):
        words.append(f"from peer {headers['from']}")
    if row.key:
        words.append(f"with key {row.key}")
    event = "send" if row.content == Content.LETTER else "publish"
    return Step(row.published_at, event, _who(row.producer_id, keys), ", ".join(filter(None, words)))


def _counted(count: object, one: str, many: str) -> str:
    shown = f"{count:,}" if isinstance(count, int) else count
    return f"{shown} {one if count == 1 else many}"


def _failed(attempts: int) -> str:
    return f"{_counted(attempts, 'delivery', 'deliveries')} ended without success"


def _of_store(message: Message, keys: dict[int, ApiKey]) -> Iterator[Step]:
    """The steps that the row itself records."""
    yield _published(message, keys)
    letter = message.headers.get("dead-letter") if isinstance(message.headers, dict) else None
    if isinstance(letter, dict) and "queue" in letter:
        why = f": {letter['error']}" if letter.get("error") else ""
        detail = f"left {letter['queue']} after {_counted(letter.get('attempts'), 'attempt', 'attempts')}{why}"
        yield Step(_time(letter.get("at")), "dead-letter", detail=detail)
    why = _failed(message.attempts)
    if message.error:
        why += f"; the last: {message.error}"
    if message.state in (State.DEAD, State.DEAD_LEASED):
        yield Step(message.dead_at, "dead-letter", detail=why)
    elif message.attempts:
        yield Step(None, "return", detail=why)
    if message.state == State.DELAYED:
        yield Step(message.due_at, "due", detail="it is delayed until then")
    elif message.state in (State.LEASED, State.DEAD_LEASED):
        yield Step(None, "leased", detail=f"with a consumer of, or in the memory of, node {message.node_id}")
    if message.expires_at is not None and message.state != State.DEAD:
        yield Step(message.expires_at, "expires", detail="if it is still here then")


def _of_archive(row: ArchivedMessage, keys: dict[int, ApiKey]) -> Iterator[Step]:
    yield _published(row, keys)
    consumer = _who(row.consumer_id, keys)
    if row.attempts:
        yield Step(None, "return", detail=_failed(row.attempts))
    if row.delivered_at is not None:
        yield Step(row.delivered_at, "deliver", consumer, "the last delivery", "archive")
    event = "settle" if row.outcome == Outcome.ACKNOWLEDGED else "finished"
    yield Step(row.finished_at, event, consumer, Outcome(row.outcome).label, "archive")


def _of_chains(message: Message | ArchivedMessage, first_id: int, queue: Queue | None, using: str) -> Iterator[Step]:
    """The rows of the audit chains, and of the journal what is not sealed yet."""
    ids = {str(first_id): QUEUE, f"message:{first_id}": OPERATORS}
    if message.content == Content.LETTER and message.key:
        ids[message.key] = PEERBUS
    elif queue is not None and queue.kind == QueueKind.MAILBOX:
        ids[str(message_uuid(queue.uuid, first_id))] = PEERBUS
    rows = rows_of(AuditRow.objects.using(using), *ids).select_related("chain")[:MAX_ROWS]
    for row in sorted(rows, key=lambda row: (row.at, row.seq)):
        if row.chain.name.startswith(ids.get(row.record_id, QUEUE)):
            yield _told(row.at, row, row.chain.name)
    chains = [OPERATORS, *([f"{QUEUE}{queue.name}"] if queue is not None else [])]
    waiting = AuditJournalEntry.objects.using(using).filter(Q(chain__in=chains), record_id__in=ids)
    for entry in waiting.order_by("id")[:MAX_ROWS]:
        if entry.chain.startswith(ids[entry.record_id]):
            yield _told(None, entry, entry.chain)


def _told(at: datetime.datetime | None, row: Any, chain: str) -> Step:
    """A row of a chain: of a queue's chain `from` is a queue where something is taken from it."""
    detail = f"to {row.recipient}" if row.recipient else ""
    messages = parse_span(row.record_id) if chain.startswith(QUEUE) else None
    others = len(messages) - 1 if messages else 0
    return Step(at, row.event, row.sender, detail, f"audit: {chain}", others)


def _merged(steps: list[Step], told: list[Step]) -> list[Step]:
    """The steps of the store and those of the chains; what both tell of is one step.

    A chain's time is when its row was sealed, a moment after the fact, so the store's time is kept.
    """
    merged = []
    for step in steps:
        same = next((one for one in told if one.event == step.event and step.event in ONCE), None)
        if same is not None:
            told.remove(same)
            by_hand = same.detail if same.source == f"audit: {OPERATORS}" else ""
            detail = ", ".join(filter(None, (step.detail, by_hand)))
            step = replace(step, who=step.who or same.who, detail=detail, source=same.source, others=same.others)
        merged.append(step)
    return [*merged, *told]


def _of_log(first_id: int, using: str) -> Iterator[Step]:
    lines = JobLogLine.objects.using(using).filter(message_id=first_id).order_by("id")[:MAX_ROWS]
    for at, line in lines.values_list("at", "line"):
        yield Step(at, "log", detail=line, source="job log")


def _time(text: object) -> datetime.datetime | None:
    """A time as PostgreSQL writes it into JSON; None for other text."""
    try:
        at = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else None
