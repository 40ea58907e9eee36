"""One process of `manage.py runhydra`: a node, its row, its queues and its IRC connection; an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from hydra import clock
from hydra.control import Action, Command
from hydra.databasethread import DatabaseThread
from hydra.driver import Driver
from hydra.gate import LineGate
from hydra.irc.connection import IrcConnection
from hydra.irc.pace import Pace
from hydra.options import HydraOptions
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.recorder import Recorder
from hydra.sender import Sender
from hydra.sentlines import RECV_LENGTH, SentLines, begin_anew, prepare_queue, prune, uses_this_database
from hydra.snapshot import snapshot
from hydra.store import NodeStore, StoreError
from hydra.transports.base import TransportError
from queues.engine import Engine

logger = logging.getLogger(__name__)

STATUS: Final = 1.0
"""Seconds between two pictures of the node for operators."""
PRUNE: Final = 3600.0
LISTEN_AGAIN: Final = 2.0
"""Seconds until a node that begins anew, and could not listen, tries again."""
#: Faults of the node itself, within so many seconds, with which the process ends.
MAX_FAULTS: Final = 5
FAULTS_WITHIN: Final = 600.0
#: Seconds that the database has to answer, however short the lease is: a busy server is not a lost one.
LEAST_ANSWER: Final = 3.0
STOP: Final = 5.0
LONGEST_NAME: Final = 255
FLUSH: Final = 1.0
"""Seconds in which lines that were given to IRC may still leave when the node stops."""
FLUSH_LOOKS: Final = 50


def run(options: HydraOptions, announce: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT.

    Raises what a start can: ValueError for a name that a node or a queue cannot have, StoreError, TransportError,
    EngineError, psycopg.OperationalError; and StoreError when the node cannot go on, because its row is gone or another
    process runs it.
    """
    if not 0 < len(options.name) <= LONGEST_NAME or not options.name.isprintable():
        raise ValueError(f"A node's name has 1 to {LONGEST_NAME} printable characters, not {options.name[:300]!r}.")
    asyncio.run(_run(options, announce))


