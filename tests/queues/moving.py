"""Dead letters that are put back and delayed messages that are delivered now, as a step of a bulk operation does it."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import DEFAULT_DB_ALIAS

from queues.models import State
from queues.operations.messages import get_queue, move_some


def put_back(name: str, ids: Sequence[int] | None = None, using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """Give dead letters, all or those with these ids, another life at the tail of their queue; returns how many."""
    queue = get_queue(name, using)
    some = None if ids is None else list(ids)
    return move_some(queue, queue, (State.DEAD,), using, event="put-back", by=by, ids=some, named=_named(some, by))


def deliver_now(name: str, ids: Sequence[int], using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """Make delayed messages ready at once, at the tail; returns how many."""
    queue = get_queue(name, using)
    some, named = list(ids), _named(ids, by)
    return move_some(queue, queue, (State.DELAYED,), using, event="deliver-now", by=by, ids=some, named=named, now=True)


def _named(ids: Sequence[int] | None, by: str) -> bool:
    return ids is not None and bool(by)
