"""Which messages of a durable queue were sent to IRC, so that none is sent twice (docs/protocols/hydra.md).

And the queues themselves, with what keeps their records small.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, transaction
from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from hydra.databasethread import DatabaseThread
from hydra.models import Node, RecordedLine, SentLine
from queues.models import Message, Overflow, Queue
from queues.operations import OperationError, create_queue

KEPT: Final = timedelta(days=1)
RECV_LENGTH: Final = 100_000
"""Lines from IRC that wait for whoever reads them; then the oldest are dropped."""


def prepare_queue(name: str, max_length: int | None = None) -> None:
    """Make the queue if it is not there. Where lines from IRC go, they must not pile up for ever.

    Raises ValueError for a name that no queue can have.
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


def claim(message: int) -> bool:
    """Note that a message is sent; False if it was noted before."""
    try:
        with transaction.atomic():
            SentLine.objects.create(message=message)
    except IntegrityError:
        return False
    return True


def release(message: int) -> None:
    """A message that was noted was not sent after all."""
    SentLine.objects.filter(message=message).delete()


def prune() -> None:
    """Forget lines that were stored long ago, and messages that can no longer come again."""
    RecordedLine.objects.filter(recorded_at__lt=Now() - KEPT).delete()
    stored = Message.objects.filter(id=OuterRef("message"))
    returned = Message.objects.filter(origin_id=OuterRef("message"))
    SentLine.objects.filter(~Exists(stored), ~Exists(returned), sent_at__lt=Now() - KEPT).delete()


def begin_anew(queue: str, node: str) -> None:
    """A network is founded, whose terms begin at 1: the lines of one that is gone must not pass for its own."""
    if not Node.objects.exclude(name=node).exists():
        RecordedLine.objects.filter(queue=queue).delete()


def uses_this_database(voter: str | None) -> bool:
    """Whether the node with this lasting key has its row here."""
    return voter is not None and Node.objects.filter(voter=voter).exists()


class SentLines:
    """The claims of one process, for its `Sender`."""

    def __init__(self, database: DatabaseThread) -> None:
        self._database = database

    async def claim(self, message: int) -> bool:
        """`claim`. Raises OSError when the database is away."""
        return await self._database.run(claim, message)

    async def release(self, message: int) -> None:
        """`release`. Raises OSError when the database is away."""
        await self._database.run(release, message)
