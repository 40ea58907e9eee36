"""Where an address leads: a cache of the tables that is checked by each publish in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queues.engine.database import Connection
from queues.engine.policy import QueuePolicy
from queues.engine.source import Address
from queues.engine.statements import statement

#: Addresses remembered; the oldest half is forgotten when there are more.
MOST_CACHED = 100_000
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


class Topology:
    """Destinations by address, policies by queue, and which other nodes serve a queue."""

    def __init__(self) -> None:
        self.version = UNKNOWN
        self.policies: dict[int, QueuePolicy] = {}
        #: Nodes that serve a queue, for queues that anybody serves.
        self.interest: dict[int, set[int]] = {}
        self._destinations: dict[Address, Destination] = {}

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
        if len(self._destinations) > MOST_CACHED:
            for old in list(self._destinations)[: MOST_CACHED // 2]:
                del self._destinations[old]
        await self.load_policies(connection, {queue for rows in found.values() for queue, _, _ in rows}, again=True)
        for n, address in enumerate(asked, 1):
            targets = found.get(n, [])
            self._destinations[address] = Destination(
                self.version,
                tuple(dict.fromkeys(queue for queue, _, qos in targets if qos != 0)),
                tuple(queue for queue, _, qos in targets if qos == 0),
                frozenset(queue for queue, subscription, _ in targets if subscription is not None),
                self._named(address, (queue for queue, _, _ in targets)),
            )

    def _named(self, address: Address, queues: Iterable[int]) -> int | None:
        if address.kind != "queue":
            return None
        name = address.name.decode("utf-8", "replace")
        return next((queue for queue in queues if queue in self.policies and self.policies[queue].name == name), None)

    async def load_policies(self, connection: Connection, queues: Iterable[int], again: bool = False) -> None:
        """Read the policies that are not known; with `again` all of them. Deleted queues are forgotten."""
        wanted = [queue for queue in queues if again or queue not in self.policies]
        if not wanted:
            return
        cursor = await connection.execute(statement("policies"), {"ids": wanted})
        for queue in wanted:
            self.policies.pop(queue, None)
        for row in await cursor.fetchall():
            self.policies[row[0]] = QueuePolicy(*row)
