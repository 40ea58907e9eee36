"""Lines from a durable queue to IRC, each once or never (docs/protocols/hydra.md, "Durable queues").

A line is taken from the queue when it can go on: by the leader itself while it is on IRC and has room, or by a node
whose leader uses another database, which sends it there. Before it goes on its message is noted as sent, for ever and
for all nodes: if it comes again, because its node died before it could acknowledge it, it is acknowledged and not said.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, Protocol

from hydra.protocol.lines import is_sendable
from queues.engine import Delivery, Engine, EngineError, QueueBuffer

logger = logging.getLogger(__name__)

RETRY: Final = 0.5
FINISH: Final = 5.0
"""Seconds in which a line that is on its way at the end must be noted as sent, or not."""
#: Characters of the reason of a dead letter.
LONGEST_REASON: Final = 200
NO_LINE: Final = "no line for IRC: one line of UTF-8, JOIN, PART, PRIVMSG, NOTICE, MODE, TOPIC or KICK, up to 510 bytes"


class Gate(Protocol):
    """Whether a line may go on now."""

    def is_open(self) -> bool:
        """Whether the next line may be taken."""

    async def wait(self) -> None:
        """Return when it has been found open."""


class Claims(Protocol):
    """Which messages were sent, for all nodes that use the database. Raises OSError when it cannot be said."""

    async def claim(self, message: int) -> bool:
        """Note that a message is sent now; False if it was noted before."""

    async def release(self, message: int) -> None:
        """It was not sent after all."""


class Sender:
    """Takes one line after the other from a queue."""

    def __init__(
        self,
        engine: Engine,
        queue: str,
        gate: Gate,
        claims: Claims,
        submit: Callable[[str, str], None],
        happened: Callable[[str, str], None],
    ) -> None:
        self._engine = engine
        self._queue = queue
        self._gate = gate
        self._claims = claims
        self._submit = submit
        self._happened = happened
        self._buffer: QueueBuffer | None = None
        self._next: asyncio.Future[Delivery | None] | None = None
        self._sending = False
        self._stopping = False
        self._task = asyncio.create_task(self._work(), name="hydra sender")

    async def stop(self) -> None:
        """Take nothing more; what is being sent goes on its way first.

        A line that is noted as sent and not sent would be lost.
        """
        self._stopping = True
        if self._sending:
            await asyncio.wait({self._task}, timeout=FINISH)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # What the engine calls.

    def deliver(self, delivery: Delivery) -> None:
        """A message."""
        if self._next is not None and not self._next.done():
            self._next.set_result(delivery)
        elif self._buffer is not None:
            self._buffer.hand_back(delivery[0])

    def refuse(self) -> None:
        """Nothing will come."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def gate_changed(self) -> None:
        """The gate may have been closed: others should have what is taken from now on."""
        if not self._gate.is_open():
            self.refuse()

    # The work.

    async def _work(self) -> None:
        while not self._stopping:
            try:
                await self._gate.wait()
                delivery = await self._take()
                if delivery is not None:
                    self._sending = True
                    await self._send_alone(delivery)
            except (EngineError, OSError) as error:
                logger.info("%s: %s", self._queue, error)
                await asyncio.sleep(0 if self._stopping else RETRY * random.uniform(0.5, 1.5))
            except Exception as error:
                logger.error("%s: a fault in taking a message: %s", self._queue, error, exc_info=error)
                self._buffer = None
                await asyncio.sleep(RETRY)
            finally:
                self._sending = False

    async def _take(self) -> Delivery | None:
        """The next message; None if there is none while the gate is open."""
        buffer = self._buffer
        if buffer is None or buffer.closed:
            buffer = self._buffer = await self._engine.queue(self._queue)
        self._next = asyncio.get_running_loop().create_future()
        buffer.wait(self)
        try:
            delivery = await self._next
        finally:
            buffer.cancel(self)
        if delivery is None and self._gate.is_open():  # paused, or the engine is on its way back
            await asyncio.sleep(RETRY)
        return delivery

    async def _send_alone(self, delivery: Delivery) -> None:
        """Send a message. One that fails for an unforeseen reason becomes a dead letter, and the next one goes on."""
        try:
            await self._send(delivery)
        except (EngineError, OSError):
            raise
        except Exception as error:
            tag, buffer = delivery[0], self._buffer
            entry = None if buffer is None else buffer.unacked.get(tag)
            reason = f"a fault in saying it: {type(error).__name__}: {error}"[:LONGEST_REASON]
            logger.error("%s: message %s was given up: %s", self._queue, entry and entry[0], reason, exc_info=error)
            self._happened("fault", f"{self._queue}: message {entry and entry[0]} was given up: {reason}")
            if buffer is not None and entry is not None:
                buffer.bury(tag, reason)

    async def _send(self, delivery: Delivery) -> None:
        buffer = self._buffer
        assert buffer is not None
        tag, payload, _, detail = delivery
        entry = buffer.unacked.get(tag)
        if entry is None:  # the engine has lost its leases in between: it comes again
            return
        message = (None if detail is None else detail.origin) or entry[0]
        line = _line(payload)
        if line is None:
            buffer.bury(tag, NO_LINE)
            return
        if not self._gate.is_open():
            buffer.hand_back(tag)
            return
        try:
            new = await self._claims.claim(message)
            if new and not self._gate.is_open():
                await self._claims.release(message)
                buffer.hand_back(tag)
                return
        except (EngineError, OSError, asyncio.CancelledError):
            buffer.hand_back(tag)
            raise
        if new:
            self._submit(str(message), line)
        else:
            self._happened("line lost", f"message {message} was taken before by a node that died with it")
        buffer.ack(tag)


def _line(payload: bytes) -> str | None:
    """The line in a message; None if it holds none that IRC would take."""
    try:
        line = payload.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return None
    return line if is_sendable(line) else None
