"""Replies of one connection, in order: none leaves before what was published earlier on it is committed."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from queues.engine import Engine


class Sink(Protocol):
    """Where replies go."""

    def write(self, data: bytes) -> None:
        """Send these bytes."""


class Replies:
    """What a session has to say, waiting for commits where it must.

    Set `batch` to what each publish returns, append replies to what `begin` gives, call `flush` after each read.
    A barrier (a reply by which a client learns that its publishes are durable) also waits while very many
    acknowledgements are unwritten, so that a rate measured from outside is the true one.
    """

    __slots__ = ("_engine", "_held", "_holding", "_now", "_sink", "batch", "out")

    def __init__(self, engine: Engine, sink: Sink) -> None:
        self._engine = engine
        self._sink = sink
        self._held: deque[tuple[int, bool, list[bytes]]] = deque()
        self._now: list[bytes] = []
        self._holding = False
        self.batch = 0
        #: The list that the next reply goes to; call `begin` before using it.
        self.out = self._now

    def begin(self, barrier: bool = False) -> list[bytes]:
        """The list for the next reply, behind everything published so far."""
        engine = self._engine
        if engine.holds(self.batch) or (barrier and engine.behind):
            if barrier or not self._held or self._held[-1][0] != self.batch:
                self._held.append((self.batch, barrier, []))
            self.out = self._held[-1][2]
        else:
            self.out = self._held[-1][2] if self._held else self._now
        return self.out

    def flush(self) -> None:
        """Send what need not wait; have the engine release the rest."""
        if self._now:
            self._sink.write(b"".join(self._now))
            self._now.clear()
        if self._held and not self._holding:
            self._holding = True
            self._engine.hold(self)

    def release(self) -> None:
        """Send what has waited long enough."""
        engine, held, ready = self._engine, self._held, []
        while held:
            batch, barrier, replies = held[0]
            if engine.holds(batch) or (barrier and engine.behind):
                break
            ready += replies
            held.popleft()
        if ready:
            self._sink.write(b"".join(ready))
        if not held and self._holding:
            self._holding = False
            self._engine.unhold(self)

    @property
    def waiting(self) -> bool:
        """Whether anything waits for a commit."""
        return bool(self._held)

    def discard(self) -> None:
        """The connection is gone."""
        self._held.clear()
        self._now.clear()
        if self._holding:
            self._holding = False
            self._engine.unhold(self)
