"""The messages of one queue in this node's memory, all of them leased to the node in the store.

A message is `ready` (prefetched and not yet delivered) or `unacked` (delivered, neither acknowledged nor returned).
`stale` deliveries are those whose lease ended with a lost connection: a late acknowledgement still settles them.
A returned message keeps the tag of its delivery; while it is ready again, its tag still acknowledges it.

The prefetched queue calls the methods. `ready` and `unacked` are read by other objects and written here only; each is
one object for life. Bytes are counted as `memory.weight` counts them, for the queue and in the budget of the process.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, takewhile
from math import inf
from operator import itemgetter

from queues.engine.consume.memory import OVERHEAD, Memory, weight
from queues.engine.consume.message_runs import (
    MessageRun,
    PrefetchedMessages,
    Push,
    PushRun,
    SharedPayloads,
    Unacked,
    UnackedMessages,
)
from queues.engine.message import POSITION, Detail, Message

#: Assumed bytes of a message before the first claim, which takes few messages in case they are large.
UNKNOWN_BYTES = 1 << 16

#: Numbers of remembered messages: those handed back, which a purge looks for, and late acknowledged ones, which are not
#: delivered again.
REMEMBERED = 10_000


class HeldMessages:
    """Prefetched and delivered messages of one queue."""

    __slots__ = (
        "_counted", "_handed_back", "_memory", "_on_expired", "_settled", "_stale", "_tagged", "bytes", "mean_bytes",
        "next_tag", "ready", "unacked",
    )  # fmt: skip

    def __init__(self, memory: Memory, first_tag: int, on_expired: Callable[[int], None]) -> None:
        """`on_expired(id)` is called for a prefetched message that outlived its time."""
        self._memory = memory
        self._on_expired = on_expired
        self.ready = PrefetchedMessages()
        self.unacked = UnackedMessages()
        self._stale: dict[int, Unacked] = {}
        #: Ids of the messages handed back last. A purge may have found them neither in the store nor here.
        self._handed_back: deque[int] = deque(maxlen=REMEMBERED)
        #: Prefetched messages that keep the tag of an earlier delivery.
        self._tagged: dict[int, Message] = {}
        #: Ids of messages that are being settled while prefetched or unclaimed. They are not delivered.
        self._settled: dict[int, None] = {}
        #: Bytes of all prefetched messages, and the bytes that count in the process's budget: without shared payloads.
        self.bytes = 0
        self._counted = 0
        #: Mean bytes of a message of the last claim.
        self.mean_bytes = UNKNOWN_BYTES
        self.next_tag = first_tag

    # Delivering.

    def _deliver_run(self, now: float, most: int) -> tuple[range, MessageRun]:
        """Deliver up to `most` messages at the head that go together."""
        run = self.ready.take(most)
        detail, tags = run.detail, range(self.next_tag, self.next_tag + len(run))
        self.next_tag = tags.stop
        self.unacked.add_run(tags, run.ids, run.attempts, now, detail)
        self._hold(-(OVERHEAD + (0 if detail is None else detail.weight)) * len(run) - run.size, run.shared)
        return tags, run

    def take(self, now: float, most: int, most_bytes: float) -> list[PushRun]:
        """Deliver up to `most` messages, fewer if they are large. Expired ones are left out."""
        taken: list[PushRun] = []
        size = 0
        while most and self.ready and size < most_bytes:
            detail = self.ready.first_run.detail
            if detail is not None and not (detail.tag is detail.expires_at is detail.origin is None):
                pushed = self._take_special(now, detail)
                if pushed is None:
                    continue
            else:
                first, few = self.ready.first_run, most
                if most_bytes < inf and size + sum(first.sizes(most)) > most_bytes:  # up to the one that exceeds it
                    few = sum(1 for _ in takewhile(most_bytes.__gt__, accumulate(first.sizes(most), initial=size)))
                tags, run = self._deliver_run(now, min(most, few))
                pushed = PushRun(tags, run.ids, run.payloads, run.attempts, detail)
            if most_bytes < inf:
                size += sum(map(len, pushed.payloads))
            most -= len(pushed)
            taken.append(pushed)
        return taken

    def _take_special(self, now: float, detail: Detail) -> PushRun | None:
        """Deliver the first message, which may have an earlier delivery's tag or a time to live. None: it is settled or
        expired. Its payload is not shared."""
        [(id, payload, attempts, _)] = self.ready.take(1)
        self._hold(-OVERHEAD - len(payload) - detail.weight)
        if detail.tag is not None or detail.expires_at is not None:
            if id in self._settled:
                return None
            if detail.expires_at is not None and detail.expires_at <= time.monotonic():
                self._on_expired(id)
                return None
        tag = self.next_tag
        if detail.tag is not None:
            tag = detail.tag
            self._tagged.pop(tag, None)
        if tag == self.next_tag:
            self.next_tag = tag + 1
        self.unacked.add(tag, (id, attempts, now, detail))
        return PushRun((tag,), (detail.origin or id,), [payload], attempts, detail)

    # Settling.

    def release_stale(self, tag: int) -> Unacked | None:
        """Take out a delivery whose lease was lost; None when there is none with this tag."""
        return self._stale.pop(tag, None)

    def settle_prefetched(self, tag: int) -> int | None:
        """Take note that a prefetched message was acknowledged by the tag of its earlier delivery; it is not delivered
        again. Returns its id, or None."""
        message = self._tagged.pop(tag, None)
        if message is None:
            return None
        self.settle_undelivered(message[0])
        return message[0]

    def settle_undelivered(self, id: int) -> None:
        """Take note that an undelivered message is being settled. It is not delivered, even if a claim brings it before
        the settlement is written. Only the last ones are remembered."""
        self._settled[id] = None
        if len(self._settled) > REMEMBERED:
            del self._settled[next(iter(self._settled))]

    # Prefetching.

    def add_run(self, ids: Sequence[int], payloads: list[bytes], detail: Detail | None, size: int) -> None:
        """Add messages of `size` bytes in all, in order of id, for their first delivery and with this detail. They may
        belong before those here."""
        if self.ready and ids[0] < self.ready[-1][0]:
            self._add(list(MessageRun(ids, payloads, 0, detail)), size)
            return
        self.ready.add_run(ids, payloads, detail)
        self._hold(size, isinstance(payloads, SharedPayloads))

    def _add(self, messages: list[Message], size: int) -> None:
        ready = self.ready
        if messages and ready and messages[0][0] < ready[-1][0]:  # those here have a lower priority
            messages = sorted([*ready, *messages], key=itemgetter(0))
            ready.clear()
            self._memory.hold(self.bytes - self._counted)  # from now on shared payloads count as the queue's own
            self._counted = self.bytes
        ready.extend(messages)
        self._hold(size)

    def add_claimed(self, messages: list[Message]) -> None:
        """Add messages in order of id. They may carry an earlier delivery's tag, or belong before those here."""
        if self._settled:
            messages = [message for message in messages if message[0] not in self._settled]
        size = sum(map(weight, messages))
        if messages:
            self.mean_bytes = size // len(messages)
        for message in messages:
            if message[3] is not None and message[3].tag is not None:
                self._tagged[message[3].tag] = message
        self._add(messages, size)

    def add_claimed_run(self, run: MessageRun) -> None:
        """As `add_claimed`, for messages on their first delivery."""
        if self._settled:
            self.add_claimed(list(run))
            return
        size = sum(map(len, run.payloads)) + len(run) * (OVERHEAD + (0 if run.detail is None else run.detail.weight))
        self.mean_bytes = size // len(run)
        self.add_run(run.ids, run.payloads, run.detail, size)

    def take_back(self, pushes: Sequence[Push]) -> None:
        """Make deliveries that no consumer has seen ready again, in their places."""
        messages: list[Message] = []
        for push in pushes:
            if (entry := self.unacked.release(push.tag)) is not None:
                messages.append((entry[0], push.payload, entry[1], entry[3]))
        self.add_claimed(sorted(messages, key=itemgetter(0)))

    def take_all(self) -> list[tuple[int, int | None]]:
        """Remove every prefetched message; returns (id, tag of an earlier delivery)."""
        taken = [
            (id, None if detail is None else detail.tag) for id, _, _, detail in self.ready if id not in self._settled
        ]
        self.ready.clear()
        self._memory.hold(-self._counted)
        self.bytes = self._counted = 0
        self._tagged.clear()
        return taken

    def purge(self, high: int) -> list[int]:
        """Remove prefetched messages whose id without its priority is at most `high`; returns the ids."""
        newer = [message for message in self.ready if message[0] & POSITION > high and message[0] not in self._settled]
        kept = {message[0] for message in newer}
        gone = [id for id, _ in self.take_all() if id not in kept]
        self.add_claimed(newer)
        return gone

    def remember_handed_back(self, ids: Iterable[int]) -> None:
        """Note messages that are on their way back to their places in the store."""
        self._handed_back.extend(ids)

    def find_handed_back(self, high: int) -> list[int]:
        """Ids (without priorities at most `high`) of recently handed back messages that no consumer here has again."""
        delivered = {entry[0] for entry in self.unacked.values()} if self._handed_back else ()
        return [id for id in self._handed_back if id & POSITION <= high and id not in delivered]

    def lose_leases(self) -> None:
        """The leases are lost: forget prefetched messages and mark deliveries as stale."""
        self.take_all()
        self._stale = dict(self.unacked)
        self.unacked.clear()

    def forget_deliveries(self) -> None:
        """The queue was removed, and its messages with it."""
        self.unacked.clear()

    def forget_stale(self) -> None:
        """The store's history differs: ids of earlier deliveries may belong to other messages."""
        self._stale.clear()
        self._settled.clear()

    def _hold(self, size: int, shared: bool = False) -> None:
        self.bytes += size
        if not shared:
            self._counted += size
            self._memory.hold(size)