async def _run(options: HydraOptions, announce: Callable[[str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with contextlib.AsyncExitStack() as stack:
        runner = Runner(options, stop)
        await runner.start(stack)
        for listener in runner.driver.listeners:
            announce(f"hydra {listener.address}")
        announce("ready")
        await stop.wait()
        logger.info("stopping")
    if runner.error is not None:
        raise runner.error


class Runner:
    """A node and its surroundings."""

    def __init__(self, options: HydraOptions, stop: asyncio.Event) -> None:
        self.options = options
        self.error: Exception | None = None
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        #: Seconds that the database has to answer while a lease, or a line's way, depends on it.
        self._answer = max(options.times.lease - options.times.max_ping / 2, LEAST_ANSWER)
        self._database = DatabaseThread("hydra-database", self._answer)
        #: Faults that are not the present driver's.
        self._faults_beside = 0
        self._position: tuple[int, int] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._beginning = asyncio.Lock()
        self._recorder: Recorder | None = None
        self._sender: Sender | None = None
        self._irc: IrcConnection | None = None
        if options.irc is not None:
            self._irc = IrcConnection(
                *options.irc, options.irc_times,
                on_connected=lambda: self.driver.irc_connected(),
                on_line=lambda line: self.driver.irc_line(line),
                on_lost=lambda reason: self.driver.irc_lost(reason),
                may_speak=lambda: self.driver.may_speak(),
            )  # fmt: skip
        times = options.irc_times
        self._gate = LineGate(self._irc, Pace(times.burst, times.interval))
        self._tasks: set[asyncio.Task[None]] = set()
        self._faults: deque[float] = deque(maxlen=MAX_FAULTS)

    # Life.

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Begin everything; `stack` ends it in order."""
        options = self.options
        stack.push_async_callback(self._database.stop)
        self.store = await NodeStore.open(
            options.name, options.store,
            on_lost=self._store_lost, on_back=self._store_back, on_failed=self._store_failed, on_command=self._command,
            answer=self._answer,
        )  # fmt: skip
        stack.push_async_callback(self.store.close)
        self._position = self.store.position
        self.driver = self._new_driver()
        await self._prepare_queues()
        if options.recv is not None:
            self._recorder = Recorder(options.recv, options.name, self._happened_beside, self._answer)
            stack.push_async_callback(self._recorder.stop, STOP)
        engine = None
        if options.send is not None:
            engine = Engine(options.engine)
            await engine.start()
            stack.push_async_callback(engine.stop)
        stack.push_async_callback(self._end_tasks)
        await self._listen()
        stack.push_async_callback(self._leave)
        if engine is not None and options.send is not None:
            claims = SentLines(self._database)
            self._sender = Sender(engine, options.send, self._gate, claims, self._submit, self._happened_beside)
            stack.push_async_callback(self._sender.stop)
        self._keep(self._show())
        self._keep(self._prune())
        if self.driver.node.electorate is None and not options.links:
            self.happened(
                "waits", "it has no --link and founds no network: its database has known others, or its row is lost; "
                "give it a --link, or say --found, on one node, to begin a new network",
            )  # fmt: skip

    async def _prepare_queues(self) -> None:
        options = self.options
        if options.recv is not None:
            await self._database.run(prepare_queue, options.recv, RECV_LENGTH)
            if self._founds:
                await self._database.run(begin_anew, options.recv, options.name)
        if options.send is not None:
            await self._database.run(prepare_queue, options.send)

    @property
    def _founds(self) -> bool:
        """Whether it begins a network: told so and never in one, or as the first node that its database has known."""
        stored = self.store.stored
        if stored.term or stored.electorate is not None:
            return False
        return self.options.found or (self.store.first and not self.options.links)

    def _new_driver(self) -> Driver:
        options = self.options
        node = Node(
            name=options.name,
            times=options.times,
            rng=random.Random(random.SystemRandom().getrandbits(128)),
            stored=self.store.stored,
            now=clock.now(),
            targets=[str(link) for link in options.links],
            founder=self._founds,
            position=self._position,
            door=options.door,
            irc=options.irc is not None,
        )
        self._gate.node = node
        return Driver(node, options.transport, self.store, self._irc, self)

    async def _listen(self) -> None:
        await self.driver.start(self.options.listen)
        self.store.listening(listener.address for listener in self.driver.listeners)

    async def _leave(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        await self._flush()
        await self.driver.leave()

    async def _flush(self) -> None:
        """Let go out what IRC takes at its own pace: it is acknowledged already, and would be lost."""
        for _ in range(FLUSH_LOOKS):
            if self._irc is None or not self._irc.waiting or not self.driver.may_speak():
                return
            await asyncio.sleep(FLUSH / FLUSH_LOOKS)

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # The store.

    def _store_lost(self, reason: str) -> None:
        """Another process may run the node soon. It promises nothing for MAX_PING, unless it needs nobody to lead."""
        node = self.driver.node
        alone = node.core.votes and node.core.base.quorum == 1
        delay = 0.0 if alone else self.options.times.max_ping / 2
        self._silence = self._loop.call_later(delay, self._be_silent, f"the database is away: {reason}")

    def _be_silent(self, reason: str) -> None:
        self.driver.silence(reason)
        self._gate.node = None  # what was taken now would go nowhere
        self._gate_changed()

    def _store_back(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self.driver.over:
            self._keep(self._begin_anew())

    async def _begin_anew(self, after: float = 0.0) -> None:
        """The node was silent: it starts as after a restart, in so many seconds."""
        await asyncio.sleep(after)
        async with self._beginning:
            if not self.driver.over or self.store.lost:  # when the store is back again, this is called again
                return
            await self.driver.abandon("the node starts again")
            try:
                await self.store.settled()  # what is being written may still be committed
                self._faults_beside += self.driver.faults
                self.driver = self._new_driver()
                await self._listen()
            except StoreError as error:
                self._fail(error)
            except TransportError as error:  # on IRC its nick may still be that of its former connection
                self.happened("listen failed", str(error))
                self._be_silent(str(error))
                self._keep(self._begin_anew(LISTEN_AGAIN))

    def _store_failed(self, error: StoreError) -> None:
        self._fail(error)

    def _fail(self, error: Exception) -> None:
        logger.error("the node cannot go on: %s", error)
        self.driver.silence(str(error))
        self.error = error
        self._stop.set()

    def _command(self, command: Command) -> None:
        node, number, by = self.driver.node, command.number or 0, command.by
        match command.action:
            case Action.RESIGN:
                self.driver.tell(node.step_down)
            case Action.DROP:
                self.driver.tell_of("an operator's command", node.drop, number, f"dropped by {by}")
            case Action.DISCONNECT_LINK:
                self.driver.tell_of("an operator's command", node.disconnect, number, f"closed by {by}")

    # What the driver tells.

    def changed(self, role: Role, term: int, leader: int | None) -> None:
        """See `driver.Watcher`."""
        logger.info("%s in term %d, leader %s", role.name.lower(), term, leader)
        self._show_now()
        self._gate.leader_elsewhere = False
        if role is Role.FOLLOWING and self._sender is not None:
            self._keep(self._look_for_leader(term))
        self._gate_changed()

    async def _look_for_leader(self, term: int) -> None:
        node = self.driver.node
        while node is self.driver.node and node.role is Role.FOLLOWING and node.term == term:
            member = node.members.get(node.leader)
            try:
                here = await self._database.run(uses_this_database, None if member is None else member.voter)
            except OSError:
                await asyncio.sleep(STATUS)
                continue
            if node.role is Role.FOLLOWING and node.term == term:
                self._gate.leader_elsewhere = not here
                self._gate_changed()
            return

    def delivered(self, term: int, idx: int, line: str) -> None:
        """See `driver.Watcher`."""
        self._position = term, idx
        if self._recorder is not None:
            self._recorder.take(term, idx, line)

    def happened(self, kind: str, text: str) -> None:
        """See `driver.Watcher`."""
        logger.info("%s: %s", kind, text)
        self.store.happened(kind, text)
        if kind == "irc":
            self._gate_changed()
            self._show_now()

    def _happened_beside(self, kind: str, text: str) -> None:
        """As `happened`, to the recorder or the sender."""
        self._faults_beside += kind == "fault"
        self.store.happened(kind, text)

    def failed(self, error: Exception) -> None:
        """See `driver.Watcher`. The node begins anew from its row, as after a crash, unless that happens too often."""
        logger.error("the node has a fault: %s", error, exc_info=error)
        self.happened("fault", f"the node begins anew: {type(error).__name__}: {error}")
        self._faults_beside += 1
        now = clock.now()
        self._faults.append(now)
        if len(self._faults) == MAX_FAULTS and now - self._faults[0] < FAULTS_WITHIN:
            self._fail(error)
            return
        self._be_silent(str(error))
        self._keep(self._begin_anew(LISTEN_AGAIN))

    # Lines for IRC.

    def _submit(self, message: str, line: str) -> None:
        self._gate.spend()
        self.driver.tell_of(f"message {message} for IRC", self.driver.node.submit, message, line)

    def _gate_changed(self) -> None:
        self._gate.changed()
        if self._sender is not None:
            self._sender.gate_changed()

    # By the clock.

    def _show_now(self) -> None:
        self.store.publish_status(snapshot(self.driver.node, clock.now(), self._faults_beside + self.driver.faults))

    async def _show(self) -> None:
        while True:
            self._show_now()
            await asyncio.sleep(STATUS)

    async def _prune(self) -> None:
        while True:
            database = DatabaseThread("hydra-prune")  # of its own: it may take longer than what lines wait for
            with contextlib.suppress(OSError):
                await database.run(prune)
            await database.stop()
            await asyncio.sleep(PRUNE)
