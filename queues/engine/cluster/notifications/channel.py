"""Sends and reads notifications over LISTEN and NOTIFY, instructions over a table.

`Announcer` gathers what parts of the engine report for a few milliseconds; its two jobs send it. `NotificationReader`
has two jobs that read; it calls one handler for each type. A notification may be lost: every part that depends on one
also polls.

A queue that other nodes are known to serve is announced at once. Whether others serve any other queue is asked of the
store after the commit: interest that was committed before is then seen, even if its notification is not here yet.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from queues.database.sql_files import array
from queues.engine.clock import now, wait_for
from queues.engine.cluster.notifications import formats
from queues.engine.database import Connection
from queues.engine.health import Health
from queues.engine.isolation import carry_out, halves
from queues.engine.message import Counts

logger = logging.getLogger(__name__)

#: Seconds to gather ready messages into one notification.
GATHER = 0.002
#: Seconds between queries for the queues that other nodes serve; queues in one query.
ASK = 0.05
ASKED_AT_ONCE = 1000
#: Seconds between polls for instructions, in case a notification was lost; instructions taken at once.
UNTOLD = 5.0
TAKEN_AT_ONCE = 1000
#: Limits of payload bytes and of tags that wait to be sent.
MAX_WAITING = 4 << 20
#: Seconds between log lines about notifications that were not obeyed.
QUIET = 10.0

Handler = Callable[[Any], None]


class Announcer:
    """Sends events to other nodes, gathered over a few milliseconds."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._ready: dict[int, int] = {}
        self._unsure: dict[int, int] = {}
        self._dead: set[int] = set()
        self._other: list[formats.Sendable] = []
        self._waiting = 0
        self._wake = asyncio.Event()
        self._asked = asyncio.Event()

    def ready(self, queue: int, first_id: int) -> None:
        """Announce that messages from `first_id` on became ready in a queue that others serve."""
        self._ready[queue] = min(first_id, self._ready.get(queue, first_id))
        self._wake.set()

    def ready_for_any(self, queue: int, first_id: int) -> None:
        """Announce ready messages of a queue that no other node is known to serve."""
        self._unsure[queue] = min(first_id, self._unsure.get(queue, first_id))
        self._asked.set()

    def dead(self, queue: int) -> None:
        """Announce dead letters that came to this queue, or came back."""
        self._dead.add(queue)
        self._wake.set()

    def forward_transient(self, queue: int, node: int, body: bytes) -> bool:
        """Pass a QoS 0 message to a node that serves its queue. False: the outbox is full."""
        return self.say(formats.Transient(queue, node, body))

    def forward_acks(self, queue: int, tags: tuple[int, ...], consumer: int | None) -> None:
        """Pass on acknowledgements of other nodes' deliveries."""
        self.say(formats.RemoteAck(queue, tags, consumer))

    def say(self, notification: formats.Sendable) -> bool:
        """Send one notification to every node, this one included. False: the outbox is full, and nothing is sent."""
        size = _size(notification)
        if self._waiting + size > MAX_WAITING:
            return False
        self._waiting += size
        self._other.append(notification)
        self._wake.set()
        return True

    async def run(self, connection: Connection) -> None:
        """Send for ever. Raises when the connection is lost."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self.flush(connection)
            await asyncio.sleep(GATHER)

    async def ask(self, connection: Connection, node: int) -> None:
        """Announce ready messages of queues that nodes other than `node` serve. Runs for ever."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            unsure = list(self._unsure.items())
            for start in range(0, len(unsure), ASKED_AT_ONCE):
                await self._ask_some(connection, node, dict(unsure[start : start + ASKED_AT_ONCE]))
            await asyncio.sleep(ASK)

    async def _ask_some(self, connection: Connection, node: int, unsure: dict[int, int]) -> None:
        try:
            served = await connection.rows("served_elsewhere", {"queues": array(unsure), "node": node})
        except BaseException:
            self._asked.set()  # to be asked again
            raise
        for (queue,) in served:
            self.ready(queue, unsure[queue])
        for queue, first_id in unsure.items():
            if self._unsure[queue] == first_id:  # else something came before it meanwhile
                del self._unsure[queue]

    async def flush(self, connection: Connection) -> None:
        """Send the waiting events. A faulty one is isolated. After a temporary refusal or a lost connection the rest
        keeps waiting, and the error is raised."""
        parts = deque([some] if (some := self._take()) else [])
        try:
            refused = await carry_out(parts, partial(_send, connection), halves, self._not_sent, connection)
        finally:
            for part in reversed(parts):
                self._other[:0] = part
                self._waiting += sum(map(_size, part))
            if parts:
                self._wake.set()
        if refused is not None:
            raise refused

    def _take(self) -> list[formats.Sendable]:
        """All that waits."""
        notifications, self._other = self._other, []
        self._waiting = 0
        if self._ready:
            notifications.append(formats.Ready(self._ready))
            self._ready = {}
        if self._dead:
            notifications.append(formats.Dead(tuple(sorted(self._dead))))
            self._dead = set()
        return notifications

    def _not_sent(self, notifications: list[formats.Sendable], error: Exception) -> None:
        self._health.isolate("notification", error, kind=type(notifications[0]).__name__)


