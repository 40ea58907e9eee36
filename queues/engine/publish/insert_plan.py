"""The plan of a batch's statements: which queues get messages, and which of them in memory.

`Plan.add` turns a group and its targets into `Write`s. Those of plain messages that follow each other go together
into one `Insert`, so that thousands of different queues cost little more than one. The writer executes the inserts in
one transaction, and each `Write` keeps its part of the result until the messages are delivered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, groupby, islice, pairwise
from operator import itemgetter
from typing import Any, Final, cast

from queues.database.sql_files import array
from queues.engine.consume.low_watermark import LOWEST
from queues.engine.consume.memory import Memory, detail_weight
from queues.engine.consume.message_runs import SharedPayloads
from queues.engine.consume.prefetched_queue import PrefetchedQueue
from queues.engine.errors import EngineError, QueueNotFound, TopologyMoved
from queues.engine.health import Health
from queues.engine.message import (
    CONTENT_ONLY,
    MAX_SEGMENT_BYTES,
    ROWS_PER_STATEMENT,
    Content,
    Detail,
    DetailedMessage,
    Message,
)
from queues.engine.policies import QueuePolicy
from queues.engine.publish.destination import Destination
from queues.engine.publish.publisher import AnsweredProducer, Producer, PublishGroup
from queues.engine.publish.routing import Targets

#: Limits of messages and bytes in a segment without a waiting consumer. A claim takes whole segments or unpacks them.
MAX_READY: Final = 1000
MAX_READY_BYTES: Final = 256 << 10
#: Bytes saved by storing a body once instead of once per queue that allow smaller segments.
SHARED_BYTES: Final = 4096
#: Limit of the bytes of all segments in one statement.
MAX_STORED_BYTES: Final = 16 << 20


@dataclass(slots=True, eq=False)
class Write:
    """A group's messages for some of its queues. `store` fills in the last four."""

    group: PublishGroup
    #: The producer's API key.
    key: int | None
    queues: tuple[int, ...]
    buffers: tuple[PrefetchedQueue | None, ...]
    ttl: float = 0.0
    #: Whether it is stored as segments, one per queue.
    packed: bool = False
    #: Queues in which a message leased at once is a segment of its own.
    single: Set[int] = frozenset()
    #: Per queue: the first id, and whether the messages were leased.
    firsts: tuple[int, ...] = ()
    leased: tuple[bool, ...] = ()
    stored: frozenset[int] | None = None
    delayed: frozenset[int] = frozenset()

    @property
    def width(self) -> int:
        return len(self.queues)

    @property
    def rows(self) -> int:
        return len(self.group.bodies) * len(self.queues)

    @property
    def plain(self) -> bool:
        """Whether its rows have neither details nor times of their own."""
        return not (self.group.detailed or self.ttl)

    @property
    def joins(self) -> bool:
        """Whether one statement may store it with others."""
        return self.plain and not self.packed

    def slot(self, queue: int, slot: int) -> int:
        """The partition of segments leased at once in one of the queues. 0: the messages have rows."""
        return slot if queue in self.single else 0

    @property
    def own_detail(self) -> Detail | None:
        """The detail in memory of a plain message of this group."""
        attempts, content = self.group.max_attempts, self.group.content
        if attempts is None:
            return None if content is None else CONTENT_ONLY[Content(content)]
        return Detail(max_attempts=attempts, content=content)

    @property
    def wanted(self) -> Iterator[str]:
        """SQL array: per queue, whether its messages should be leased to this node."""
        return ("t" if buffer else "f" for buffer in self.buffers)

    @property
    def lows(self) -> Iterator[int]:
        """Per queue: an id at and below which nothing is ready."""
        return (buffer.backlog.watermark.value if buffer else LOWEST for buffer in self.buffers)

    def store(
        self, firsts: Iterable[int], leased: Iterable[bool], stored: Iterable[int] | None = None,
        delayed: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """Take its part of a statement's result. Without `stored` all rows were."""
        self.firsts, self.leased = tuple(firsts), tuple(leased)
        self.stored, self.delayed = None if stored is None else frozenset(stored), frozenset(delayed)

    def keep(self, count: int) -> None:
        """Write only the first `count` messages."""
        if count < len(self.group.bodies):
            self.group = self.group.cut(0, count)

    def leased_details(self, ids: range) -> list[Message]:
        """The messages that were stored as leased, with their details, in order of their ids."""
        stored = self.stored or frozenset()
        leased: list[Message] = [
            (id - (message.priority << 56), message.payload, 0, _detail(id, message))
            for id, message in zip(ids, self.group.outgoing, strict=True)
            if id in stored and id not in self.delayed
        ]
        leased.sort(key=itemgetter(0))
        return leased

    @property
    def raised(self) -> int:
        """Offset of the lowest stored id below the first one. Higher priorities get lower ids."""
        highest = max((message.priority for message in self.group.outgoing), default=0)
        return max(highest, 0) << 56

    def ids(self, k: int) -> range:
        """The ids that the messages have in queue number k, without their priorities."""
        step, start = 1 if self.packed else self.width, self.firsts[k]
        return range(start, start + len(self.group.bodies) * step, step)

    def first_ids(self, queue: int) -> Sequence[int | None]:
        """The messages' ids in one of the queues. None: not stored, because the key was taken."""
        ids, stored = self.ids(self.queues.index(queue)), self.stored
        return ids if stored is None else [id if id in stored else None for id in ids]

    def stored_ids(self, queue: int) -> Sequence[int]:
        """The ids of the messages that were stored in one of the queues."""
        ids, stored = self.ids(self.queues.index(queue)), self.stored
        return ids if stored is None else [id for id in ids if id in stored]

    @property
    def last_stored(self) -> tuple[int, int] | None:
        """The id of the last message that was stored, and its queue."""
        ids = self.ids(self.width - 1)
        for n in reversed(range(len(ids))):
            if self.stored is None or ids[n] in self.stored:
                priority = self.group.outgoing[n].priority if self.group.outgoing else 0
                return ids[n] - (priority << 56), self.queues[-1]
        return None

    def answer(self, queue: QueuePolicy, health: Health) -> None:
        """Report to each producer its message's id in the queue it was published to."""
        group, known = self.group, self.first_ids(queue.id)
        producers, at = group.producers, 0
        runs: Iterable[tuple[Producer, int]]
        if producers and producers.count(producers[0]) == len(producers):  # nearly always: counting is cheaper
            runs = [(producers[0], len(producers))]
        else:
            runs = ((one, sum(1 for _ in group)) for one, group in groupby(producers))
        for producer, count in runs:
            end = at + count
            published = cast(AnsweredProducer, producer).published
            health.guard("session", producer, published, group.tokens[at:end], known[at:end], queue)
            at = end


@dataclass(frozen=True, slots=True)
class Insert:
    """One statement that stores several plain writes or one write of any kind."""

    writes: Sequence[Write]

    @property
    def statement(self) -> str:
        write = self.writes[0]
        if not write.plain:
            return "publish_detailed"
        if write.packed:
            return "publish_segment"
        return "publish_one" if len(self.writes) == write.width == 1 else "publish"

    @property
    def wanted(self) -> bool:
        """Whether all messages are for one queue with waiting consumers on this node. Then publish_leased is tried
        first."""
        write = self.writes[0]
        if len(self.writes) > 1 or write.width > 1 or not write.joins:
            return False
        return write.buffers[0] is not None and write.queues[0] in write.single

    def parameters(self, version: int, node: int, slot: int) -> dict[str, Any]:
        """The statement's parameters. `slot` is the partition of segments leased at once."""
        parameters = _PARAMETERS[self.statement](self, slot)
        parameters["version"], parameters["node"] = version, node
        return parameters

    def _one(self, slot: int) -> dict[str, Any]:
        [write] = self.writes
        [buffer] = write.buffers
        group = write.group
        return {
            "producer": write.key, "queue": write.queues[0], "wanted": buffer is not None,
            "low": buffer.backlog.watermark.value if buffer else LOWEST, "bodies": group.bodies,
            "max_attempts": group.max_attempts, "content": group.content, "size": len(group.bodies),
            "slot": write.slot(write.queues[0], slot),
        }  # fmt: skip

    def _packed(self, slot: int) -> dict[str, Any]:
        [write] = self.writes
        group = write.group
        return {
            "producer": write.key, "queues": array(write.queues), "wanted": array(write.wanted),
            "lows": array(write.lows), "bodies": group.bodies, "max_attempts": group.max_attempts,
            "content": group.content, "size": len(group.bodies), "sizes": array(group.sizes), "slot": slot,
        }  # fmt: skip

    def _plain(self, slot: int) -> dict[str, Any]:
        targets = [(write, n, rank) for n, write in enumerate(self.writes) for rank in range(write.width)]
        groups = [write.group for write in self.writes]
        places: list[int] = []
        for write, first in zip(self.writes, self._offsets(), strict=True):
            places += range(first, first + write.rows, write.width)
        return {
            "queues": array(queue for write in self.writes for queue in write.queues),
            "wanted": array(wanted for write in self.writes for wanted in write.wanted),
            "lows": array(low for write in self.writes for low in write.lows),
            "groups": array(n for _, n, _ in targets),
            "ranks": array(rank for _, _, rank in targets),
            "sizes": array(len(write.group.bodies) for write, _, _ in targets),
            "producers": array(write.key for write, _, _ in targets),
            "attempts": array(write.group.max_attempts for write, _, _ in targets),
            "contents": array(write.group.content for write, _, _ in targets),
            "slots": array(write.slot(queue, slot) for write in self.writes for queue in write.queues),
            "bodies": groups[0].bodies if len(groups) == 1 else [b for one in groups for b in one.bodies],
            "places": array(places),
            "of_groups": array(n for n, group in enumerate(groups) for _ in group.bodies),
        }

    def _detailed(self, _: int) -> dict[str, Any]:
        [write] = self.writes
        group, count = write.group, len(write.group.bodies)
        common: dict[str, Any] = {
            "producer": write.key, "queues": array(write.queues), "wanted": array(write.wanted),
            "lows": array(write.lows), "width": write.width, "bodies": group.bodies,
        }  # fmt: skip
        if not group.detailed:
            nothing: list[Any] = [None] * count
            return common | {
                "keys": nothing, "headers": nothing, "delays": array([0] * count), "ttls": array([write.ttl] * count),
                "attempts": [group.max_attempts] * count, "priorities": array([0] * count), "intervals": nothing,
                "contents": [group.content] * count, "dues": nothing,
            }  # fmt: skip
        outgoing = group.outgoing
        return common | {
            "keys": [message.key for message in outgoing],
            "headers": [message.headers_json() for message in outgoing],
            "delays": array(message.delay for message in outgoing),
            "ttls": array(message.ttl or write.ttl for message in outgoing),
            "attempts": [message.max_attempts for message in outgoing],
            "priorities": array(message.priority for message in outgoing),
            "intervals": [message.retry_interval for message in outgoing],
            "contents": [message.content for message in outgoing],
            "dues": [message.due for message in outgoing],
        }

    def _offsets(self) -> Iterator[int]:
        """The offset of each write's first id from the first id of all."""
        return accumulate((write.rows for write in self.writes[:-1]), initial=0)

    def store(self, row: tuple[Any, ...] | None) -> None:
        """Take the statement's result. Raises TopologyMoved when it stored nothing."""
        if row is None:
            raise TopologyMoved()
        write, (first, leased, *details) = self.writes[0], row
        if write.packed:
            write.store(first, leased)
        elif isinstance(leased, bool):
            write.store((first,), (leased,))
        elif details:
            write.store(range(first, first + write.width), leased, *(ids or () for ids in details))
        else:
            flags = iter(leased)
            for write, offset in zip(self.writes, self._offsets(), strict=True):
                write.store(range(first + offset, first + offset + write.width), islice(flags, write.width))


#: By statement: the function that makes its parameters.
_PARAMETERS: Final = {
    "publish_one": Insert._one, "publish_segment": Insert._packed, "publish_detailed": Insert._detailed,
    "publish": Insert._plain,
}  # fmt: skip


def _detail(id: int, message: DetailedMessage) -> Detail:
    return Detail(
        message.headers, message.key, message.max_attempts, origin=id if message.priority else None,
        content=message.content, retry_interval=message.retry_interval,
        weight=detail_weight(message.headers_size, message.key),
    )  # fmt: skip


@dataclass(slots=True)
class Plan:
    """The contents of one transaction, and the messages that it rejects."""

    #: Least number of messages published together that are stored as a segment. 0: no segments.
    segment_messages: int = 0
    writes: list[Write] = field(default_factory=list)
    #: Queues with a maximum length, and the groups that go to one of them, with their routes.
    limited: set[int] = field(default_factory=set)
    drop_oldest: set[int] = field(default_factory=set)
    #: Audited queues and their names.
    audited: dict[int, str] = field(default_factory=dict)
    limited_groups: list[tuple[PublishGroup, list[Write], tuple[int, ...]]] = field(default_factory=list)
    #: Routed messages, by the routes on their way.
    carried: defaultdict[tuple[int, ...], int] = field(default_factory=partial(defaultdict, int))
    #: Number of earlier writes, queue, bodies.
    transient: list[tuple[int, int, list[bytes]]] = field(default_factory=list)
    rejected: list[tuple[PublishGroup, EngineError]] = field(default_factory=list)
    unroutable: int = 0
    #: Writes whose producers get ids, with the queue they published to.
    answers: list[tuple[Write, QueuePolicy]] = field(default_factory=list)
    storing: list[PrefetchedQueue] = field(default_factory=list)
    #: By a group's identity: the number of queues that lease its messages as segments, and the shared bodies.
    _takers: defaultdict[int, int] = field(default_factory=partial(defaultdict, int))
    _shared: dict[int, SharedPayloads] = field(default_factory=dict)
    #: By queue: the number of messages that may still be leased to this node. Expiring messages stay in the store for
    #: the sweep.
    _leasable: dict[int, int] = field(default_factory=dict)

    def add(
        self, group: PublishGroup, destination: Destination, targets: Targets, key: int | None,
        policies: Mapping[int, QueuePolicy], buffers: Mapping[int, PrefetchedQueue], now: float,
    ) -> None:  # fmt: skip
        """Add a group."""
        if destination.kind == "queue" and targets.own is None:
            self.reject(group, QueueNotFound(repr(destination.name.decode("utf-8", "replace"))))
            return
        stored = targets.stored
        own = None if targets.own is None else policies.get(targets.own)
        if group.answered and own is not None and not own.allow_job_overrides:
            group = group.without_overrides()
        if targets.routes:
            self.carried[targets.routes] += len(group.bodies)
        if targets.audited:
            self.audited.update(targets.audited)
        if len(stored) == 1 and self._add_one(group, stored[0], targets, key, policies, buffers, now):
            return
        if group.transient:  # subscribers get it in memory; queues fed by a route store it
            self.transient += [(len(self.writes), queue, group.bodies) for queue in targets.subscribed]
            stored = tuple(queue for queue in stored if queue not in targets.subscribed)
        else:
            self.transient += [(len(self.writes), queue, group.bodies) for queue in targets.transient]
        if not stored and not targets.subscribed:
            self.unroutable += len(group.bodies)
        known = [policies[queue] for queue in stored if queue in policies]
        plain = tuple(policy.id for policy in known if policy.message_ttl is None)
        groups = [(plain, 0.0)] if plain else []
        groups += [((policy.id,), policy.message_ttl) for policy in known if policy.message_ttl is not None]
        limited = {policy.id for policy in known if policy.max_length is not None}
        self.limited |= limited
        self.drop_oldest |= {policy.id for policy in known if policy.id in limited and policy.overflow == "drop-oldest"}
        for queue in plain:
            if queue in buffers and queue not in self._leasable:
                self._leasable[queue] = buffers[queue].prefetch.wanted(now)
        leasable = [self._leasable.get(queue, 0) for queue in plain]
        single = packing = self._packing(group, known)
        least = self._least_packed(group, sum(map(bool, leasable)))
        most_packed = self._most_packed(group, least, any(leasable)) if packing else 0
        if not most_packed:
            packing = frozenset()
        unpacked = max((sum(queue not in packing for queue in queues) for queues, _ in groups), default=0)
        most = max(1, ROWS_PER_STATEMENT // max(1, unpacked))
        for part in _parts(group, min(most, most_packed) if packing else most, leasable):
            writes = []
            for queues, ttl, packed in _divided(part, groups, packing if len(part.bodies) >= least else frozenset()):
                leased = [queue for queue in queues if not ttl and self._lease(queue, len(part.bodies))]
                takers = {queue: buffers[queue] for queue in leased}
                writes.append(Write(part, key, queues, tuple(map(takers.get, queues)), ttl, packed, single))
            self.writes += writes
            if part.answered and own is not None:
                self.answers += [(write, own) for write in writes if own.id in write.queues]
            if limited:
                self.limited_groups.append((part, writes, targets.routes))

    def _add_one(
        self, group: PublishGroup, queue: int, targets: Targets, key: int | None, policies: Mapping[int, QueuePolicy],
        buffers: Mapping[int, PrefetchedQueue], now: float,
    ) -> bool:  # fmt: skip
        """Add one message for one queue, the frequent simple case; False if it is not that simple."""
        policy = policies.get(queue)
        if len(group.bodies) > 1 or group.transient or targets.transient or policy is None:
            return False
        if policy.message_ttl is not None or policy.max_length is not None or self.segment_messages == 1:
            return False
        buffer = buffers.get(queue)
        if buffer is not None:
            if queue not in self._leasable:
                self._leasable[queue] = buffer.prefetch.wanted(now)
            if not self._lease(queue, 1):
                buffer = None
        write = Write(group, key, (queue,), (buffer,), single=self._packing(group, (policy,)))
        self.writes.append(write)
        if group.answered and targets.own == queue:
            self.answers.append((write, policy))
        return True

    def _lease(self, queue: int, count: int) -> bool:
        """Whether to lease a queue's next messages to this node. After one that is not leased, no later one is."""
        left = self._leasable.get(queue, 0)
        self._leasable[queue] = left - count if left >= count else 0
        return left >= count

    def _packing(self, group: PublishGroup, known: Iterable[QueuePolicy]) -> Set[int]:
        """The queues in which the messages of a group may be stored as segments."""
        if group.detailed or not self.segment_messages:
            return frozenset()
        return frozenset(policy.id for policy in known if policy.packs and policy.message_ttl is None)

    def _least_packed(self, group: PublishGroup, takers: int) -> int:
        """Least number of messages for which a group is stored as segments. Queues with waiting consumers on this node
        (`takers` of them) share the bodies."""
        shared = takers > 1 and (takers - 1) * sum(map(len, group.bodies)) >= SHARED_BYTES
        return 1 if shared else self.segment_messages

    def _most_packed(self, group: PublishGroup, least: int, leasable: bool) -> int:
        """Number of messages per segment, if the group has at least `least`. 0: no segments. `leasable`: a consumer of
        this node may wait for them."""
        count = len(group.bodies)
        if count < least:
            return 0
        mean = max(1, sum(map(len, group.bodies)) // count)
        messages, size = (ROWS_PER_STATEMENT, MAX_SEGMENT_BYTES) if leasable else (MAX_READY, MAX_READY_BYTES)
        most = min(messages, size // mean)
        return most if most >= least else 0

    def reject(self, group: PublishGroup, error: EngineError, routes: tuple[int, ...] = ()) -> None:
        """Reject a group's messages, which these routes would have carried."""
        if routes:
            self.carried[routes] -= len(group.bodies)
        self.rejected.append((group, error))

    def drop_empty(self) -> None:
        """Remove writes without messages."""
        self.writes = [write for write in self.writes if write.group.bodies]
        self.answers = [(write, queue) for write, queue in self.answers if write.group.bodies]

    def inserts(self) -> list[Insert]:
        """The statements in order. Consecutive plain writes share one, up to its limit of ids."""
        if len(self.writes) == 1:
            return [Insert(self.writes)]
        inserts, some, rows = list[Insert](), list[Write](), 0
        for write in self.writes:
            if some and (rows + write.rows > ROWS_PER_STATEMENT or not (write.joins and some[-1].joins)):
                inserts.append(Insert(some))
                some, rows = [], 0
            some.append(write)
            rows += write.rows
        return [*inserts, Insert(some)] if some else inserts

    def begin(self) -> None:
        """Stop claims for buffers that messages may be leased to, so that they do not overtake each other."""
        buffers = dict.fromkeys(buffer for write in self.writes for buffer in write.buffers if buffer is not None)
        self.storing = list(buffers)
        for buffer in self.storing:
            buffer.backlog.begin_storing()

    def end(self) -> None:
        """Allow claims again: leased messages are about to be in memory, or nothing was leased."""
        for buffer in self.storing:
            buffer.prefetch.end_storing()
        self.storing = []

    def shared_payloads(self, write: Write, memory: Memory) -> list[bytes]:
        """The bodies of a stored write for the queues that its messages are leased in; if these are several, also over
        several writes of the same messages, one object for all of them."""
        group = write.group
        if not write.packed:
            return group.bodies
        if not self._takers:
            for one in self.writes:
                self._takers[id(one.group)] += one.packed and sum(one.leased)
        if (queues := self._takers[id(group)]) < 2:
            return group.bodies
        shared = self._shared.get(id(group))
        if shared is None:
            shared = self._shared[id(group)] = SharedPayloads(group.bodies, queues, memory)
        return shared

    def forget_producers(self) -> None:
        """Its producers were told that it failed, and hear no more of it."""
        self.answers.clear()
        self.rejected.clear()


def _parts(group: PublishGroup, most: int, leasable: Iterable[int]) -> list[PublishGroup]:
    """A group in parts of about the same size, at most `most` messages; the first ones end where the messages of one of
    the queues do that may be leased."""
    count = len(group.bodies)
    first = min((number for number in leasable if 0 < number < count), default=0)
    if not first and count <= most:
        return [group]
    cuts = [*_even(0, first, most), *_even(first, count, most), count]
    return [group.cut(start, stop) for start, stop in pairwise(cuts)]


def _even(start: int, stop: int, most: int) -> range:
    """Start indexes of a range's parts: as few parts as possible, of about the same size."""
    parts = -(-(stop - start) // most)
    return range(start, stop, -(-(stop - start) // parts)) if parts else range(0)


def _divided(
    part: PublishGroup, groups: Sequence[tuple[tuple[int, ...], float]], packing: Set[int]
) -> Iterator[tuple[tuple[int, ...], float, bool]]:
    """The queues of each statement that stores a part, their time to live, and whether it stores segments, in the
    queues that are `packing`."""
    count, size = len(part.bodies), sum(map(len, part.bodies))
    if size > MAX_SEGMENT_BYTES:
        packing = frozenset()
    for queues, ttl in groups:
        packed = tuple(queue for queue in queues if queue in packing)
        rows = tuple(queue for queue in queues if queue not in packing) if packed else queues
        for some in _chunks(packed, MAX_STORED_BYTES // max(1, size)):
            yield some, ttl, True
        for some in _chunks(rows, ROWS_PER_STATEMENT // count):
            yield some, ttl, False


def _chunks(queues: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(queues), max(1, most)):
        yield queues[start : start + max(1, most)]
