"""Publishing in Django's transactions: messages sent inside ``transaction.atomic()`` leave with the commit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from queues.celery.transport.database_of_alias import names
from queues.celery.transport.declaring import Declared
from queues.celery.transport.envelope import MessageRow
from queues.celery.transport.errors import DatabaseUnavailable, NoSuchQueue, PreconditionFailed
from queues.celery.transport.publishing import PublishPath, by_queue, store_routed
from queues.celery.transport.store_connection import StoreConnection

#: Levels of isolation at which a statement sees what was committed before it.
SEEING_OTHERS = ("read committed", "read uncommitted")


class DjangoPublisher:
    """Stores messages on the connection of Django's alias while that is in a transaction, and by `outside` otherwise.

    Temporary queues have replies, events and remote control, which are awaited now, by this thread perhaps: what
    goes there leaves at once, whatever the transaction comes to.
    """

    def __init__(self, alias: str, database: StoreConnection, outside: PublishPath, declared: Declared) -> None:
        self._alias = alias
        self._names = names(alias)
        self._database = database
        self._outside = outside
        self._declared = declared
        #: Queues known to be permanent.
        self._kept: set[str] = set()

    def publish(self, rows: Sequence[MessageRow]) -> None:
        from django.db import connections

        if names(self._alias) != self._names:
            self._database.close()
            raise DatabaseUnavailable(f"{self._alias!r} names another database now")
        if not connections[self._alias].in_atomic_block:
            self._outside.publish(rows)
            return
        queues = by_queue(rows)
        at_once = {queue: queues.pop(queue) for queue in tuple(queues) if self._is_temporary(queue)}
        self._store(queues)
        for own in at_once.values():
            with contextlib.suppress(NoSuchQueue):  # it went a moment ago, with its consumer
                self._outside.publish(own)

    def _is_temporary(self, queue: str) -> bool:
        if queue in self._kept:
            return False
        found = self._database.query("plan", name=queue)
        if not found:  # or it is of this transaction, which alone sees it
            return False
        _, _, _, temporary, _ = found[0]
        if not temporary:
            self._kept.add(queue)
        return bool(temporary)

    def _store(self, queues: dict[str, list[MessageRow]]) -> None:
        from django.db import transaction

        with transaction.atomic(using=self._alias) if len(queues) > 1 else contextlib.nullcontext():
            for queue, rows in queues.items():
                self._store_in(queue, rows)

    def _store_in(self, queue: str, rows: Sequence[MessageRow]) -> None:
        from queues.store.queries import announce_ready, query

        def ask(name: str, /, **parameters: Any) -> list[tuple[Any, ...]]:
            return query(name, self._alias, **parameters)

        try:
            ready = store_routed(ask, queue, rows, False)
        except NoSuchQueue:
            # One that others still see was deleted by this very transaction, and making it would wait for its end.
            others_see_it = bool(self._database.query("plan", name=queue))
            if others_see_it or self._declared.has(queue):
                self._refuse_snapshot(queue)
            if others_see_it or not self._declared.restore(self._database, queue):
                raise
            ready = store_routed(ask, queue, rows, False)
        announce_ready(self._alias, ready)

    def _refuse_snapshot(self, queue: str) -> None:
        """Raise PreconditionFailed in a transaction that keeps its snapshot and so never sees a queue made after it."""
        from django.db import connections

        with connections[self._alias].cursor() as cursor:
            cursor.execute("select current_setting('transaction_isolation')")
            level = cursor.fetchone()[0]
        if level not in SEEING_OTHERS:
            raise PreconditionFailed(
                f"the queue {queue!r} is newer than this transaction ({level}): declare it before", "basic_publish"
            )