async def _send(connection: Connection, notifications: list[formats.Sendable]) -> None:
    texts: list[str] = []
    nodes: list[int | None] = []
    for notification in notifications:
        if isinstance(notification, formats.SendableInstruction):
            told = list(notification.texts())
            texts += told
            nodes += [formats.recipient(notification)] * len(told)
        else:
            for text in notification.texts():
                await connection.execute("select pg_notify(%s, %s)", (formats.CHANNEL, text))
    if texts:
        await connection.run("instruct", {"texts": texts, "nodes": nodes})


def _size(notification: formats.Sendable) -> int:
    match notification:
        case formats.Transient(body=body):
            return len(body) + 64
        case formats.RemoteAck(tags=tags):
            return 16 * len(tags) + 64
        case _:
            return 64


class NotificationReader:
    """Reads notifications and instructions, and calls their types' handlers. A malformed one, or one whose handler
    fails, is counted and costs nothing else."""

    def __init__(self, handlers: Mapping[type, Handler], counts: Counts) -> None:
        self._handlers: dict[type, Handler] = {formats.Instructed: self._instructed, **handlers}
        self._counts = counts
        self._quiet_until = 0.0
        #: The lowest id of instructions to read.
        self._first: int | None = None
        self._told = asyncio.Event()

    async def run(self, connection: Connection) -> None:
        """Read notifications for ever. Raises when the connection is lost."""
        async for notification in connection.notifies():
            self.hear(notification.payload)

    async def obey(self, connection: Connection, node: int) -> None:
        """Carry out, for ever, the instructions for this node."""
        await connection.run("drop_instructions")
        self._first = 0
        while True:
            first, self._first = self._first, None
            self._told.clear()
            await self._take(connection, node, 0 if first is None else first)
            await asyncio.sleep(GATHER)
            await wait_for(self._told, UNTOLD)

    async def _take(self, connection: Connection, node: int, first: int) -> None:
        taken = TAKEN_AT_ONCE
        while taken == TAKEN_AT_ONCE:
            rows = await connection.rows("take_instructions", {"node": node, "first": first, "limit": TAKEN_AT_ONCE})
            for _, text in sorted(rows):
                self._obey(text, formats.parse_instruction)
            taken = len(rows)

    def _instructed(self, told: formats.Instructed) -> None:
        self._first = told.first if self._first is None else min(told.first, self._first)
        self._told.set()

    def hear(self, text: str) -> None:
        """Handle one notification."""
        self._obey(text, formats.parse)

    def _obey(self, text: str, read: Callable[[str], formats.Notification]) -> None:
        try:
            notification = read(text)
        except formats.Malformed as error:
            self._counts.notifications_ignored += 1
            self._complain("a notification was ignored, %s: %.200r", error, text)
            return
        try:
            self._handlers[type(notification)](notification)
        except Exception as error:  # the next notification is handled all the same
            self._counts.notifications_failed += 1
            self._complain("a notification was not obeyed, %r: %.200r", error, text, failed=error)

    def _complain(self, message: str, *words: object, failed: Exception | None = None) -> None:
        if now() >= self._quiet_until:
            self._quiet_until = now() + QUIET
            logger.log(logging.WARNING if failed is None else logging.ERROR, message, *words, exc_info=failed)
