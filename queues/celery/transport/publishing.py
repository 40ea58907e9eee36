"""Publishing of messages, durable when `publish` returns.

A queue with nothing special about it takes a short way: what must be known of it is remembered, and the statement that
stores checks that it still holds. Queues with routes, a maximum length or an audit chain take the way of
`queues.api.publish`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from queues.celery.transport.declaring import Declared
from queues.celery.transport.envelope import SHORTEST, MessageRow
from queues.celery.transport.errors import NoSuchQueue, QueueIsFull
from queues.celery.transport.store_connection import StoreConnection
from queues.database.sql_files import ALL, text_array
from queues.ends import ended
from queues.engine.api import FOLLOWING, Ready, statement_parts

#: Queues that one notification names, at most: it has less than 8,000 bytes.
MAX_ANNOUNCED = 100


class PublishPath(Protocol):
    """The publisher of a channel."""

    def publish(self, rows: Sequence[MessageRow]) -> None:
        """Store messages, in order, all or none. Raises NoSuchQueue or QueueIsFull."""


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """A queue as of one version of the topology."""

    version: int
    id: int
    ttl: float | None
    temporary: bool
    plain: bool


class ConnectionPublisher:
    """Stores messages on a connection of its own: committed when `publish` returns.

    A queue that was `declared` and is gone since is made again, once a publish.
    """

    def __init__(self, database: StoreConnection, declared: Declared) -> None:
        self._database = database
        self._declared = declared
        self._plans: dict[str, QueuePlan] = {}
        #: Announced after the commit: queues with their lowest new ids, and temporary queues.
        self._ready: dict[int, int] = {}
        self._temporary: set[int] = set()
        #: Per announced queue: until this time, messages above this id need no announcement.
        self._followed: dict[int, tuple[float, int]] = {}

    def publish(self, rows: Sequence[MessageRow]) -> None:
        restored: set[str] = set()
        while True:
            try:
                return self._try(rows)
            except NoSuchQueue as error:
                if error.queue in restored or not self._declared.restore(self._database, error.queue):
                    raise
                restored.add(error.queue)

    def _try(self, rows: Sequence[MessageRow]) -> None:
        self._ready.clear()
        self._temporary.clear()
        steps = list(statement_parts(rows, lambda row: len(row.payload)))
        with self._whole(len(steps)):
            for part in steps:
                self._publish(part)
        if (ready := self._to_announce()) or self._temporary:
            self._database.announce(Ready(ready, followed=True), self._temporary)

    def _to_announce(self) -> dict[int, int]:
        """The ready queues that were not announced a moment ago. Engines look into announced ones again soon. A
        notification costs the server two thirds of what storing a message does, and each engine two turns of its
        loop."""
        now = time.monotonic()
        ready = {queue: first for queue, first in self._ready.items() if not self._is_followed(queue, first, now)}
        self._followed.update((queue, (now + FOLLOWING, first)) for queue, first in ready.items())
        return ready

    def _is_followed(self, queue: int, first: int, now: float) -> bool:
        until, lowest = self._followed.get(queue, (0.0, 0))
        return now < until and first > lowest

    def _publish(self, rows: Sequence[MessageRow]) -> None:
        if all(self._plan(row.queue).plain for row in rows):
            self._store(rows)
            return
        queues = by_queue(rows)
        with self._whole(len(queues)):
            for queue, own in queues.items():
                self._note_ready(store_routed(self._database.query, queue, own, True))
                if (plan := self._plan(queue)).temporary:
                    self._temporary.add(plan.id)

    def _whole(self, statements: int) -> AbstractContextManager[Any]:
        """A transaction for several statements. A single one needs none."""
        return self._database.transaction() if statements > 1 else nullcontext()

    def _plan(self, queue: str) -> QueuePlan:
        plan = self._plans.get(queue)
        if plan is None:
            found = self._database.query("plan", name=queue)
            if not found:
                raise NoSuchQueue(queue)
            plan = self._plans[queue] = QueuePlan(*found[0])
        return plan

    def _store(self, rows: Sequence[MessageRow]) -> None:
        while True:
            plans = [self._plan(row.queue) for row in rows]
            if not all(plan.plain for plan in plans):
                return self._publish(rows)
            version = min(plan.version for plan in plans)
            if len(rows) == 1:
                stored = self._database.query("store_one", version=version, **_values(rows[0], plans[0]))
            else:
                stored = self._database.query(
                    "store", version=version, announce=self._announces(plans), queues=[plan.id for plan in plans],
                    ttls=[_lifetime(row, plan) for row, plan in zip(rows, plans, strict=True)], **_columns(rows),
                )  # fmt: skip
            if stored:
                break
            self._plans.clear()  # the topology has moved on
            self._followed.clear()
        [(first, places, announced)] = stored
        for place in places if not announced else ():
            self._note(first, rows[place], plans[place])
        if len(places) < len(rows):  # their dedupe keys are taken: the task is under way, and this is its retry
            left = set(range(len(rows))).difference(places)
            self._store([rows[place].without_key() for place in sorted(left)])

    def _announces(self, plans: Sequence[QueuePlan]) -> bool:
        """Whether the storing statement itself notifies engines. It does if one notification is enough and the commit
        does not wait for the disk."""
        if self._database.durable or any(plan.temporary for plan in plans):
            return False
        return len({plan.id for plan in plans}) <= MAX_ANNOUNCED

    def _note(self, first: int, row: MessageRow, plan: QueuePlan) -> None:
        if not row.delay:
            self._note_ready({plan.id: first - (row.priority << 56)})
            if plan.temporary:
                self._temporary.add(plan.id)

    def _note_ready(self, ready: Mapping[int, int]) -> None:
        for queue, first in ready.items():
            self._ready[queue] = min(first, self._ready.get(queue, first))


def store_routed(
    query: Callable[..., list[tuple[Any, ...]]], queue: str, rows: Sequence[MessageRow], exact: bool
) -> dict[int, int]:
    """Store messages as `queues.api.publish` does, through routes, within limits, recorded where that is asked for.

    Returns queues in which messages became ready, with the first position in each: to be announced after the commit.
    """
    # There a time to live begins when the delay has ended.
    ttls = [None if row.ttl is None else max(row.ttl - row.delay, SHORTEST) for row in rows]
    [(exists, _, full, dropping, stored, ready, _)] = query(
        "publish_routed", kind="queue", name=queue, exact=exact, ttls=ttls, attempts=[None] * len(rows),
        **_columns(rows),
    )  # fmt: skip
    if not exists:
        raise NoSuchQueue(queue)
    if full:
        raise QueueIsFull(", ".join(full))
    for id in dropping or ():
        [(room,)] = query("room", queue=id)
        if room is not None and room < 0:
            query("unpack_ready", queue=id, count=-room)  # from before the queue had a limit
            [(dropped, *_)] = query("drop_oldest", queue=id, count=-room, **ALL)
            ended("dropped", dropped)
    taken = [row.without_key() for row, id in zip(rows, stored, strict=True) if id is None]
    again = store_routed(query, queue, taken, exact) if taken else {}
    return again | {int(queue): first for queue, first in (ready or {}).items()}


def _columns(rows: Sequence[MessageRow]) -> dict[str, Any]:
    """The columns that store.sql and publish_routed.sql share, as one list per column."""
    return {
        "bodies": [row.payload for row in rows],
        "keys": [row.key for row in rows],
        "headers": text_array(row.headers for row in rows),
        "delays": [row.delay for row in rows],
        "priorities": [row.priority for row in rows],
        "contents": [row.content for row in rows],
    }


def _values(row: MessageRow, plan: QueuePlan) -> dict[str, Any]:
    """The parameters of store_one.sql."""
    return {
        "queue": plan.id,
        "body": row.payload,
        "key": row.key,
        "headers": row.headers,
        "delay": row.delay,
        "ttl": _lifetime(row, plan),
        "priority": row.priority,
        "content": row.content,
    }


def _lifetime(row: MessageRow, plan: QueuePlan) -> float | None:
    """Seconds from now until the message expires: the shorter of its own TTL and the queue's. The queue's begins when
    the delay has ended."""
    times = [row.ttl, None if plan.ttl is None else plan.ttl + row.delay]
    return min((time for time in times if time is not None), default=None)


def by_queue(rows: Iterable[MessageRow]) -> dict[str, list[MessageRow]]:
    queues: dict[str, list[MessageRow]] = defaultdict(list)
    for row in rows:
        queues[row.queue].append(row)
    return queues
