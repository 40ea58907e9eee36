"""Queues as this node knows them: their policies, and the nodes that serve them.

Both are read from the tables, at first when a queue is used here, then whenever a notification says that one has
changed. A reading that was overtaken by a later one, on another connection, changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from queues.engine.database import Connection
from queues.engine.node import LocalNode
from queues.permissions.rules import MAILBOX_PREFIX


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A queue's policy. Times are seconds; None is no limit; `max_attempts` 0 is no limit."""

    id: int
    name: str
    paused: bool
    refuse_when_paused: bool
    concurrency_limit: int | None
    max_attempts: int
    retry_backoff: float
    retry_backoff_cap: float
    ack_timeout: float | None
    message_ttl: float | None
    max_length: int | None
    overflow: str
    retention: str
    dead_letter_queue_id: int | None
    allow_job_overrides: bool = True
    uuid: str = ""
    audited: bool = False
    single_active_consumer: bool = False

    @property
    def may_lease_on_publish(self) -> bool:
        """Whether a new message may go to memory at once; a queue with limits is delivered by claims only."""
        return not self.paused and self.concurrency_limit is None and self.max_length is None

    @property
    def packs(self) -> bool:
        """Whether its messages may be stored as segments: nothing but their ends is kept, consumers take many at once,
        and they are no letters, which are claimed by their own statement."""
        return not (self.retention == "full" or self.taken_as_asked or self.name.startswith(MAILBOX_PREFIX))

    @property
    def taken_as_asked(self) -> bool:
        """Whether no more is taken into memory than consumers ask for: messages there would count as being worked on
        though no consumer has it, or could not be dropped though it is the oldest."""
        return self.concurrency_limit is not None or (self.max_length is not None and self.overflow == "drop-oldest")

    def backoff(self, attempts: int, own: float | None = None) -> float:
        """Seconds to wait after the `attempts`-th failed delivery (1, 2, …); `own` is a message's, always the same."""
        if own is not None:
            return own
        return min(self.retry_backoff * 2.0 ** min(attempts - 1, 60), self.retry_backoff_cap)

    def exhausted(self, attempts: int, own_limit: int | None) -> bool:
        """Whether a message is given up after `attempts` failed deliveries."""
        limit = self.max_attempts if own_limit is None else own_limit
        return 0 < limit <= attempts


class Policies:
    """The policies of the queues that are used here, and the nodes that serve them."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self.by_id: dict[int, QueuePolicy] = {}
        #: Nodes that serve a queue, for queues whose policy is known and that any node serves.
        self.served_by: dict[int, set[int]] = {}
        #: Queues with a concurrency limit.
        self.limited: set[int] = set()
        #: Queues whose policies are being read, and which of all readings each is known from.
        self._reading: Counter[int] = Counter()
        self._known_from: dict[int, int] = {}
        self._readings = 0

    def others(self, queue: int) -> set[int]:
        """The other nodes that serve a queue."""
        return self.served_by.get(queue, set()) - {self._node.id}

    def is_shared(self, queue: int) -> bool:
        """Whether another node serves this queue, too."""
        return bool(self.others(queue))

    def concerns(self, queue: int) -> bool:
        """Whether a change of this queue's policy matters here: it is known, or soon will be."""
        return queue in self.by_id or queue in self._reading

    async def load(self, connection: Connection, queues: Iterable[int], again: bool = False) -> None:
        """Read the policies that are not known, and who serves the queues; with `again` all of them. Deleted queues are
        forgotten."""
        wanted = [queue for queue in queues if again or queue not in self.by_id]
        if not wanted:
            return
        self._readings += 1
        reading = self._readings
        self._reading.update(wanted)
        try:
            rows = await connection.rows("policies", {"ids": wanted})
        finally:
            self._reading -= Counter(wanted)
        found = {row[0]: (QueuePolicy(*row[:-1]), row[-1]) for row in rows}
        for queue in wanted:
            if self._known_from.get(queue, 0) < reading:  # else a later one, on another connection, was faster
                self._know(queue, reading, *found.get(queue, (None, ())))

    def _know(self, queue: int, reading: int, policy: QueuePolicy | None, served_by: Sequence[int]) -> None:
        if policy is None:
            self.by_id.pop(queue, None)
        else:
            self.by_id[queue] = policy
        limited = policy is not None and policy.concurrency_limit is not None
        (self.limited.add if limited else self.limited.discard)(queue)
        self._known_from[queue] = reading
        if served_by:
            self.served_by[queue] = set(served_by)
        else:
            self.served_by.pop(queue, None)
