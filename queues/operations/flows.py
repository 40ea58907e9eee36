"""How messages flow: topics and queues, the edges between them, their consumers, and the traffic on each.

A graph of bounded size, around one address or of the busiest queues. Figures are the exact counts of queues, of routes
and of dead letters that went to other queues.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from queues.models import Queue
from queues.operations.monitor import reader
from queues.operations.overview import QueueState, read_queues
from queues.operations.route_traffic import RouteTraffic, read_dead_letter_traffic, read_traffic
from queues.store.queries import query_within

#: Milliseconds that a statement may take; queues in a graph, edges of each kind that are read at a step, and steps from
#: the address that the graph is around.
LIMIT, MAX_QUEUES, MAX_EDGES, STEPS = 2000, 40, 200, 3
#: Topics on a page.
TOPICS_PER_PAGE = 100


class EdgeKind(StrEnum):
    """The kind of a connection from one address to another."""

    SUBSCRIPTION = "subscription"
    ROUTE = "route"
    DEAD_LETTERS = "dead letters"


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """Messages go from an address to another."""

    source: str
    target: str
    kind: EdgeKind


@dataclass(slots=True)
class Flows:
    """The graph. Addresses are "topic:NAME", "queue:NAME" and "peer:NAME"."""

    edges: set[Edge] = field(default_factory=set)
    #: The queues that there are, by their addresses, and the workers of each.
    queues: dict[str, QueueState] = field(default_factory=dict)
    workers: dict[str, int] = field(default_factory=dict)
    #: The ids of subscriptions, routes and queues with a dead-letter queue, by their edges.
    ids: dict[Edge, int] = field(default_factory=dict)
    #: The traffic of the routes and of the dead letters.
    traffic: dict[Edge, RouteTraffic] = field(default_factory=dict)
    #: Whether something was left out.
    cut: bool = False

    @property
    def addresses(self) -> set[str]:
        """All addresses of the graph."""
        return {end for edge in self.edges for end in (edge.source, edge.target)} | set(self.queues)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic, with what its subscriptions' queues hold and have ever taken in and acknowledged."""

    name: bytes
    subscriptions: int
    waiting: int
    leased: int
    dead: int
    published: int
    completed: int
    #: Routes that begin or end there.
    routes: int

    @property
    def text(self) -> str:
        """The name as text; bytes that are not UTF-8 are replaced."""
        return self.name.decode("utf-8", "replace")


def list_topics(after: bytes = b"", using: str = DEFAULT_DB_ALIAS) -> tuple[list[Topic], bool]:
    """A page of topics, by their bytes, and whether there are more. Raises django.db.OperationalError when it takes
    more than two seconds."""
    rows = query_within("topics", using, LIMIT, after=after, limit=TOPICS_PER_PAGE + 1)
    topics = [Topic(bytes(name), *map(int, figures)) for name, *figures in rows]
    return topics[:TOPICS_PER_PAGE], len(topics) > TOPICS_PER_PAGE


def busiest_flows(using: str = DEFAULT_DB_ALIAS) -> Flows:
    """The graph of the busiest queues, with what leads to and from them."""
    queues = reader.read(using).overview.queues
    states = [one for one in queues if one.kind != "mailbox"]
    states.sort(key=lambda one: (-one.in_rate - one.out_rate, -one.counts.published, one.name))
    flows = Flows(cut=len(states) > MAX_QUEUES)
    names = [one.name for one in states[:MAX_QUEUES]]
    _add_edges(flows, {f"queue:{name}" for name in names}, using)
    kept, known = _keep(flows, names), {one.name: one for one in queues}
    _add_figures(flows, [known[name] for name in kept if name in known], using)
    return flows


def flows_around(address: str, using: str = DEFAULT_DB_ALIAS) -> Flows:
    """The graph around an address: what is up to `STEPS` edges away."""
    flows, frontier, known = Flows(), {address}, {address}
    for _ in range(STEPS):
        _add_edges(flows, frontier, using)
        frontier = flows.addresses - known
        if len(known) + len(frontier) > MAX_QUEUES:
            flows.cut = True
            break
        known |= frontier
        if not frontier:
            break
    names = _keep(flows, _names("queue", flows.addresses | {address}))
    ids = Queue.objects.using(using).filter(name__in=names).values_list("pk", flat=True)
    _add_figures(flows, read_queues(ids, using, LIMIT).values(), using)
    return flows


def _add_edges(flows: Flows, addresses: Iterable[str], using: str) -> None:
    """Add the edges that begin or end at these addresses."""
    given = list(addresses)
    topics = [name.encode("utf-8", "replace") for name in _names("topic", given)]
    [kinds] = query_within(
        "flow_edges", using, LIMIT, queues=_names("queue", given), topics=topics, addresses=given, most=MAX_EDGES
    )
    flows.cut = flows.cut or any(len(kind) >= MAX_EDGES for kind in kinds)
    for row in (row for kind in kinds for row in kind):
        edge = _edge(row)
        flows.edges.add(edge)
        flows.ids[edge] = row["id"]


def _edge(row: dict[str, Any]) -> Edge:
    if "topic" in row:
        topic = bytes.fromhex(row["topic"]).decode("utf-8", "replace")
        return Edge(f"topic:{topic}", f"queue:{row['queue']}", EdgeKind.SUBSCRIPTION)
    if "source" in row:
        return Edge(row["source"], row["target"], EdgeKind.ROUTE)
    return Edge(f"queue:{row['queue']}", f"queue:{row['target']}", EdgeKind.DEAD_LETTERS)


def _keep(flows: Flows, names: Iterable[str]) -> list[str]:
    """The names of the graph's queues, these first. Edges of queues beyond the bound are left out."""
    wanted = list(dict.fromkeys([*names, *sorted(_names("queue", flows.addresses))]))
    kept = {f"queue:{name}" for name in wanted[: 2 * MAX_QUEUES]}
    if len(wanted) > len(kept):
        flows.cut = True
        flows.edges = {
            edge for edge in flows.edges
            if all(end in kept or not end.startswith("queue:") for end in (edge.source, edge.target))
        }  # fmt: skip
    return wanted[: 2 * MAX_QUEUES]


def _add_figures(flows: Flows, states: Iterable[QueueState], using: str) -> None:
    """Add the figures of the graph's queues."""
    by_id = {state.id: state for state in states}
    for kind, read in ((EdgeKind.ROUTE, read_traffic), (EdgeKind.DEAD_LETTERS, read_dead_letter_traffic)):
        if ids := {edge: flows.ids[edge] for edge in flows.edges if edge.kind is kind}:
            traffic = read(ids.values(), using, LIMIT)
            flows.traffic |= {edge: traffic[id] for edge, id in ids.items() if id in traffic}
    workers = query_within("list_workers", using, LIMIT, queues=list(by_id))
    flows.queues = {f"queue:{state.name}": state for state in by_id.values()}
    flows.workers = {f"queue:{by_id[id].name}": count for id, count in workers}


def _names(kind: str, addresses: Iterable[str]) -> list[str]:
    """The names in addresses of a kind."""
    return [name for found, _, name in (one.partition(":") for one in addresses) if found == kind]
