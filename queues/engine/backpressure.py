"""Barriers for connections: replies wait for a commit, reading waits for the database to keep up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from queues.engine.health import Health


class ReplyHolder(Protocol):
    """A connection with replies that wait for a commit."""

    def release(self) -> None:
        """A batch was committed, whose messages come to memory next, or acknowledgements were: send what may go."""


class Barriers:
    """The connections whose replies wait."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._holders: set[ReplyHolder] = set()

    def hold(self, holder: ReplyHolder) -> None:
        """Call `holder.release` after every commit and every settling until `unhold`."""
        self._holders.add(holder)

    def unhold(self, holder: ReplyHolder) -> None:
        self._holders.discard(holder)

    def release(self) -> None:
        """Something was committed."""
        for holder in tuple(self._holders):
            try:
                holder.release()
            except Exception as error:
                self._holders.discard(holder)
                self._health.broken("session", holder, error)


class Saturation:
    """Whether sockets are not read, since too much waits for the database. `overfull(share)` tells whether more than
    this share of what may wait does."""

    def __init__(self, health: Health, overfull: Callable[[float], bool]) -> None:
        self._health = health
        self._overfull = overfull
        self.reached = False
        #: Called with True when sockets should not be read, and with False when they may be again.
        self.on_change: list[Callable[[bool], None]] = []

    def check(self) -> None:
        """Something was added: sessions call this after each read that published."""
        if not self.reached and self._overfull(1.0):
            self.reached = True
            for pause in self.on_change:
                pause(True)

    def ease(self) -> None:
        """Something was written."""
        if self.reached and not self._overfull(0.5):
            self.reached = False
            for resume in self.on_change:
                self._health.guard("session", None, resume, False)
