"""The POLL of a connection that waits for a message, and how long it may."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Protocol

from queues.engine.api import Broker
from wire.blipmq.subscriptions import Polled
from wire.net.connection import Failing, contained
from wire.replies import Replies

#: Seconds that the POLLs of one read may wait for claims from the store, in all. After them the answer is "no message":
#: a client acknowledges what a burst brought only when it has seen the burst's end.
POLL_TIMEOUT = 0.02


class PollingSession(Protocol):
    """The session of the POLL."""

    def answer_poll(self, cid: int, known: Polled, last: bool) -> bool:
        """Deliver a message to the POLL, if there is one. `last` says that the POLL waits no longer."""

    def poll_is_over(self) -> None:
        """The POLL waits no longer: go on with the frames behind it."""


class WaitingPoll:
    """At most one POLL of a connection waits: for a claim of its queue, or for a commit under way.

    It knows the session only while a POLL waits: without a circle of references a session that has ended is freed at
    once, with the bytes that it has read.
    """

    __slots__ = ("_engine", "_poll", "_replies", "_session", "_timer", "connection", "deadline")

    def __init__(self, connection: Failing, engine: Broker, replies: Replies) -> None:
        self.connection = connection
        self._engine = engine
        self._replies = replies
        self._session: PollingSession | None = None
        self._poll: tuple[int, Polled] | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The end of the time that the POLLs of this read have; None while none of them has waited. Each read begins
        #: with None.
        self.deadline: float | None = None

    @property
    def active(self) -> bool:
        """Whether a POLL waits."""
        return self._poll is not None

    def may_come(self, known: Polled, session: PollingSession, soon: bool = True) -> bool:
        """Whether a POLL that found nothing should wait: for a claim, for this connection's own publishes, and, if no
        other answer is due, for a commit under way. One late answer is better than many empty ones.
        """
        if self.deadline is not None and monotonic() >= self.deadline:
            return False
        buffer = known.buffer
        storing = soon and buffer.backlog.storing
        return buffer.may_refill_for(session) or storing or self._engine.holds(self._replies.batch)

    def wait(self, cid: int, known: Polled, session: PollingSession) -> None:
        """Wait for the claim that the queue has asked for, or for the commit of the connection's own publishes."""
        self._poll, self._session = (cid, known), session
        if self.deadline is None:
            self.deadline = monotonic() + POLL_TIMEOUT
        left = max(0.0, self.deadline - monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._give_up)
        self._wait_on()

    def stop(self) -> None:
        """The POLL waits no longer."""
        self._poll = self._session = None
        self._engine.unhold(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait_on(self) -> None:
        assert self._poll is not None
        if self._engine.holds(self._replies.batch):
            self._engine.hold(self)
        else:
            self._poll[1].buffer.prefetch.on_refill(self._refilled)

    @contained
    def release(self) -> None:
        """A batch was committed: it may have held the message that is polled, and comes to memory next."""
        if self._poll is not None and not self._engine.holds(self._replies.batch):
            self._engine.unhold(self)
            asyncio.get_running_loop().call_soon(self._committed)

    @contained
    def _committed(self) -> None:
        if self._poll is not None and not self._engine.holds(self._replies.batch):
            self._look_again(self._poll[1].buffer.may_refill_for(self._session))

    @contained
    def _refilled(self) -> None:
        self._look_again(False)

    def _look_again(self, more: bool) -> None:
        """Answer the POLL, with silence unless there is `more` to wait for."""
        session = self._session
        if self._poll is None or session is None:
            return
        if session.answer_poll(*self._poll, not more) or not more:
            self.stop()
            session.poll_is_over()
        else:
            self._wait_on()

    @contained
    def _give_up(self) -> None:
        """No claim came back in time: the other POLLs of this read do not wait either."""
        self.deadline = 0.0
        self._look_again(False)
