"""The queues that this node has in memory: opened by sessions, given their policies when these change.

A queue is here from its first use until it is deleted. Its dead letters are a prefetched queue of their own, for
consumers that read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from queues.engine.connections import Connections
from queues.engine.consume.deliveries import published_id
from queues.engine.consume.fetcher import Fetcher
from queues.engine.consume.low_watermark import FIRST
from queues.engine.consume.prefetched_queue import LocalDeadLetters, PrefetchedQueue, QueueSchedule
from queues.engine.errors import QueueNotFound
from queues.engine.policies import Policies, QueuePolicy
from queues.engine.settle.writer import SettlementWriter
from queues.permissions.rules import MAILBOX_PREFIX


@dataclass(eq=False, repr=False)
class PrefetchedQueues:
    """All prefetched queues of one engine, by the ids of their queues."""

    _policies: Policies
    _connections: Connections
    _settlements: SettlementWriter
    _fetcher: Fetcher
    schedule: QueueSchedule = field(default_factory=QueueSchedule)
    queues: dict[int, PrefetchedQueue] = field(default_factory=dict)
    dead_letters: dict[int, LocalDeadLetters] = field(default_factory=dict)

    def __iter__(self) -> Iterator[PrefetchedQueue]:
        """All of them, dead letters too."""
        yield from (*self.queues.values(), *self.dead_letters.values())

    # Used by sessions.

    async def open(self, id: int, first_tag: int = 1) -> PrefetchedQueue:
        """A queue, opened if necessary. Raises QueueNotFound or StoreUnavailable."""
        if id not in self.queues:
            policy = await self._policy(id)
            queue = PrefetchedQueue(policy, self._settlements, self._fetcher, self.schedule, first_tag)
            self.queues.setdefault(id, queue).interest.share(self._policies.is_shared(id))
        return self.queues[id]

    async def named(self, name: str) -> PrefetchedQueue:
        """Open a queue by its name; errors as of `open`."""
        return await self.open(await self._id_of(name))

    async def dead_letters_of(self, name: str) -> LocalDeadLetters:
        """The dead letters of a queue. Raises QueueNotFound or StoreUnavailable."""
        id = await self._id_of(name)
        if id not in self.dead_letters:
            policy = await self._policy(id)
            queue = LocalDeadLetters(policy, self._settlements, self._fetcher, self.schedule)
            self.dead_letters.setdefault(id, queue)
        return self.dead_letters[id]

    async def load_policies(self, queues: Sequence[int]) -> None:
        """Read the policies of unknown queues. Raises StoreUnavailable."""
        await self._connections.to_its_end(self._load_policies(queues))

    def with_consumers(self, name: str) -> list[int]:
        """First ids of the messages of a queue that consumers of this process have."""
        entries = (queue.unacked.values() for queue in self._named(name))
        return [published_id(id, detail) for id, _, _, detail in chain.from_iterable(entries)]

    def prefetched(self, name: str, most: int) -> list[int]:
        """First ids of a queue's messages that wait in this process for its next free consumers, at most `most`."""
        first = (islice(queue.ready, most) for queue in self._named(name))
        return [published_id(id, detail) for id, _, _, detail in chain.from_iterable(first)]

    def ids_of(self, name: str) -> list[int]:
        """The ids of the prefetched queues of this name: two while one that was deleted is not yet heard of."""
        return [queue.id for queue in self._named(name)]

    def _named(self, name: str) -> list[PrefetchedQueue]:
        return [queue for queue in self.queues.values() if queue.policy.name == name]

    async def _id_of(self, name: str) -> int:
        rows = []
        if not name.startswith(MAILBOX_PREFIX) and "\0" not in name:
            rows = await self._connections.look_up("queue_id", name=name)
        if not rows:
            raise QueueNotFound(name)
        return int(rows[0][0])

    async def _policy(self, id: int) -> QueuePolicy:
        if id not in self._policies.by_id:
            await self.load_policies([id])
        if id not in self._policies.by_id:
            raise QueueNotFound(str(id))
        return self._policies.by_id[id]

    async def _load_policies(self, queues: Sequence[int]) -> None:
        async with self._connections.asking() as connection:
            await self._policies.load(connection, queues)

    # Used by the engine.

    def obey(self, id: int) -> bool:
        """Take a queue's policy and serving nodes, read again. Returns False if the queue is gone."""
        policy = self._policies.by_id.get(id)
        known = [queue for queue in (self.queues.get(id), self.dead_letters.get(id)) if queue is not None]
        if policy is not None and any(queue.policy.uuid != policy.uuid for queue in known):
            policy = None  # a restored store has reused the id
        shared = self._policies.is_shared(id)
        for queue in known:
            queue.interest.share(shared)
            if policy != queue.policy:
                queue.change_policy(policy)
        if policy is None:
            self.queues.pop(id, None)
            self.dead_letters.pop(id, None)
        return policy is not None

    @property
    def claiming(self) -> bool:
        """Whether messages are on their way from the store."""
        return any(queue.backlog.claiming for queue in self.queues.values())

    def look_again(self) -> None:
        """Notifications may have been missed: every queue may have messages in the store."""
        for queue in self:
            queue.prefetch.more_in_store(FIRST)

    def lose_leases(self) -> None:
        """The leases are lost with the connections."""
        self.schedule.deliveries.clear()
        for queue in self:
            queue.lose_leases()

    def forget_history(self) -> None:
        """The store has another past: earlier deliveries are not settled any more."""
        for queue in self:
            queue.held.forget_stale()
