"""Which lines are in a queue already, and which were sent to IRC (docs/protocols/hydra.md, "Durable queues").

Functions over the calling thread's Django connection: the recorder and the sender call them in a `DatabaseThread`.
A line from IRC is known by (queue, term, idx), a line for IRC by the first id of its message.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, connection, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from hydra.models import Node, RecordedLine, SentLine
from hydra.storage.statements import statement
from queues.api import Outgoing, publish_many
from queues.errors import OperationError
from queues.models import Message, Overflow, Queue, State
from queues.operations.queues import create_queue

#: Term, index, the line.
Line = tuple[int, int, str]

KEPT: Final = timedelta(days=1)
#: Unread lines from IRC that the queue keeps; then the oldest are dropped.
RECV_LENGTH: Final = 100_000


# Queues.


def prepare_queue(name: str, max_length: int | None = None) -> None:
    """Create a queue unless it exists; with `max_length` the oldest messages are dropped.

    Raises ValueError for an invalid queue name.
    """
    if Queue.objects.filter(name=name).exists():
        return
    policy: dict[str, Any] = {}
    if max_length is not None:
        policy = {"max_length": max_length, "overflow": Overflow.DROP_OLDEST}
    try:
        create_queue(name, **policy)
    except OperationError as error:
        if not Queue.objects.filter(name=name).exists():  # else another node was faster
            raise ValueError(f"There can be no queue {name!r}: {error}") from error


def has_node(voter: str | None) -> bool:
    """Whether the node with this lasting key has its row in this database."""
    return voter is not None and Node.objects.filter(voter=voter).exists()


# Lines from IRC.


def record(queue: str, node: str, lines: Sequence[Line]) -> int:
    """Publish the lines that are not recorded yet, in one transaction; returns their number.

    Raises QueueNotFound, QueueFull and database errors; the transaction is rolled back then.
    """
    terms, indexes, texts = (list(column) for column in zip(*lines, strict=True))
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(statement("record_lines").decode(), {"queue": queue, "terms": terms, "indexes": indexes})
            new = set(cursor.fetchall())
        messages = [
            Outgoing(body=line.encode(), headers={"hydra.term": term, "hydra.idx": idx})
            for term, idx, line in zip(terms, indexes, texts, strict=True)
            if (term, idx) in new
        ]
        if messages:
            publish_many(queue, messages)
        with connection.cursor() as cursor:
            cursor.execute(statement("move_position").decode(), {"node": node, "term": terms[-1], "idx": indexes[-1]})
    return len(messages)


def is_recorded(queue: str, term: int, idx: int) -> bool:
    """Whether a line has been published."""
    return RecordedLine.objects.filter(queue=queue, term=term, idx=idx).exists()


def forget_recorded(queue: str, node: str) -> None:
    """Delete the records of an earlier network, whose terms and indexes a new network uses again."""
    if not Node.objects.exclude(name=node).exists():
        RecordedLine.objects.filter(queue=queue).delete()


# Lines for IRC.


def claim(message: int) -> bool:
    """Note a message as sent; False if it was noted before."""
    try:
        with transaction.atomic():
            SentLine.objects.create(message=message)
    except IntegrityError:
        return False
    return True


def release(message: int) -> None:
    """Remove the note of a message that was not sent."""
    SentLine.objects.filter(message=message).delete()


def release_dead(message: int) -> bool:
    """Remove the note of a message once it is a dead letter, or gone: then an operator alone sends it again."""
    if _deliverable([message]).exists():
        return False
    release(message)
    return True


def _deliverable(messages: Collection[int]) -> QuerySet[Message]:
    """Those of these messages, known by their first ids, that a queue may deliver by itself."""
    return Message.objects.filter(Q(pk__in=messages) | Q(origin_id__in=messages)).exclude(
        state__in=(State.DEAD, State.DEAD_LEASED)
    )


def prune() -> None:
    """Delete records older than a day; a sent message's record stays while the message may be delivered again."""
    RecordedLine.objects.filter(recorded_at__lt=Now() - KEPT).delete()
    sent = set(SentLine.objects.filter(sent_at__lt=Now() - KEPT).values_list("message", flat=True))
    stored = _deliverable(sent).values_list("pk", "origin_id")
    SentLine.objects.filter(message__in=sent.difference(*stored)).delete()
