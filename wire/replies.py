"""Replies of one connection, in order: none leaves before what was published earlier on it is committed."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from queues.engine.api import Broker
from wire.net.connection import Failing, contained

#: Pieces of data that are sent one after the other.
Parts = list[bytes | bytearray]


class Sink(Failing, Protocol):
    """The connection that replies are written to."""

    def write_parts(self, parts: Parts) -> None:
        """Send what these make together, and keep no hold of the list."""


class HeldReplies:
    """Replies that wait for the same commits. While `pending` the reply is not known yet."""

    __slots__ = ("barrier", "batch", "parts", "pending", "round")

    def __init__(self, batch: int, round: int, barrier: bool, pending: bool = False) -> None:
        self.batch = batch
        self.round = round
        self.barrier = barrier
        self.pending = pending
        self.parts: Parts = []

    def fill(self, frame: bytes) -> None:
        """The pending reply is known now."""
        self.parts.append(frame)
        self.pending = False

    def wait_for(self, batch: int) -> None:
        """The pending reply waits for another batch of publishes."""
        self.batch = batch


class Replies:
    """The replies of a session; those that must, wait for commits.

    Tell it of each publish (`follow_batch`) and each settlement (`follow_round`), append replies to the list that
    `begin` returns, and call `flush` after each read. A barrier (a reply by which a client learns that its publishes
    are durable) also waits while very many acknowledgements are unwritten, so that a rate measured from outside is
    the true one.
    """

    __slots__ = ("_engine", "_held", "_holding", "_now", "batch", "connection", "out", "round")

    def __init__(self, engine: Broker, sink: Sink) -> None:
        self._engine = engine
        self.connection = sink
        self._held: deque[HeldReplies] = deque()
        self._now: Parts = []
        self._holding = False
        #: The last batch and round that were followed.
        self.batch = 0
        self.round = 0
        #: The list that the next reply goes to; call `begin` before using it.
        self.out = self._now

    def follow_batch(self, batch: int) -> None:
        """Later replies wait for the commit of this batch of publishes."""
        self.batch = batch

    def follow_round(self, round: int) -> None:
        """Later replies wait for this round of settlements."""
        self.round = round

    def begin(self, barrier: bool = False) -> Parts:
        """The list for the next reply, behind everything published and settled so far."""
        last = self._held[-1] if self._held else None
        if last is not None and last.batch == self.batch and last.round == self.round and not (barrier or last.pending):
            self.out = last.parts
            return self.out
        engine = self._engine
        if (
            engine.holds(self.batch)
            or (self.round and engine.settles(self.round))
            or (barrier and engine.behind)
        ):
            if barrier or last is None or last.pending or last.batch != self.batch or last.round != self.round:
                last = HeldReplies(self.batch, self.round, barrier)
                self._held.append(last)
            self.out = last.parts
        elif last is None:
            self.out = self._now
        else:
            if last.pending:
                last = HeldReplies(self.batch, self.round, False)
                self._held.append(last)
            self.out = last.parts
        return self.out

    def begin_pending(self) -> HeldReplies:
        """Return a place for a reply that is not known yet: `fill` it, then call `release`."""
        held = HeldReplies(self.batch, self.round, False, pending=True)
        self._held.append(held)
        return held

    def flush(self) -> None:
        """Send the replies that need not wait; the engine releases the rest."""
        if self._now:
            self.connection.write_parts(self._now)
            self._now.clear()
        if self._held and not self._holding:
            self._holding = True
            self._engine.hold(self)

    @contained
    def release(self) -> None:
        """Send the replies whose commits have come."""
        engine, queue, ready = self._engine, self._held, Parts()
        while queue:
            held = queue[0]
            if (
                held.pending
                or engine.holds(held.batch)
                or engine.settles(held.round)
                or (held.barrier and engine.behind)
            ):
                break
            ready += held.parts
            queue.popleft()
        if ready:
            self.connection.write_parts(ready)
        if not queue and self._holding:
            self._holding = False
            self._engine.unhold(self)

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._held)

    @property
    def unsent(self) -> bool:
        """Whether there is a reply that the client cannot have seen: it waits, or for `flush`."""
        return bool(self._held or self._now)

    def discard(self) -> None:
        """The connection is gone."""
        self._held.clear()
        self._now.clear()
        if self._holding:
            self._holding = False
            self._engine.unhold(self)
