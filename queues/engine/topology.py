"""Where an address leads: a cache of the tables that is checked by each publish in its own transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from queues.engine.cache import Cache
from queues.engine.database import Connection
from queues.engine.policy import QueuePolicy
from queues.engine.source import Address
from queues.engine.statements import statement

#: Addresses remembered, and bytes of their names and targets.
MOST_CACHED = 100_000
MOST_CACHED_BYTES = 32 << 20
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Destination:
    """What an address reaches at one version: queues that store, and QoS 0 subscriptions' queues that do not."""

    version: int
    stored: tuple[int, ...]
    transient: tuple[int, ...]
    #: Subscriptions' queues; a QoS 0 publish reaches them in memory only.
    subscribed: frozenset[int]
    #: The queue that the address names; None for a topic, and for a queue that does not exist.
    own: int | None = None
    #: Those of `stored` that are audited, with their names. The topology moves on when this changes.
    audited: tuple[tuple[int, str], ...] = ()


def _size(address: Address, destination: Destination) -> int:
    return 400 + len(address.name) + 100 * (len(destination.stored) + len(destination.transient))


class Topology:
    """Destinations by address; by queue its policy and the nodes that serve it."""

    def __init__(self) -> None:
        self.version = UNKNOWN
        self.policies: dict[int, QueuePolicy] = {}
        #: Nodes that serve a queue, for queues whose policy is known and that any node serves.
        self.interest: dict[int, set[int]] = {}
        #: Queues with a concurrency limit.
        self.limited: set[int] = set()
        #: Queues whose policies are being read, and which of all readings each is known from.
        self._reading: Counter[int] = Counter()
        self._known_from: dict[int, int] = {}
        self._readings = 0
        self._destinations: Cache[Address, Destination] = Cache(MOST_CACHED, MOST_CACHED_BYTES, _size)

    def destination(self, address: Address) -> Destination | None:
        """What is known of an address at the current version, or None."""
        found = self._destinations.get(address)
        return found if found is not None and found.version == self.version else None

    async def resolve(self, connection: Connection, addresses: Iterable[Address]) -> None:
        """Read where these addresses lead now."""
        asked = list(dict.fromkeys(addresses))
        cursor = await connection.execute(
            statement("resolve"),
            {"kinds": [address.kind for address in asked], "names": [address.name for address in asked]},
        )
        rows = await cursor.fetchall()
        found: dict[int, list[tuple[int, int | None, int | None]]] = {}
        for version, n, queue, subscription, qos in rows:
            self.version = version
            if n is not None:
                found.setdefault(n, []).append((queue, subscription, qos))
        self._destinations.trim()  # before those that are asked for: all of them are needed now
        await self.load_policies(connection, {queue for rows in found.values() for queue, _, _ in rows}, again=True)
        for n, address in enumerate(asked, 1):
            targets = found.get(n, [])
            stored = tuple(dict.fromkeys(queue for queue, _, qos in targets if qos != 0))
            destination = Destination(
                self.version,
                stored,
                tuple(queue for queue, _, qos in targets if qos == 0),
                frozenset(queue for queue, subscription, _ in targets if subscription is not None),
                self._named(address, (queue for queue, _, _ in targets)),
                tuple(self._audited(stored)),
            )
            self._destinations.put(address, destination)

    def _audited(self, queues: Iterable[int]) -> Iterator[tuple[int, str]]:
        for queue in queues:
            policy = self.policies.get(queue)
            if policy is not None and policy.audited:
                yield queue, policy.name

    def _named(self, address: Address, queues: Iterable[int]) -> int | None:
        if address.kind != "queue":
            return None
        name = address.name.decode("utf-8", "replace")
        return next((queue for queue in queues if queue in self.policies and self.policies[queue].name == name), None)

    async def load_policies(self, connection: Connection, queues: Iterable[int], again: bool = False) -> None:
        """Read the policies that are not known, and who serves the queues; with `again` all of them. Deleted queues are
        forgotten."""
        wanted = [queue for queue in queues if again or queue not in self.policies]
        if not wanted:
            return
        self._readings += 1
        reading = self._readings
        self._reading.update(wanted)
        try:
            cursor = await connection.execute(statement("policies"), {"ids": wanted})
            rows = await cursor.fetchall()
        finally:
            self._reading -= Counter(wanted)
        found = {row[0]: (QueuePolicy(*row[:-1]), row[-1]) for row in rows}
        for queue in wanted:
            if self._known_from.get(queue, 0) < reading:  # else a later one, on another connection, was faster
                self._know(queue, reading, *found.get(queue, (None, ())))

    def _know(self, queue: int, reading: int, policy: QueuePolicy | None, served_by: Sequence[int]) -> None:
        if policy is None:
            self.policies.pop(queue, None)
        else:
            self.policies[queue] = policy
        limited = policy is not None and policy.concurrency_limit is not None
        (self.limited.add if limited else self.limited.discard)(queue)
        self._known_from[queue] = reading
        if served_by:
            self.interest[queue] = set(served_by)
        else:
            self.interest.pop(queue, None)

    def concerns(self, queue: int) -> bool:
        """Whether a change of this queue's policy matters here: it is known, or soon will be."""
        return queue in self.policies or queue in self._reading
