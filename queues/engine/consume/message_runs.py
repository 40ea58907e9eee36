"""Messages of one queue in memory, as runs: what consecutive ones have in common is held once.

Messages that were stored together come, are delivered and are acknowledged together, in order. So the prefetched ones
are a line of `MessageRun`s (`PrefetchedMessages`), and the delivered ones runs of consecutive tags (`UnackedMessages`):
a burst costs the same whatever its size. A delivery that is taken out of the middle of a run breaks the run up: those
that are left are entries of a dictionary.

A topic's messages are in many queues at once. These have one `SharedPayloads` and, as far as their consumers take the
same ones together, one `PayloadPart` of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import NamedTuple

from queues.engine.consume.memory import OVERHEAD, Memory
from queues.engine.message import Detail, Message
from queues.engine.settle.recipients import consecutive

#: A delivered message: id, attempts that failed before, time of delivery (monotonic), detail.
Unacked = tuple[int, int, float, Detail | None]


class PayloadPart(list[bytes]):
    """Consecutive payloads that consumers of several queues take, not to be changed: their bytes, and those of the
    largest. `made` is for what a session makes of them, which the next one may use."""

    __slots__ = ("largest", "made", "size")

    def __init__(self, payloads: Iterable[bytes]) -> None:
        super().__init__(payloads)
        sizes = [*map(len, self)]
        self.size = sum(sizes)
        self.largest = max(sizes)
        self.made: object = None


class SharedPayloads(list[bytes]):
    """The payloads of messages that several queues have, not to be changed. The memory of the process counts them once,
    until the last queue that has some of them lets go of the object."""

    __slots__ = ("_memory", "_part", "_place", "_size")

    def __init__(self, payloads: Iterable[bytes], queues: int, memory: Memory) -> None:
        """`queues`: in how many queues the messages are. The bytes are counted twice, for what is made of a part."""
        super().__init__(payloads)
        self._memory = memory
        self._size = 2 * sum(map(len, self)) + OVERHEAD * (len(self) + queues)
        self._place = -1, -1
        self._part: PayloadPart
        memory.hold(self._size)

    def __del__(self) -> None:
        self._memory.hold(-self._size)

    def part(self, start: int, stop: int) -> PayloadPart:
        """The payloads in these places. Two queues that ask for the same places in a row get the same object."""
        if self._place != (start, stop):
            self._place, self._part = (start, stop), PayloadPart(self[start:stop])
        return self._part


@dataclass(slots=True, eq=False)
class MessageRun:
    """Prefetched messages in order of id, which have attempts and detail in common: those from the place `at` on."""

    ids: Sequence[int]
    payloads: list[bytes]
    attempts: int
    detail: Detail | None
    at: int = 0

    def __len__(self) -> int:
        return len(self.payloads) - self.at

    def __iter__(self) -> Iterator[Message]:
        ids, payloads = islice(self.ids, self.at, None), islice(self.payloads, self.at, None)
        return zip(ids, payloads, repeat(self.attempts), repeat(self.detail), strict=False)

    def message(self, n: int) -> Message:
        """The payload in place `n` of the whole run."""
        return self.ids[n], self.payloads[n], self.attempts, self.detail

    def sizes(self, most: int) -> Iterator[int]:
        """The sizes of the first `most` payloads."""
        return map(len, islice(self.payloads, self.at, self.at + most))

    @property
    def size(self) -> int:
        """The bytes of all payloads."""
        payloads = self.payloads
        return payloads.size if isinstance(payloads, PayloadPart) else sum(map(len, payloads))

    @property
    def shared(self) -> bool:
        """Whether other queues have the payloads too."""
        return isinstance(self.payloads, SharedPayloads | PayloadPart)

    def cut(self, count: int) -> MessageRun:
        """Take the first messages out."""
        start, end = self.at, self.at + count
        self.at = end
        if isinstance(self.payloads, SharedPayloads):
            return MessageRun(self.ids[start:end], self.payloads.part(start, end), self.attempts, self.detail)
        taken = MessageRun(self.ids[start:end], self.payloads[start:end], self.attempts, self.detail)
        self.payloads[start:end] = [b""] * count  # in place, so that the rest is not moved
        return taken


class Push(NamedTuple):
    """A message on its way to a consumer. `id` is the one that it was published with."""

    tag: int
    id: int
    payload: bytes
    attempts: int
    detail: Detail | None


@dataclass(slots=True, eq=False)
class PushRun:
    """Messages on their way to a consumer that have attempts and detail in common; `ids` as `Push` has them."""

    tags: Sequence[int]
    ids: Sequence[int]
    payloads: list[bytes]
    attempts: int
    detail: Detail | None

    def __len__(self) -> int:
        return len(self.payloads)

    def __iter__(self) -> Iterator[Push]:
        for tag, id, payload in zip(self.tags, self.ids, self.payloads, strict=True):
            yield Push(tag, id, payload, self.attempts, self.detail)


class PrefetchedMessages(Sequence[Message]):
    """Prefetched messages, the next one first."""

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._runs: deque[MessageRun] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message]:
        for run in self._runs:
            yield from run

    def __getitem__(self, at: int) -> Message:  # type: ignore[override]
        """The message at an index. The first and the last are fast."""
        if at == -1 and self._runs:
            return self._runs[-1].message(-1)
        at += self._count if at < 0 else 0
        for run in self._runs:
            if at < len(run):
                return run.message(run.at + at)
            at -= len(run)
        raise IndexError(at)

    @property
    def first_run(self) -> MessageRun:
        """The next message and those after it that are alike. There has to be one."""
        return self._runs[0]

    def take(self, count: int) -> MessageRun:
        """Take up to `count` messages out of the first run."""
        run = self._runs[0]
        taken = run.cut(min(count, len(run))) if run.at or count < len(run) or run.shared else run
        if not len(run) or taken is run:
            self._runs.popleft()
        self._count -= len(taken)
        return taken

    def add_run(self, ids: Sequence[int], payloads: list[bytes], detail: Detail | None) -> None:
        """Add messages on their first delivery."""
        own = payloads if isinstance(payloads, SharedPayloads) else payloads[:]
        self._runs.append(MessageRun(ids, own, 0, detail))
        self._count += len(payloads)

    def extend(self, messages: Iterable[Message]) -> None:
        """Add messages."""
        run: MessageRun | None = None
        ids: list[int] = []
        for id, payload, attempts, detail in messages:
            if run is None or run.detail is not detail or run.attempts != attempts:
                ids = []
                run = MessageRun(ids, [], attempts, detail)
                self._runs.append(run)
            ids.append(id)
            run.payloads.append(payload)
            self._count += 1

    def clear(self) -> None:
        self._runs.clear()
        self._count = 0


class _Delivered:
    """Messages delivered together with consecutive tags. `ids` has all of them, `tags` the unacknowledged ones."""

    __slots__ = ("attempts", "detail", "first", "ids", "tags", "time")

    def __init__(self, tags: range, ids: Sequence[int], attempts: int, time: float, detail: Detail | None) -> None:
        self.tags = tags
        self.first = tags.start
        self.ids = ids
        self.attempts = attempts
        self.time = time
        self.detail = detail

    def entry(self, tag: int) -> Unacked:
        return self.ids[tag - self.first], self.attempts, self.time, self.detail

    def first_ids(self, count: int) -> Sequence[int]:
        """The ids of the first unacknowledged ones."""
        at = self.tags.start - self.first
        return self.ids[at : at + count]

    def shorten(self, count: int) -> None:
        """Remove the first unacknowledged ones."""
        self.tags = self.tags[count:]


class UnackedMessages(Mapping[int, Unacked]):
    """Delivered messages by their tags."""

    __slots__ = ("_count", "_runs", "_single", "_starts")

    def __init__(self) -> None:
        #: Deliveries that are in no run.
        self._single: dict[int, Unacked] = {}
        #: The runs in order of tags, their first tags, and the number of messages in all of them.
        self._runs: list[_Delivered] = []
        self._starts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count + len(self._single)

    def __iter__(self) -> Iterator[int]:
        yield from self._single
        for run in self._runs:
            yield from run.tags

    def __contains__(self, tag: object) -> bool:
        return tag in self._single or (isinstance(tag, int) and self._find(tag) is not None)

    def __getitem__(self, tag: int) -> Unacked:
        if (entry := self._single.get(tag)) is not None:
            return entry
        if (n := self._find(tag)) is None:
            raise KeyError(tag)
        return self._runs[n].entry(tag)

    def add(self, tag: int, entry: Unacked) -> None:
        """Add a delivered message."""
        self._single[tag] = entry

    def add_run(self, tags: range, ids: Sequence[int], attempts: int, time: float, detail: Detail | None) -> None:
        """Add messages delivered with tags above all earlier ones."""
        if len(tags) == 1:
            self._single[tags.start] = ids[0], attempts, time, detail
            return
        self._runs.append(_Delivered(tags, ids, attempts, time, detail))
        self._starts.append(tags.start)
        self._count += len(tags)

    def release(self, tag: int) -> Unacked | None:
        """Take a message out; None: no message has this tag."""
        if (entry := self._single.pop(tag, None)) is not None or (n := self._find(tag)) is None:
            return entry
        run = self._runs[n]
        entry = run.entry(tag)
        if tag == run.tags.start:
            self._shorten(n, 1)
            return entry
        self._single.update((other, run.entry(other)) for other in run.tags if other != tag)
        self._shorten(n, len(run.tags))
        return entry

    def release_runs(self, tags: Sequence[int]) -> tuple[list[tuple[Sequence[int], float]], Sequence[int]]:
        """Take out the messages with these tags as long as they are the first unacknowledged ones of their run. Returns
        ids and time of delivery of each run, and the tags that are left."""
        found: list[tuple[Sequence[int], float]] = []
        while isinstance(tags, range) and tags:
            n = self._find(tags.start)
            if n is None or self._starts[n] != tags.start:
                break
            run = self._runs[n]
            count = min(len(tags), len(run.tags))
            found.append((run.first_ids(count), run.time))
            self._shorten(n, count)
            tags = tags[count:]
        return found, tags

    def release_many(self, tags: Sequence[int]) -> tuple[list[int], list[float], list[int]]:
        """Take messages out. Returns their ids, their times of delivery, and the tags without a message."""
        ids: list[int] = []
        times: list[float] = []
        unknown: list[int] = []
        at = 0
        while at < len(tags):
            tag, count = tags[at], 1
            n = self._find(tag)
            if n is not None and self._starts[n] == tag:
                run = self._runs[n]
                count = consecutive(tags, at, len(run.tags))
                ids += run.first_ids(count)
                times += [run.time] * count
                self._shorten(n, count)
            elif (entry := self.release(tag)) is not None:
                ids.append(entry[0])
                times.append(entry[2])
            else:
                unknown.append(tag)
            at += count
        return ids, times, unknown

    def among(self, tags: Sequence[int]) -> list[int]:
        """The tags that have a message."""
        if not isinstance(tags, range):
            return [tag for tag in tags if tag in self]
        found = [tag for tag in tags if tag in self._single] if self._single else []
        n = max(0, bisect_right(self._starts, tags.start) - 1)
        while n < len(self._runs) and (own := self._runs[n].tags).start < tags.stop:
            found += range(max(own.start, tags.start), min(own.stop, tags.stop))
            n += 1
        return found

    def clear(self) -> None:
        self._single.clear()
        self._runs.clear()
        self._starts.clear()
        self._count = 0

    def _find(self, tag: int) -> int | None:
        """The place of the run that has this tag."""
        n = bisect_right(self._starts, tag) - 1
        return n if n >= 0 and tag < self._runs[n].tags.stop else None

    def _shorten(self, n: int, count: int) -> None:
        """Take the first messages out of a run."""
        run = self._runs[n]
        self._count -= count
        if count == len(run.tags):
            del self._runs[n], self._starts[n]
        else:
            run.shorten(count)
            self._starts[n] = run.tags.start
