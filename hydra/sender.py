"""Lines from a durable queue to IRC, each once or never (docs/protocols/hydra.md, "Durable queues").

A line is taken from the queue when the gate is open: by the leader while it is on IRC and has room, or by a node whose
leader uses another database. First its message is noted as sent, for all nodes and for ever. If it is delivered again,
because its node died before the acknowledgement, it is acknowledged and not sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from hydra.protocol.lines import is_sendable
from hydra.send_gate import SendGate
from hydra.storage.database_thread import DatabaseThread
from hydra.storage.line_records import claim, release
from queues.engine import Delivery, Engine, EngineError, LocalQueue, Waiter

logger = logging.getLogger(__name__)

RETRY: Final = 0.5
#: Seconds for the last line to be noted as sent, or not, when the sender stops.
FINISH: Final = 5.0
#: Characters of the reason of a dead letter.
LONGEST_REASON: Final = 200
NO_LINE: Final = "no line for IRC: one line of UTF-8, JOIN, PART, PRIVMSG, NOTICE, MODE, TOPIC or KICK, up to 510 bytes"


@dataclass(eq=False)
class Sender(Waiter):
    """Takes lines from a queue, one after the other."""

    engine: Engine
    queue: str
    gate: SendGate
    database: DatabaseThread
    submit: Callable[[str, str], None]
    happened: Callable[[str, str], None]
    _buffer: LocalQueue | None = None
    _next: asyncio.Future[Delivery | None] | None = None
    _sending: bool = False
    _stopping: bool = False

    def __post_init__(self) -> None:
        super().__init__(key=None)
        self._task = asyncio.create_task(self._work(), name="hydra sender")

    async def stop(self) -> None:
        """Take no more lines; finish the one under way, which would be lost between its note and its sending."""
        self._stopping = True
        if self._sending:
            await asyncio.wait({self._task}, timeout=FINISH)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._buffer is not None:
            self._buffer.leave(self, finish=True)

    # Called by the engine.

    def deliver(self, delivery: Delivery) -> None:
        """Take a message, or hand it back."""
        if self._next is not None and not self._next.done():
            self._next.set_result(delivery)
        elif self._buffer is not None:
            self._buffer.hand_back(delivery[0])

    def refuse(self) -> None:
        """Expect no message."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def gate_changed(self) -> None:
        """Stop waiting for a message if the gate is closed: other nodes should have it."""
        if not self.gate.is_open():
            self.refuse()

    # The work.

    async def _work(self) -> None:
        while not self._stopping:
            try:
                await self.gate.wait()
                delivery = await self._take()
                if delivery is not None:
                    self._sending = True
                    await self._send_alone(delivery)
            except (EngineError, OSError) as error:
                logger.info("%s: %s", self.queue, error)
                await asyncio.sleep(0 if self._stopping else RETRY * random.uniform(0.5, 1.5))
            except Exception as error:
                logger.error("%s: a fault in taking a message: %s", self.queue, error, exc_info=error)
                self._buffer = None
                await asyncio.sleep(RETRY)
            finally:
                self._sending = False

    async def _take(self) -> Delivery | None:
        """The next message; None if there is none while the gate is open."""
        buffer = self._buffer
        if buffer is None or buffer.closed:
            buffer = self._buffer = await self.engine.queue(self.queue)
        self._next = asyncio.get_running_loop().create_future()
        buffer.wait(self)
        try:
            delivery = await self._next
        finally:
            buffer.cancel(self)
            if not self.gate.is_open():
                buffer.leave(self, finish=True)
        if delivery is None and self.gate.is_open():  # paused, or the engine reconnects
            await asyncio.sleep(RETRY)
        return delivery

    async def _send_alone(self, delivery: Delivery) -> None:
        """Send a message; one that fails for an unforeseen reason becomes a dead letter."""
        try:
            await self._send(delivery)
        except (EngineError, OSError):
            raise
        except Exception as error:
            tag, buffer = delivery[0], self._buffer
            entry = None if buffer is None else buffer.unacked.get(tag)
            reason = f"a fault in saying it: {type(error).__name__}: {error}"[:LONGEST_REASON]
            logger.error("%s: message %s was given up: %s", self.queue, entry and entry[0], reason, exc_info=error)
            self.happened("fault", f"{self.queue}: message {entry and entry[0]} was given up: {reason}")
            if buffer is not None and entry is not None:
                buffer.bury(tag, reason)

    async def _send(self, delivery: Delivery) -> None:
        buffer = self._buffer
        assert buffer is not None
        tag, payload, _, detail = delivery
        entry = buffer.unacked.get(tag)
        if entry is None:  # the engine has lost its leases: the message comes again
            return
        message = (None if detail is None else detail.origin) or entry[0]
        line = _line(payload)
        if line is None:
            buffer.bury(tag, NO_LINE)
            return
        if not self.gate.is_open():
            buffer.hand_back(tag)
            return
        try:
            new = await self.database.run(claim, message)
            if new and not self.gate.is_open():
                await self.database.run(release, message)
                buffer.hand_back(tag)
                return
        except (EngineError, OSError, asyncio.CancelledError):
            buffer.hand_back(tag)
            raise
        if new:
            self.submit(str(message), line)
        else:
            self.happened("line lost", f"message {message} was taken before, by a node that died with it")
        buffer.ack(tag)


def _line(payload: bytes) -> str | None:
    """The line in a message; None if IRC would not take it."""
    try:
        line = payload.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return None
    return line if is_sendable(line) else None
