"""The effects of a queue's settings, in a sentence each, to stand beside the fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta

from queues.admin.charts import format_seconds
from queues.models import Overflow, Queue, Retention

#: Waits that are written out.
MAX_WAITS = 5


def effects(queue: Queue) -> dict[str, str]:
    """A sentence for each field of which there is something to say."""
    return {field: text for field, describe in DESCRIBED.items() if (text := describe(queue))}


def _paused(queue: Queue) -> str:
    return "Nothing is delivered now; producers are not refused." if queue.paused else "Messages are delivered now."


def _max_attempts(queue: Queue) -> str:
    if not queue.max_attempts:
        return "A message is delivered until it is acknowledged or expires."
    target = f"goes to {queue.dead_letter_queue.name}" if queue.dead_letter_queue else "becomes a dead letter here"
    return f"After {queue.max_attempts} deliveries without success a message {target}."


def _retry_backoff(queue: Queue) -> str:
    if not queue.retry_backoff:
        return "A returned message is delivered again at once."
    most = queue.max_attempts - 1 if queue.max_attempts else MAX_WAITS
    waits = [min(queue.retry_backoff * 2**n, queue.retry_backoff_cap) for n in range(min(most, MAX_WAITS))]
    if not waits:
        return "There is no second delivery."
    more = "" if most <= MAX_WAITS and queue.max_attempts else " and so on"
    return f"It waits {', '.join(map(_time, waits))}{more} between deliveries."


def _ack_timeout(queue: Queue) -> str:
    if queue.ack_timeout is None:
        return "A consumer that hangs keeps its messages until it disconnects."
    return f"What is not acknowledged within {_time(queue.ack_timeout)} counts as failed and is delivered again."


def _message_ttl(queue: Queue) -> str:
    if queue.message_ttl is None:
        return "Messages wait for as long as it takes."
    return f"What has waited for {_time(queue.message_ttl)} leaves the queue undelivered."


def _max_length(queue: Queue) -> str:
    if queue.max_length is None:
        return "It grows as far as the disk allows."
    return f"With {queue.max_length:,} messages it is full."


def _overflow(queue: Queue) -> str:
    if queue.max_length is None:
        return "It has no effect without a maximum length."
    rejects = queue.overflow == Overflow.REJECT
    return "Producers are refused while it is full." if rejects else "While it is full the oldest message is lost."


def _concurrency_limit(queue: Queue) -> str:
    if queue.concurrency_limit is None:
        return "Consumers have as many at a time as they ask for."
    return f"With {queue.concurrency_limit:,} being worked on, the next one waits."


def _single_active_consumer(queue: Queue) -> str:
    if not queue.single_active_consumer:
        return "All consumers are given messages, in turns."
    return "What the active consumer had and did not settle comes again first, in its place, to the next one."


def _retention(queue: Queue) -> str:
    kept = {
        Retention.NONE: "A finished message leaves no trace: ETL and the page of its life have nothing of it.",
        Retention.METADATA: "Of a finished message there are times, attempts and outcome, not the payload.",
        Retention.FULL: "Finished messages can be read, exported and published again.",
    }
    return kept[Retention(queue.retention)]


DESCRIBED: Mapping[str, Callable[[Queue], str]] = {
    "paused": _paused, "max_attempts": _max_attempts, "retry_backoff": _retry_backoff, "ack_timeout": _ack_timeout,
    "message_ttl": _message_ttl, "max_length": _max_length, "overflow": _overflow,
    "concurrency_limit": _concurrency_limit, "single_active_consumer": _single_active_consumer,
    "retention": _retention,
}  # fmt: skip


def _time(value: timedelta) -> str:
    return format_seconds(value.total_seconds())
