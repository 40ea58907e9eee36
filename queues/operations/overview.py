"""The state of the broker as figures: what each queue holds, what goes through it, who serves it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import DEFAULT_DB_ALIAS

from queues.store.counts import QueueCounts
from queues.store.queries import query_within

#: Seconds after which an earlier look, and a sample, say nothing of the rates now.
STALE, STALE_SAMPLE = 30.0, 180.0
#: Seconds, and transactions, after which something that holds back vacuum is worth a word.
HELD_SECONDS, HELD_XIDS = 60, 10_000_000
#: Minutes within which nodes count as new.
NEW_NODES = 10


class QueueState(NamedTuple):
    """One queue at a moment. `in_rate` and `out_rate` are messages/s since the moment compared with."""

    id: int
    name: str
    kind: str
    paused: bool
    counts: QueueCounts
    #: Nodes whose consumers ask for messages of the queue; at least one where messages are unacknowledged.
    nodes: int
    in_rate: float = 0.0
    out_rate: float = 0.0
    #: Dead letters at the last sample.
    sampled_dead: int = 0


@dataclass(frozen=True, slots=True)
class HorizonHolder:
    """An obstacle to vacuum: a `backend` (`name` is its pid), a `prepared` transaction or a replication `slot`."""

    kind: str
    name: str
    #: When the backend began, exactly: a pid is used again.
    started: str
    user: str
    application: str
    query: str
    state: str
    #: Since when its transaction is open; None: the site may not know.
    seconds: float | None
    #: Transactions that began since the oldest that it needs.
    xids: int


@dataclass(frozen=True, slots=True)
class Overview:
    """The broker at a moment."""

    at: datetime
    nodes: int
    workers: int
    connections: int
    queues: list[QueueState] = field(default_factory=list)
    #: Peers that are connected.
    peers: int = 0
    #: Transactions that the database has ever committed, and a second since the moment compared with.
    commits: int = 0
    commit_rate: float | None = None
    standbys: int = 0
    #: Seconds that the slowest standby is behind; None: there is none, or the site may not know.
    lag: float | None = None
    #: Names of nodes that began in the last minutes and died, the last one first.
    died: Sequence[str] = ()
    holders: list[HorizonHolder] = field(default_factory=list)
    #: The Unix time of the last sample; None: there is none yet.
    sampled_at: float | None = None
    #: Connections of clients over every protocol.
    clients: int = 0
    #: The oldest transaction that was under way; what differs once queues or interests of nodes come or go.
    since: str = ""
    known: Sequence[int | None] = ()

    @property
    def in_rate(self) -> float:
        return sum(queue.in_rate for queue in self.queues)

    @property
    def out_rate(self) -> float:
        return sum(queue.out_rate for queue in self.queues)

    @property
    def totals(self) -> QueueCounts:
        """The sums over all queues."""
        counts = [queue.counts for queue in self.queues]
        return QueueCounts(*(sum(map(itemgetter(n), counts)) for n in range(len(QueueCounts._fields))))


def take_overview(
    before: Overview | None = None, using: str = DEFAULT_DB_ALIAS, limit: int = 0, *, everything: bool = False
) -> Overview:
    """The broker now, with rates since `before`, or since the last sample. Two queries, whatever the store holds.

    Without `everything` only those queues are read that have changed since `before`, unless some came or went, or nodes
    began or ceased to serve some.

    With a `limit`, raises django.db.OperationalError when one of them takes more milliseconds.
    """
    [figures] = query_within("state_broker", using, limit, minutes=NEW_NODES, seconds=HELD_SECONDS, xids=HELD_XIDS)
    nodes, workers, peers, clients, connections, commits, standbys, lag, died, holders = figures[:10]
    sampled_at, since, known = figures[10:]
    at = datetime.now(UTC)
    if before is not None and (at - before.at).total_seconds() > STALE:
        before = None
    queues = None
    if before is not None and not everything and before.known == known:
        rows = query_within("state_queues", using, limit, queues=None, since=before.since)
        queues = _changed(before, _queue_states(rows, at, before))
    if queues is None:
        queues = _queue_states(query_within("state_queues", using, limit, queues=None, since=None), at, before)
    passed = None if before is None else max((at - before.at).total_seconds(), 1e-3)
    return Overview(
        at, nodes, workers, connections, queues, peers, commits,
        None if before is None or passed is None else max(commits - before.commits, 0) / passed,
        standbys, lag, died, [HorizonHolder(**holder) for holder in holders], sampled_at, clients,
        since, known,
    )  # fmt: skip


def _changed(before: Overview, states: list[QueueState]) -> list[QueueState] | None:
    """The queues of an earlier look with those that have changed since; None if there are others than then."""
    changed = {state.id: state for state in states}
    queues = [changed[queue.id] if queue.id in changed else _idle(queue) for queue in before.queues]
    return queues if changed.keys() <= {queue.id for queue in before.queues} else None


def _idle(queue: QueueState) -> QueueState:
    return queue._replace(in_rate=0.0, out_rate=0.0) if queue.in_rate or queue.out_rate else queue


def read_queues(queues: Iterable[int], using: str = DEFAULT_DB_ALIAS, limit: int = 0) -> dict[int, QueueState]:
    """Some queues by id, with rates since the last sample; one query. Raises as `take_overview`."""
    rows = query_within("state_queues", using, limit, queues=list(queues), since=None)
    return {state.id: state for state in _queue_states(rows, datetime.now(UTC), None)}


def _queue_states(rows: list[tuple[Any, ...]], at: datetime, before: Overview | None) -> list[QueueState]:
    sampled = rows[0][-1] if rows else None
    since = before.at.timestamp() if before is not None else sampled
    seconds = 0.0 if since is None else at.timestamp() - since
    if before is None and not 1.0 <= seconds <= STALE_SAMPLE:
        seconds = 0.0
    past = {} if before is None else {queue.id: queue.counts for queue in before.queues}
    states = []
    for row in rows:
        id, name, kind, paused, nodes, *figures, _ = row
        *now, published, settled, dead = figures
        counts = QueueCounts(*now)
        if before is not None:
            then = past.get(id, counts)
            published, settled = then.published, then.settled
        came = max(counts.published - published, 0) / seconds if seconds > 0 else 0.0
        went = max(counts.settled - settled, 0) / seconds if seconds > 0 else 0.0
        # Consumers that are busy may ask for nothing for long; what is leased a node has.
        serving = nodes or int(counts.leased > 0)
        states.append(QueueState(id, name, kind, paused, counts, serving, came, went, dead))
    return states


def oldest_ready(queues: Iterable[int], using: str = DEFAULT_DB_ALIAS, limit: int = 0) -> dict[int, float]:
    """Seconds since the first message that is ready was published, by queue id; queues without one are left out.

    With a `limit`, raises django.db.OperationalError when it takes more milliseconds: while vacuum is held back, the
    dead entries before the first message may be many.
    """
    now = datetime.now(UTC)
    rows = query_within("oldest", using, limit, queues=list(queues))
    return {queue: max((now - published).total_seconds(), 0.0) for queue, published in rows}
