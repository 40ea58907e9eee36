"""Dead letters that are put back and delayed messages that are delivered now, as a step of a bulk operation does it."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import DEFAULT_DB_ALIAS

from queues.models import State
from queues.operations.messages import get_queue, given, move_some, no_progress


def put_back(name: str, ids: Sequence[int] | None = None, using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """Give dead letters, all or those with these ids, another life at the tail of their queue; returns how many."""
    queue = get_queue(name, using)
    return move_some(queue, queue, (State.DEAD,), None, given("put-back", ids, by), no_progress, using)


def deliver_now(name: str, ids: Sequence[int], using: str = DEFAULT_DB_ALIAS, by: str = "") -> int:
    """Make delayed messages ready at once, at the tail; returns how many."""
    queue = get_queue(name, using)
    return move_some(queue, queue, (State.DELAYED,), None, given("deliver-now", ids, by, now=True), no_progress, using)
