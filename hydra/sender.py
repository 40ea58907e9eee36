"""Lines from a durable queue to IRC, each once or never (docs/protocols/hydra.md, "Durable queues").

A line is taken from the queue when the gate is open: by the leader while it is on IRC and has room, or by a node whose
leader uses another database. First its message is noted as sent, for all nodes and for ever. It is acknowledged when
the server has taken it. A line that the server refuses, or whose fate nobody can know, becomes a dead letter with the
reason, and its note is removed: what an operator puts back is sent again.

A line for a channel that the leader wants to be in, and is not in at the moment, is put aside until it is. So are the
later ones for that channel, and others overtake them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from hydra import clock
from hydra.irc.casemapping import fold
from hydra.irc.fates import LINE_LOST, LINE_REFUSED, SENT, Fate, FateKind
from hydra.protocol.lines import is_sendable, targets
from hydra.send_gate import SendGate
from hydra.storage.database_thread import DatabaseThread
from hydra.storage.line_records import claim, release, release_dead
from queues.engine.api import Broker, Delivery, EngineError, PrefetchedQueue, Waiter

logger = logging.getLogger(__name__)

RETRY: Final = 0.5
#: Seconds for the last line to be noted as sent, or not, when the sender stops.
FINISH: Final = 5.0
#: Lines that are put aside; then no more are taken.
MAX_ASIDE: Final = 1000
#: Seconds that a line waits for its channel, and between two looks.
ASIDE_TIMEOUT: Final = 600.0
LOOK_ASIDE: Final = 1.0
#: Seconds for the server's answer to a line; the connection itself gives up earlier.
MAX_ANSWER: Final = 300.0
#: Looks whether a dead letter is stored.
LOOKS: Final = 100
#: Seconds between two such looks.
LOOK: Final = 0.05
#: Characters of a line in an event.
MAX_LINE: Final = 200
#: Characters of the reason of a dead letter.
MAX_REASON: Final = 500
NO_LINE: Final = "no line for IRC: one line of UTF-8, JOIN, PART, PRIVMSG, NOTICE, MODE, TOPIC or KICK, up to 510 bytes"
TAKEN_BEFORE: Final = "it was taken before, by a node that died or lost the database with it: it may have been sent"

#: Makes a line's way to IRC begin; its fate, or None if another node is to send it.
Submit = Callable[[str, str], "asyncio.Future[Fate] | None"]


class _Aside(NamedTuple):
    """A delivery that waits for a channel."""

    delivery: Delivery
    line: str
    since: float


@dataclass(eq=False)
class Sender(Waiter):
    """Takes lines from a queue, one after the other."""

    engine: Broker
    queue: str
    gate: SendGate
    database: DatabaseThread
    submit: Submit
    happened: Callable[[str, str], None]
    awaits: Callable[[str], str | None] = lambda line: None
    """Why a line has to wait for its channel, or None."""
    _buffer: PrefetchedQueue | None = None
    _next: asyncio.Future[Delivery | None] | None = None
    _sending: bool = False
    _stopping: bool = False
    _aside: list[_Aside] = field(default_factory=list)
    _tries: Counter[int] = field(default_factory=Counter)
    """How often a message was submitted and not sent."""
    _nudged: bool = False

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
            self._buffer.deliveries.hand_back(delivery[0])

    def refuse(self) -> None:
        """Expect no message."""
        if self._next is not None and not self._next.done():
            self._next.set_result(None)

    def gate_changed(self) -> None:
        """Stop waiting for a message if the gate is closed: other nodes should have it."""
        if not self.gate.is_open():
            self.refuse()

    def joined(self) -> None:
        """The leader is in a channel again: look at what waits for it."""
        if self._aside:
            self._nudged = True
            self.refuse()

    # The work.

    async def _work(self) -> None:
        while not self._stopping:
            try:
                await self._open()
                resumed = self._resumed()
                delivery = resumed or await self._take()
                if delivery is not None:
                    self._sending = True
                    await self._send_alone(delivery, resumed is not None)
            except (EngineError, OSError) as error:
                logger.info("%s: %s", self.queue, error)
                await asyncio.sleep(0 if self._stopping else RETRY * random.uniform(0.5, 1.5))
            except Exception as error:
                logger.error("%s: a fault in taking a message: %s", self.queue, error, exc_info=error)
                self._forget_buffer()
                await asyncio.sleep(RETRY)
            finally:
                self._sending = False

    async def _open(self) -> None:
        """Wait until lines may be taken. Meanwhile another node may: it gets what was put aside."""
        if not self.gate.is_open():
            aside, self._aside = self._aside, []
            for each in reversed(aside):
                if self._buffer is not None:
                    self._buffer.deliveries.hand_back(each.delivery[0])
            await self.gate.wait()

    def _forget_buffer(self) -> None:
        self._buffer = None
        self._aside.clear()

    def _resumed(self) -> Delivery | None:
        """The first line put aside whose channel is there; those that have waited too long become dead letters."""
        self._nudged = False
        blocked: set[str] = set()
        for each in tuple(self._aside):
            if (why := self.awaits(each.line)) is None and blocked.isdisjoint(_channels(each.line)):
                self._aside.remove(each)
                return each.delivery
            if why is not None and clock.now() - each.since > ASIDE_TIMEOUT:
                self._aside.remove(each)
                self._give_up(each.delivery[0], each.line, f"{why}, for {ASIDE_TIMEOUT:g} s")
            else:
                blocked |= _channels(each.line)
        return None

    async def _take(self) -> Delivery | None:
        """The next message; None if there is none while the gate is open."""
        buffer = self._buffer
        if buffer is None or buffer.closed:
            self._forget_buffer()
            buffer = self._buffer = await self.engine.queue(self.queue)
        if len(self._aside) >= MAX_ASIDE:
            await asyncio.sleep(LOOK_ASIDE)
            return None
        loop = asyncio.get_running_loop()
        self._next = loop.create_future()
        look = loop.call_later(LOOK_ASIDE, self.joined) if self._aside else None
        buffer.wait(self)
        try:
            delivery = await self._next
        finally:
            if look is not None:
                look.cancel()
            buffer.cancel(self)
            if not self.gate.is_open():
                buffer.leave(self, finish=True)
        if delivery is None and self.gate.is_open() and not self._nudged:  # paused, or the engine reconnects
            await asyncio.sleep(RETRY)
        return delivery

    async def _send_alone(self, delivery: Delivery, resumed: bool) -> None:
        """Send a message; one that fails for an unforeseen reason becomes a dead letter."""
        try:
            await self._send(delivery, resumed)
        except (EngineError, OSError):
            raise
        except Exception as error:
            tag, buffer = delivery[0], self._buffer
            entry = None if buffer is None else buffer.unacked.get(tag)
            reason = f"a fault in saying it: {type(error).__name__}: {error}"[:MAX_REASON]
            logger.error(
                "%s: message %s was given up: %s", self.queue, entry and entry[0], reason, exc_info=error,
                extra={"queue": self.queue, "message_id": entry and entry[0]},
            )  # fmt: skip
            self.happened("fault", f"{self.queue}: message {entry and entry[0]} was given up: {reason}")
            if buffer is not None and entry is not None:
                buffer.deliveries.bury(tag, reason)

    async def _send(self, delivery: Delivery, resumed: bool) -> None:
        buffer = self._buffer
        assert buffer is not None
        tag, payload, _, detail = delivery
        entry = buffer.unacked.get(tag)
        if entry is None:  # the engine has lost its leases: the message comes again
            return
        message = (None if detail is None else detail.origin) or entry[0]
        line = _line(payload)
        if line is None:
            buffer.deliveries.bury(tag, NO_LINE)
            return
        if not self.gate.is_open():
            buffer.deliveries.hand_back(tag)
            return
        if not resumed and self._put_aside(delivery, line):
            return
        try:
            new = await self.database.run(claim, message)
            if new and not self.gate.is_open():
                await self.database.run(release, message)
                buffer.deliveries.hand_back(tag)
                return
            fate = await self._fate(message, entry[0], line) if new else Fate(FateKind.UNKNOWN, TAKEN_BEFORE)
            if fate.kind is FateKind.UNSENT or (fate.kind is FateKind.REFUSED and self.awaits(line)):
                self._tries[message] += 1
                await self.database.run(release, message)
                if fate.kind is FateKind.UNSENT:
                    buffer.deliveries.hand_back(tag)
                else:  # this client was removed from the channel meanwhile
                    self._aside.insert(0, _Aside(delivery, line, clock.now()))
                return
        except (EngineError, OSError, asyncio.CancelledError):
            buffer.deliveries.hand_back(tag)
            raise
        del self._tries[message]
        if fate.kind is FateKind.SENT:
            buffer.deliveries.ack(tag)
            return
        self._give_up(tag, line, fate.words, lost=fate.kind is FateKind.UNKNOWN)
        await self._release_dead(message)

    def _put_aside(self, delivery: Delivery, line: str) -> bool:
        """Whether a line waits for its channel from now on, or behind others for that channel."""
        channels = _channels(line)
        if self.awaits(line) is None and all(channels.isdisjoint(_channels(each.line)) for each in self._aside):
            return False
        self._aside.append(_Aside(delivery, line, clock.now()))
        return True

    async def _fate(self, message: int, id: int, line: str) -> Fate:
        """Submit a line and wait for its fate; SENT for one that another node is to send.

        A node sends what has one name once in a term: `id`, which a message has since it was put back, and the number
        of tries make it another.
        """
        put_back, tries = "" if id == message else f".{id}", self._tries[message]
        fate = self.submit(f"{message}{put_back}" + (f"-{tries}" if tries else ""), line)
        if fate is None:
            return SENT
        done, _ = await asyncio.wait({fate}, timeout=MAX_ANSWER)
        if not done:
            return Fate(FateKind.UNKNOWN, f"no answer for {MAX_ANSWER:g} s: it may have been sent")
        answer = fate.result()
        if answer.kind is FateKind.UNKNOWN:
            return answer._replace(words=f"{answer.words}: it may have been sent")
        return answer

    def _give_up(self, tag: int, line: str, words: str, lost: bool = False) -> None:
        """Make a dead letter of a line that is not sent again by itself."""
        buffer = self._buffer
        entry = None if buffer is None else buffer.unacked.get(tag)
        if buffer is not None and entry is not None:
            kind = LINE_LOST if lost else LINE_REFUSED
            logger.warning(
                "%s: %s, message %d is a dead letter: %s", self.queue, kind, entry[0], words,
                extra={"queue": self.queue, "message_id": entry[0]},
            )  # fmt: skip
            self.happened(kind, f"{self.queue}: message {entry[0]} is a dead letter: {words}: {line[:MAX_LINE]}")
            buffer.deliveries.bury(tag, words[:MAX_REASON])

    async def _release_dead(self, message: int) -> None:
        """Remove the note of a line once its dead letter is stored; if that fails it is removed within a day."""
        for _ in range(LOOKS):
            try:
                if await self.database.run(release_dead, message):
                    return
            except OSError:
                return
            await asyncio.sleep(LOOK)


def _channels(line: str) -> set[str]:
    """What a line is for, in lower case."""
    return {fold(each) for each in targets(line)}


def _line(payload: bytes) -> str | None:
    """The line in a message; None if IRC would not take it."""
    try:
        line = payload.rstrip(b"\r\n").decode()
    except UnicodeDecodeError:
        return None
    return line if is_sendable(line) else None
