"""Faults of the broker: their order, and each of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from time import monotonic

from brokersite.rigs.process import ProcessFailed
from brokersite.rigs.torture.database import TortureDatabase
from brokersite.rigs.torture.history import InjectedFault, InjectedFaultKind, RunHistory
from brokersite.rigs.torture.listeners import ListenerProcess

#: Seconds for which a listener may not have noticed that the database has gone away under it.
UNNOTICED = 1.0
#: Share of kills after which the next fault does not wait for the listener to become ready, if it is a kill.
EARLY = 0.1
#: Share of kills that come while the database stands still, as it may when a disk is slow. What the listener had
#: passed on before such a kill is committed all the same a moment later; what waited behind it is gone.
STALLED = 0.4
MAX_STALL = 0.3
MAX_FREEZE = 1.5
PURPOSES = (
    "writer", "settlements", "fetcher", "requests", "lookups", "delays", "reaper", "upkeep", "listener", "liveness"
)  # fmt: skip
#: Starts of a listener that may fail while the database is on its way back.
STARTS = 5


def schedule(counts: Mapping[InjectedFaultKind, int], source: random.Random) -> list[InjectedFaultKind]:
    """The faults of each kind by `counts`, shuffled."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    source.shuffle(kinds)
    return kinds


#: Faults by kind. Each returns when the database is back.
Acts = Mapping[InjectedFaultKind, Callable[[], None]]


class Tormentor:
    """Does the faults, one after the other, and writes them into the history. `more` are faults of the database."""

    def __init__(
        self, database: TortureDatabase, listeners: list[ListenerProcess], history: RunHistory, source: random.Random,
        more: Acts,
    ) -> None:  # fmt: skip
        self._database = database
        self._listeners = listeners
        self._history = history
        self._random = source
        self._starting: set[ListenerProcess] = set()
        self._acts = {
            InjectedFaultKind.KILL: self._kill,
            InjectedFaultKind.STOP: self._stop,
            InjectedFaultKind.DATABASE_KILL: self._kill_database,
            InjectedFaultKind.CUT: self._cut,
            InjectedFaultKind.FREEZE: self._freeze,
        }
        self._more = more

    def strike(self, kind: InjectedFaultKind) -> None:
        """Do it; returns when the broker is back, but for a few kills, so that the next may come early."""
        if kind is not InjectedFaultKind.KILL:
            self.await_ready()
        if (act := self._more.get(kind)) is None:
            self._acts[kind]()
            return
        begin = monotonic()
        act()
        self._note(kind, begin, monotonic() + UNNOTICED)

    def start_all(self) -> None:
        """Start every listener and wait until all are ready."""
        for listener in self._listeners:
            listener.start()
        for listener in self._listeners:
            self._bring_up(listener)

    def look_after(self) -> None:
        """Start listeners again that have ended by themselves, which they should not."""
        for listener in self._listeners:
            if listener in self._starting:
                continue
            try:
                listener.process.check()
            except ProcessFailed as failure:
                self._history.troubles.append(str(failure))
                self._restart(listener)

    def stop_all(self) -> None:
        """Stop every listener in order."""
        self.await_ready()
        for listener in self._listeners:
            self._stop_in_order(listener)

    def _note(self, kind: InjectedFaultKind, begin: float, end: float, listener: ListenerProcess | None = None) -> None:
        number = None if listener is None else listener.number
        self._history.faults.append(InjectedFault(kind, begin, end, number))

    def _restart(self, listener: ListenerProcess) -> None:
        listener.start()
        self._bring_up(listener)

    def await_ready(self) -> None:
        """Return when every listener that was started is ready."""
        while self._starting:
            self._bring_up(self._starting.pop())

    def _bring_up(self, listener: ListenerProcess) -> None:
        """Wait until it is ready; a start that fails because the database is not there is tried again."""
        for attempt in range(STARTS):
            try:
                listener.wait_until_ready()
                return
            except ProcessFailed:
                if attempt == STARTS - 1:
                    raise
                listener.end()
                listener.start()

    def _kill(self) -> None:
        listener = self._random.choice(self._listeners)
        if self._random.random() < STALLED:
            with self._database.frozen():
                time.sleep(self._random.uniform(0.02, MAX_STALL))
                self._kill_now(listener)
        else:
            self._kill_now(listener)
        listener.start()
        self._starting.add(listener)
        if self._random.random() >= EARLY:
            self.await_ready()

    def _kill_now(self, listener: ListenerProcess) -> None:
        begin = monotonic()
        listener.process.kill()
        self._note(InjectedFaultKind.KILL, begin, monotonic(), listener)

    def _stop(self) -> None:
        listener = self._random.choice(self._listeners)
        begin = monotonic()
        self._stop_in_order(listener)
        self._note(InjectedFaultKind.STOP, begin, monotonic(), listener)
        self._restart(listener)

    def _stop_in_order(self, listener: ListenerProcess) -> None:
        try:
            listener.stop()
        except ProcessFailed as failure:
            self._history.troubles.append(str(failure))

    def _kill_database(self) -> None:
        begin = monotonic()
        moved = self._database.kill(everything=self._random.random() < 0.5)
        self._note(InjectedFaultKind.DATABASE_KILL, begin, monotonic() + UNNOTICED)
        if moved:  # a listener keeps the address that it was started with
            for listener in self._listeners:
                self._kill_now(listener)
                self._restart(listener)

    def _cut(self) -> None:
        begin = monotonic()
        self._database.cut(self._random.choice(("%", *PURPOSES)))
        self._note(InjectedFaultKind.CUT, begin, monotonic() + UNNOTICED)

    def _freeze(self) -> None:
        begin = monotonic()
        with self._database.frozen():
            time.sleep(self._random.uniform(0.1, MAX_FREEZE))
        self._note(InjectedFaultKind.FREEZE, begin, monotonic())
