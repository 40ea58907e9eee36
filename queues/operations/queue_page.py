"""Details of one queue beside its counts: its consumers, and where its dead letters go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db import DEFAULT_DB_ALIAS

from queues.models import Queue
from queues.models.connection import shown_id
from queues.operations.connections import watch
from queues.store.queries import query_within

#: Milliseconds; workers shown.
LIMIT, MAX_WORKERS = 2000, 100


@dataclass(frozen=True, slots=True)
class ConsumerState:
    """Something that takes messages from the queue. `page` is the name of its page in the admin and the key there."""

    what: str
    page: tuple[str, object]
    where: str
    since: datetime | None
    #: Messages that it may still be given, and those that it holds; None: not known by consumer.
    credits: int | None = None
    holds: int | None = None


@dataclass(frozen=True, slots=True)
class QueueDetails:
    """Consumers over every protocol, and where dead letters go."""

    consumers: list[ConsumerState]
    #: The line of a queue with a single active consumer: that one, then those that wait, in their order.
    line: list[ConsumerState]
    #: The dead-letter queue and the number of dead letters that went there; None: there is none.
    moved: tuple[str, int] | None


def queue_details(queue: Queue, held: int, using: str = DEFAULT_DB_ALIAS) -> QueueDetails:
    """The details of a queue of which consumers hold so many messages; one query. Nodes are told of the look, and
    connections are as of two seconds ago while the page stays open. Raises django.db.OperationalError when
    it takes more than two seconds."""
    watch.renew(using)
    [(nodes, workers, connections, peer, subscriber, line, moved)] = query_within(
        "queue_page", using, LIMIT, queue=queue.pk, name=queue.name, most=MAX_WORKERS
    )
    consumers = [*map(_worker, workers), *map(_connection, connections)]
    if peer is not None:
        state = f"on node {peer['node']}" if peer["connected"] else "away"
        page = ("queues_mailbox_change", peer["id"])
        since = _time(peer["since"]) if peer["connected"] else None
        consumers.append(ConsumerState(f"peer {peer['name']}", page, state, since, holds=held))
    if subscriber is not None:
        owner = f"key {subscriber['owner']}" if subscriber["owner"] else "no key"
        topic = bytes.fromhex(subscriber["topic"]).decode("utf-8", "replace")
        what = f"subscriber of {topic}, QoS {subscriber['qos']}"
        consumers.append(ConsumerState(what, ("queues_subscription_change", subscriber["id"]), owner, None, holds=held))
    return QueueDetails(
        [*consumers, *map(_node, nodes)], [_in_line(one) for one in line],
        None if moved is None else (moved["target"], moved["carried"]),
    )  # fmt: skip


def _worker(worker: dict[str, Any]) -> ConsumerState:
    return ConsumerState(
        f"worker {worker['wid']}", ("queues_worker_change", worker["wid"]),
        f"{worker['address']}, node {worker['node']}", _time(worker["since"]), worker["credits"], worker["active"],
    )  # fmt: skip


def _connection(one: dict[str, Any]) -> ConsumerState:
    return ConsumerState(
        f"{one['protocol']} connection {shown_id(one['id'])}", ("queues_connection_change", one["id"]),
        f"{one['address']}, node {one['node']}", _time(one["since"]), holds=one["holds"],
    )  # fmt: skip


def _in_line(one: dict[str, Any]) -> ConsumerState:
    page = ("queues_node_change", one["node"])
    if one["connection"] is not None:
        page = ("queues_connection_change", one["connection"])
    state = "active" if one["active"] else "waits"
    what = f"{state}: {one['name'] or 'a consumer'}"
    return ConsumerState(what, page, f"node {one['node']}", _time(one["since"]))


def _node(node: dict[str, Any]) -> ConsumerState:
    what = f"node {node['node']}, {node['name']}"
    where = f"{node['host']}, pid {node['pid']}"
    return ConsumerState(what, ("queues_node_change", node["node"]), where, _time(node["since"]))


def _time(unix: float | None) -> datetime | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC)
