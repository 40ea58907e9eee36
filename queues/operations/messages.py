"""Operators' actions on the messages of a queue: purge, move, look. See `queues.operations.queues`.

`by` is who does it, and stands in the audit chains: in that of an audited queue for each message, in that of operators
for each message that was named. Rows are noted in the transaction that changes the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from queues.ends import ended
from queues.engine.api import Purge, QueueFull, QueueNotFound
from queues.errors import OperationError
from queues.models import Message, Outcome, Overflow, Queue, State
from queues.permissions.rules import Operation, Protocol, is_allowed
from queues.store.queries import announce_ready, drop_oldest, notify, query, whole

Progress = Callable[[int], None]

BATCH = 4000
#: Leases are found by reading the whole table, so that is done seldom.
LEASE_BATCH = 100_000
#: The states of messages that wait for delivery: those are purged or moved by default.
WAITING = (State.DELAYED, State.READY)
LEASES = (State.LEASED, State.DEAD_LEASED)


def no_progress(count: int) -> None:
    """Ignore progress."""


def get_queue(name: str, using: str = DEFAULT_DB_ALIAS) -> Queue:
    """The queue of this name. Raises QueueNotFound."""
    queue = Queue.objects.using(using).filter(name=name).first()
    if queue is None:
        raise QueueNotFound(repr(name))
    return queue


def purge(
    name: str, states: Iterable[State] = WAITING, progress: Progress = no_progress, using: str = DEFAULT_DB_ALIAS,
    by: str = "",
) -> int:  # fmt: skip
    """Remove what a queue holds now in these states; returns how many. What is confirmed later stays.

    With READY among them nodes also drop what they hold in memory for delivery, which is not in the number. Finished
    messages are archived as purged. Raises QueueNotFound.
    """
    queue, wanted, done, high = get_queue(name, using), tuple(states), 0, newest(using)
    for state in wanted:
        for gone in purge_batches(queue.pk, state, Outcome.PURGED, using, by=by, high=high):
            done += gone
            progress(done)
    if State.READY in wanted:
        notify(using, Purge(queue.pk, by, high))
    return done


def remove_messages(name: str, ids: Sequence[int], using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """Remove single messages that no consumer has; returns how many there were. Raises QueueNotFound."""
    queue = get_queue(name, using)
    states = (State.READY, State.DELAYED, State.DEAD)
    named = bool(by)
    return sum(sum(purge_batches(queue.pk, state, Outcome.REMOVED, using, ids, by, named=named)) for state in states)


def purge_batches(
    queue: int, state: State, outcome: Outcome, using: str, ids: Sequence[int] | None = None, by: str = "",
    high: int | None = None, named: bool = False,
) -> Iterator[int]:  # fmt: skip
    """Remove what is there now, or was when `newest` gave `high`, batch by batch: the size of each.

    `named`: whether the chain of operators has a row for each.
    """
    high = newest(using) if high is None else high
    limit = LEASE_BATCH if state in LEASES else BATCH
    parameters = {
        "queue": queue, "state": int(state), "outcome": int(outcome), "limit": limit, "high": high,
        "ids": None if ids is None else list(ids), "by": by, "named": named,
        "event": "remove" if outcome == Outcome.REMOVED else "purge",
    }  # fmt: skip

    def remove() -> int:
        if ids is not None and state == State.READY:
            unpack(ids, using)
        return int(query("purge", using, **parameters)[0][0])

    while True:
        if gone := whole(remove, using):
            ended("removed" if outcome == Outcome.REMOVED else "purged", gone)
            yield gone
        may_be_packed = ids is None and state == State.READY
        if gone < limit and not (may_be_packed and whole(lambda: _unpack_oldest(queue, high, limit, using), using)):
            return


def unpack(ids: Iterable[int], using: str) -> None:
    """Give these messages rows of their own, as far as they are in ready segments: what is done to single messages is
    done to rows. For the transaction that does it."""
    query("unpack_messages", using, ids=list(ids))


def _unpack_oldest(queue: int, high: int, messages: int, using: str) -> int:
    """The same for the oldest segments of a queue; returns how many that were."""
    return int(query("unpack_oldest", using, queue=queue, high=high, messages=messages)[0][0])


def move(
    source: str, target: str, states: Iterable[State] = WAITING, limit: int | None = None,
    progress: Progress = no_progress, using: str = DEFAULT_DB_ALIAS, by: str = "",
) -> int:  # fmt: skip
    """Move messages to the tail of another queue, oldest first; returns how many.

    Dead letters become ready there with no attempts, delayed messages keep their time. A message keeps the id by
    which it is found. Raises QueueNotFound, OperationError for a target of the system's, or QueueFull when the target
    rejects more; what was moved before stays moved.
    """
    if source == target:
        raise OperationError("The source and the target are the same queue.")
    if not is_allowed(Protocol.OPERATOR, Operation.PUBLISH, "queue", target):
        raise OperationError(f"Nothing can be moved to {target!r}: it is the system's.")
    from_, to = get_queue(source, using), get_queue(target, using)
    return move_some(from_, to, states, using, event="move", by=by, limit=limit, progress=progress)


def move_some(
    source: Queue, target: Queue, states: Iterable[State], using: str, *, event: str, by: str, limit: int | None = None,
    ids: list[int] | None = None, progress: Progress = no_progress, named: bool = False, now: bool = False,
    home: bool = False,
) -> int:  # fmt: skip
    """Move batch by batch, of some messages or of all, as move.sql does; returns how many. Raises QueueFull or
    QueueNotFound."""
    done = 0
    given = {
        "event": event, "ids": ids, "by": by, "high": newest(using), "named": named, "now": now, "home": home
    }  # fmt: skip
    for state in states:
        while limit is None or done < limit:
            size = BATCH if limit is None else min(BATCH, limit - done)
            moved = whole(partial(_move_batch, source, target, size, given | {"state": int(state)}, using), using)
            if not moved:
                break
            done += moved
            progress(done)
    return done


def _move_batch(source: Queue, target: Queue, size: int, parameters: dict[str, Any], using: str) -> int:
    """Move one batch, within what the target may hold. Raises QueueFull or QueueNotFound. For a transaction that ends
    with it."""
    if parameters["state"] == State.READY:
        if parameters["ids"] is None:
            _unpack_oldest(source.pk, parameters["high"], size, using)
        else:
            unpack(parameters["ids"], using)
    adds = source.pk != target.pk or parameters["state"] == State.DEAD
    room = room_in(target, adds, using)
    rejects = room is not None and target.overflow == Overflow.REJECT
    if room is not None and rejects:
        size = min(size, max(0, room))
    [(moved, first)] = query("move", using, source=source.pk, target=target.pk, limit=max(size, 1), **parameters)
    if rejects and moved > size:  # one more was there and does not fit
        raise no_room(target)
    arrived(target, moved, first, room, using)
    return int(moved)


def room_in(target: Queue, adds: bool, using: str) -> int | None:
    """Keep a queue from being deleted before the transaction ends; returns how many more messages it may hold, if
    there is a limit and the transaction `adds` some. Raises QueueNotFound."""
    with connections[using].cursor() as cursor:
        cursor.execute("select 1 from queues_queue where id = %s for key share", [target.pk])
        if cursor.fetchone() is None:  # deleted meanwhile
            raise QueueNotFound(repr(target.name))
    room: int | None = None
    if adds and target.max_length is not None:
        room = query("admit", using, queues=[target.pk])[0][1]
    return room


def no_room(target: Queue) -> QueueFull:
    """The error of a queue that rejects more."""
    return QueueFull(f"{target.name!r} holds {target.max_length} messages, which is all it may")


def arrived(target: Queue, count: int, first: int | None, room: int | None, using: str) -> None:
    """So many messages came to a queue that had this room, the first ready one with this id: announce them, and drop
    what is too much for one that does not reject."""
    if first is not None:
        announce_ready(using, {target.pk: first})
    if room is not None and target.overflow != Overflow.REJECT and count > room:
        drop_oldest(target.pk, count - room, using)


def peek(name: str, state: State = State.READY, limit: int = 10, using: str = DEFAULT_DB_ALIAS) -> list[Message]:
    """The oldest messages of a queue in one state, left as they are. Raises QueueNotFound."""
    rows = Message.objects.using(using).within_reach(limit, queue=get_queue(name, using).pk, state=state)
    return list(rows.order_by("id")[:limit])


def newest(using: str) -> int:
    """An id, without a priority, above those of all messages there are; those that arrive later have greater ones."""
    return int(query("newest", using)[0][0])
