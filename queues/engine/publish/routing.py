"""Which queues a destination reaches: a cache of the tables that is checked by each publish in its own transaction.

All of it is right at one version of the topology. When that has moved on, the destinations that are concerned are
forgotten (`follow`), and the others stay.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from queues.engine.cache import Cache
from queues.engine.database import Connection
from queues.engine.policies import Policies
from queues.engine.publish.destination import Destination

#: Destinations remembered, and bytes of their names and targets.
MAX_CACHED = 100_000
MAX_CACHED_BYTES = 32 << 20
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets of a destination: queues that store, and QoS 0 subscriptions' queues that do not."""

    stored: tuple[int, ...]
    transient: tuple[int, ...]
    #: Subscriptions' queues; a QoS 0 publish reaches them in memory only.
    subscribed: frozenset[int]
    #: The queue that the destination names; None for a topic, and for a queue that does not exist.
    own: int | None = None
    #: Those of `stored` that are audited, with their names. The version moves on when this changes.
    audited: tuple[tuple[int, str], ...] = ()
    #: The routes on the ways there.
    routes: tuple[int, ...] = ()


def _size(destination: Destination, targets: Targets) -> int:
    return 400 + len(destination.name) + 100 * sum(map(len, (targets.stored, targets.transient, targets.routes)))


class Routing:
    """Targets by destination, as of one version of the tables."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self.version = UNKNOWN
        self._targets: Cache[Destination, Targets] = Cache(MAX_CACHED, MAX_CACHED_BYTES, _size)

    def forget(self) -> None:
        """Forget everything, because the store's history may differ."""
        self.version = UNKNOWN
        self._targets.clear()

    def targets(self, destination: Destination) -> Targets | None:
        """The known targets of a destination, or None."""
        return self._targets.get(destination)

    async def follow(self, connection: Connection) -> None:
        """Forget the destinations whose targets may have changed since the known version."""
        if self.version == UNKNOWN:
            return
        rows = await connection.rows("topology_changes", {"since": self.version})
        version, everything, *_ = rows[0]
        if everything:
            self.forget()
            return
        for _, _, kind, name in rows:
            if kind is not None:
                self._targets.drop(Destination(kind, bytes(name)))
        self.version = version

    async def resolve(self, connection: Connection, destinations: Iterable[Destination]) -> None:
        """Read the targets of these destinations. They may be those of a later version than the known one: a publish
        then finds that the topology has moved on."""
        asked = list(dict.fromkeys(destinations))
        kinds, names = [one.kind for one in asked], [one.name for one in asked]
        rows = await connection.rows("resolve", {"kinds": kinds, "names": names})
        found: dict[int, list[tuple[int, int | None, int | None]]] = {}
        routes: dict[int, list[int]] = {}
        for version, n, queue, subscription, qos, route in rows:
            if self.version == UNKNOWN:
                self.version = version
            if route is not None:
                routes.setdefault(n, []).append(route)
            elif n is not None:
                found.setdefault(n, []).append((queue, subscription, qos))
        self._targets.trim()  # evict before inserting: all requested destinations are needed now
        await self._policies.load(connection, {queue for some in found.values() for queue, _, _ in some}, again=True)
        known = self._policies.by_id
        for n, destination in enumerate(asked, 1):
            reached = found.get(n, [])
            stored = tuple(dict.fromkeys(queue for queue, _, qos in reached if qos != 0))
            targets = Targets(
                stored,
                tuple(queue for queue, _, qos in reached if qos == 0),
                frozenset(queue for queue, subscription, _ in reached if subscription is not None),
                self._named(destination, (queue for queue, _, _ in reached)),
                tuple((one, known[one].name) for one in stored if one in known and known[one].audited),
                tuple(routes.get(n, ())),
            )
            self._targets.put(destination, targets)

    def _named(self, destination: Destination, queues: Iterable[int]) -> int | None:
        if destination.kind != "queue":
            return None
        name = destination.name.decode("utf-8", "replace")
        policies = self._policies.by_id
        return next((queue for queue in queues if queue in policies and policies[queue].name == name), None)
