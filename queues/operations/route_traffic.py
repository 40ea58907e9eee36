"""What routes carry. No models: processes that serve metrics only import this too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from django.db import DEFAULT_DB_ALIAS

from queues.store import query_within

#: Seconds over which a rate is taken, as the statement has it.
LATELY = 60


class RouteTraffic(NamedTuple):
    """The messages that a route has ever carried, and a second in the last minute. Each is counted once for every
    route on its way, whatever becomes of it at the target."""

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
    ids = None if routes is None else list(routes)
    rows = query_within("route_traffic", using, limit, routes=ids)
    return {id: RouteTraffic(source, target, carried, lately / LATELY) for id, source, target, carried, lately in rows}
