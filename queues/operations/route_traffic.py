"""Traffic of routes and of dead letters. No models: processes that serve metrics only import this too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS

from queues.store.queries import query_within

#: Seconds over which a rate is taken. The statement has the same number.
LATELY = 60


class RouteTraffic(NamedTuple):
    """The messages that went from one address to another, ever and a second in the last minute. A published message is
    counted once for every route on its way, whatever becomes of it at the target."""

    source: str = ""
    target: str = ""
    carried: int = 0
    rate: float = 0.0


def read_traffic(
    routes: Iterable[int] | None = None, using: str = DEFAULT_DB_ALIAS, limit: int = 0
) -> dict[int, RouteTraffic]:
    """The traffic of these routes, or of all, by id and in order; one query. Nodes write theirs every five seconds.

    With a `limit`, raises django.db.OperationalError when it takes more milliseconds.
    """
    return _read("route_traffic", routes, using, limit)


def read_dead_letter_traffic(
    queues: Iterable[int] | None = None, using: str = DEFAULT_DB_ALIAS, limit: int = 0
) -> dict[int, RouteTraffic]:
    """The dead letters that these queues, or all, have moved to the dead-letter queues that they have now, by id and in
    order of their names; queues without one are left out. One query; exact. Raises as `read_traffic`."""
    return _read("dead_letter_traffic", queues, using, limit)


def _read(name: str, ids: Iterable[int] | None, using: str, limit: int) -> dict[int, RouteTraffic]:
    rows = query_within(name, using, limit, ids=None if ids is None else list(ids))
    return {id: RouteTraffic(source, target, carried, lately / LATELY) for id, source, target, carried, lately in rows}
