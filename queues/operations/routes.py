"""Routes: what is published to one address is copied to another in the same transaction. Loops are refused."""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from queues.errors import BrokerError
from queues.models import Queue, Route
from queues.permissions.addresses import SYSTEMS, InvalidAddress, parse_address, parse_target
from queues.permissions.rules import Operation, Protocol, is_allowed


class RouteError(BrokerError, ValueError):
    """A route cannot be added or removed."""


class RouteExists(RouteError):
    """There is this route already."""


class RouteLoop(RouteError):
    """The route would lead back to where it begins."""


class RouteNotFound(RouteError):
    """There is no such route."""


def normal_source(text: str) -> str:
    """The source of a route, with its kind: "orders" is "queue:orders". Raises InvalidAddress."""
    kind, name = _routable(text, Operation.CONSUME, *parse_address(text))
    return f"{kind}:{name}"


def normal_target(text: str) -> str:
    """The target of a route, with its kind. Raises InvalidAddress."""
    kind, name = _routable(text, Operation.PUBLISH, *parse_target(text))
    return f"{kind}:{name}"


def _routable(text: str, operation: Operation, kind: str, name: str) -> tuple[str, str]:
    if not is_allowed(Protocol.ROUTE, operation, kind, name):
        raise InvalidAddress(text, SYSTEMS)
    return kind, name


def add_route(source: str, target: str, using: str = DEFAULT_DB_ALIAS) -> Route:
    """Copy what is published to `source` to `target` from the next publish on, on every node.

    Addresses are "queue:NAME" or "topic:NAME", for the target also "peer:NAME"; a bare name is a queue's. Neither end
    needs to exist yet, but what comes while a peer has never registered is dropped for it. Raises InvalidAddress,
    RouteExists, or RouteLoop when messages would come back to `source`.
    """
    with transaction.atomic(using=using):
        source, target = check_route(source, target, using)
        return Route.objects.using(using).create(source=source, target=target)


def check_route(source: str, target: str, using: str = DEFAULT_DB_ALIAS) -> tuple[str, str]:
    """The addresses of a new route as they are stored; until the transaction ends no other is added.

    Raises what `add_route` does. To be called inside a transaction.
    """
    source, target = normal_source(source), normal_target(target)
    if source == target:
        raise RouteLoop(f"{source} cannot be routed to itself.")
    # Two routes added at the same time could make a loop that neither sees: they wait for each other.
    with connections[using].cursor() as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtext('queues_route'))")
    if Route.objects.using(using).filter(source=source, target=target).exists():
        raise RouteExists(f"{source} is routed to {target} already.")
    if back := _path(target, source, using):
        raise RouteLoop(f"It would be a loop: {' → '.join([source, *back])}.")
    return source, target


def remove_route(source: str, target: str, using: str = DEFAULT_DB_ALIAS) -> Route:
    """Copy no longer; returns the route that was. Raises InvalidAddress or RouteNotFound."""
    source, target = normal_source(source), normal_target(target)
    deleted, _ = Route.objects.using(using).filter(source=source, target=target).delete()
    if not deleted:
        raise RouteNotFound(f"There is no route from {source} to {target}.")
    return Route(source=source, target=target)


def list_routes(using: str = DEFAULT_DB_ALIAS) -> list[Route]:
    """All routes, by source and target."""
    return list(Route.objects.using(using))


def missing_queues(route: Route, using: str = DEFAULT_DB_ALIAS) -> list[str]:
    """The names of queues at the ends of a route that do not exist (yet)."""
    names = [name for kind, name in map(parse_target, (route.source, route.target)) if kind == "queue"]
    found = set(Queue.objects.using(using).filter(name__in=names).values_list("name", flat=True))
    return [name for name in names if name not in found]


def _path(source: str, target: str, using: str) -> list[str]:
    """The addresses from one to another over the fewest routes, both ends included; empty when there is no way."""
    came_from: dict[str, str | None] = {source: None}
    frontier = [source]
    while frontier and target not in came_from:
        pairs = Route.objects.using(using).filter(source__in=frontier).values_list("source", "target")
        frontier = []
        for at, to in pairs:
            if to not in came_from:
                came_from[to] = at
                frontier.append(to)
    path: list[str] = []
    step: str | None = target if target in came_from else None
    while step is not None:
        path.append(step)
        step = came_from[step]
    return path[::-1]
