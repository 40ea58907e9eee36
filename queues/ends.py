"""Messages that end outside the engines, counted for /metrics: plain numbers of this process.

Operators, Django and Celery work over connections of their own. What an engine ends it counts itself (`Counts`).
"""

from __future__ import annotations

from collections import Counter
from threading import Lock
from typing import Final, Literal

How = Literal[
    "purged", "removed", "dropped", "rejected", "unheard", "unroutable", "unstored", "forgotten", "temporary_queue",
    "unreadable"
]
#: Each way, in words.
HOW: Final[dict[How, str]] = {
    "purged": "purged by an operator, or deleted with its queue",
    "removed": "removed by an operator one by one",
    "dropped": "the oldest of a full queue, for one of Django's or Celery's",
    "rejected": "refused by a full queue or one that is not there: the caller of Django's or Celery's is told",
    "unheard": "to a topic without a subscription, from Django",
    "unroutable": "of Celery's, to a queue that is not there or an exchange without a binding",
    "unstored": "of Celery's without confirms, refused by its queue or by the database",
    "forgotten": "ended with a subscription that nobody polled, by Celery's upkeep",
    "unreadable": "in a temporary queue of Celery's, and not to be read by its consumer",
    "temporary_queue": "queues of Celery's that ended with what they held, since nobody used them",
}

#: Messages by the way in which they ended.
ends: Final[Counter[str]] = Counter(dict.fromkeys(HOW, 0))
_lock = Lock()


def ended(how: How, count: int = 1) -> None:
    """Count messages that ended in this way. Thread-safe."""
    with _lock:
        ends[how] += count
