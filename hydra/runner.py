"""One process of `manage.py runhydra`: a node, its row, its queues and its IRC connection.

`Runner` connects them: it starts them in order and stops them in the reverse order. While the database is away it
silences the node, and afterwards begins it anew from its row, as it does after a fault of the node itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hydra import clock
from hydra.driver import Driver
from hydra.errors import StoreError
from hydra.irc.fates import ENDS, LINE_LOST, LINE_REFUSED, LINES_MISSED, Fate, FateKind
from hydra.irc.pace import Pace
from hydra.notifications import CommandAction, OperatorCommand
from hydra.options import HydraOptions
from hydra.protocol.node import Node
from hydra.protocol.roles import Role
from hydra.recorder import Recorder
from hydra.send_gate import SendGate
from hydra.sender import MAX_LINE, Sender
from hydra.snapshot import snapshot
from hydra.storage.database_thread import DatabaseThread
from hydra.storage.line_records import RECV_LENGTH, forget_recorded, has_node, prepare_queue, prune
from hydra.storage.node_row import NodeStore, StoreHandlers
from hydra.transports.base import TransportError
from queues.engine.api import Engine
from wire.net.tasks import Tasks

if TYPE_CHECKING:
    from hydra.irc.connection import IrcConnection

logger = logging.getLogger(__name__)

#: Seconds between two snapshots of the node for operators.
STATUS: Final = 1.0
PRUNE: Final = 3600.0
#: Seconds until a restarted node that cannot listen tries again.
LISTEN_AGAIN: Final = 2.0
#: Faults of the node itself, within FAULTS_WITHIN seconds, that end the process.
MAX_FAULTS: Final = 5
FAULTS_WITHIN: Final = 600.0
#: The least seconds for an answer of the database: a busy server is not a lost one.
LEAST_ANSWER: Final = 3.0
STOP: Final = 5.0
MAX_NAME: Final = 255
#: Seconds in which a stopping node still sends the lines given to IRC.
FLUSH: Final = 1.0
FLUSH_LOOKS: Final = 50


def run(options: HydraOptions, announce: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT.

    Raises at the start: ValueError for an invalid name of a node or a queue, StoreError, TransportError, EngineError,
    psycopg.OperationalError. Raises StoreError later when the node's row is gone or another process runs the node.
    """
    if not 0 < len(options.name) <= MAX_NAME or not options.name.isprintable():
        raise ValueError(f"A node's name has 1 to {MAX_NAME} printable characters, not {options.name[:300]!r}.")
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
    """One node with its database, queues, transports and IRC connection."""

    def __init__(self, options: HydraOptions, stop: asyncio.Event) -> None:
        self.options = options
        self.error: Exception | None = None
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        #: Seconds for an answer of the database on which a lease or a line depends.
        self._answer = max(options.times.lease - options.times.max_ping / 2, LEAST_ANSWER)
        self._database = DatabaseThread("hydra-database", self._answer)
        #: Faults of former drivers, the recorder and the sender.
        self._faults_beside = 0
        #: Events of lines, by their kind.
        self._lines: Counter[str] = Counter()
        self._position: tuple[int, int] | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._beginning = asyncio.Lock()
        self._recorder: Recorder | None = None
        self._sender: Sender | None = None
        self._irc: IrcConnection | None = None
        if options.irc is not None:
            from hydra.irc.connection import IrcConnection, IrcHandlers

            self._irc = IrcConnection(
                *options.irc,
                IrcHandlers(
                    on_connected=lambda: self.driver.irc_connected(),
                    on_line=lambda line: self.driver.irc_line(line),
                    on_lost=lambda reason: self.driver.irc_lost(reason),
                    on_joined=self._joined,
                    may_speak=lambda: self.driver.may_speak(),
                    on_fault=lambda unit, error: self.driver.fault(unit, error),
                ),
                options.transport.irc,
            )
        times = options.transport.irc
        self._gate = SendGate(self._irc, Pace(times.burst, times.interval))
        #: What is to be told of the lines of this process' queue that are on their way, by the node's names for them.
        self._fates: dict[str, asyncio.Future[Fate]] = {}
        self._tasks = Tasks()
        self._faults: deque[float] = deque(maxlen=MAX_FAULTS)

    # Life.

    async def start(self, stack: contextlib.AsyncExitStack) -> None:
        """Start all parts; `stack` stops them in order."""
        options = self.options
        stack.push_async_callback(self._database.stop)
        handlers = StoreHandlers(
            on_lost=self._store_lost, on_back=self._store_back, on_failed=self._fail, on_command=self._command
        )
        self.store = await NodeStore.open(options.name, options.store, handlers, answer=self._answer)
        stack.push_async_callback(self.store.close)
        self._position = self.store.lease.position
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
        stack.push_async_callback(self._tasks.end)
        await self._listen()
        stack.push_async_callback(self._leave)
        if engine is not None and options.send is not None:
            self._sender = Sender(
                engine, options.send, self._gate, self._database, self._submit, self._happened_beside, self._awaits
            )
            stack.push_async_callback(self._sender.stop)
        self._tasks.spawn(self._show())
        self._tasks.spawn(self._prune())
        if self.driver.node.electorate is None and not options.links:
            self.happened(
                "waits", "it has no --link and founds no network: its database has known others, or its row is lost; "
                "give it a --link, or on one node --found, to begin a new network",
            )  # fmt: skip

    async def _prepare_queues(self) -> None:
        options = self.options
        if options.recv is not None:
            await self._database.run(prepare_queue, options.recv, RECV_LENGTH)
            if self._founds:
                await self._database.run(forget_recorded, options.recv, options.name)
        if options.send is not None:
            await self._database.run(prepare_queue, options.send)

    @property
    def _founds(self) -> bool:
        """Whether it begins a network: on request if it was never in one, or as its database's first node."""
        stored = self.store.stored
        if stored.term or stored.electorate is not None:
            return False
        return self.options.found or (self.store.lease.first and not self.options.links)

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
            admission=options.admission,
            irc=options.irc is not None,
        )
        self._gate.attach(node)
        return Driver(node, options.transport, self.store, self._irc, self)

    async def _listen(self) -> None:
        await self.driver.start(self.options.listen)
        self.store.status.listening(listener.address for listener in self.driver.listeners)

    async def _leave(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
        await self._flush()
        await self.driver.leave()

    async def _flush(self) -> None:
        """Wait for lines given to IRC: they are acknowledged already, and would be lost."""
        for _ in range(FLUSH_LOOKS):
            if self._irc is None or not self._irc.waiting or not self.driver.may_speak():
                return
            await asyncio.sleep(FLUSH / FLUSH_LOOKS)

    # Called by the store.

    def _store_lost(self, reason: str) -> None:
        """Be silent soon: another process that takes the node promises nothing for MAX_PING, unless it leads alone."""
        node = self.driver.node
        alone = node.core.votes and node.core.base.quorum == 1
        delay = 0.0 if alone else self.options.times.max_ping / 2
        self._silence = self._loop.call_later(delay, self._be_silent, f"the database is away: {reason}")

    def _be_silent(self, reason: str) -> None:
        self.driver.silence(reason)
        self._forsake(reason)
        self._gate.attach(None)  # a line taken now would be lost
        self._gate_changed()

    def _store_back(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self.driver.over:
            self._tasks.spawn(self._begin_anew())

    async def _begin_anew(self, after: float = 0.0) -> None:
        """Start the silent node from its row, after so many seconds."""
        await asyncio.sleep(after)
        async with self._beginning:
            if not self.driver.over or self.store.lost:  # `_store_back` calls this again
                return
            await self.driver.abandon("the node starts again")
            try:
                await self.store.settled()  # a write under way may still be committed
                self._faults_beside += self.driver.faults
                self.driver = self._new_driver()
                await self._listen()
            except StoreError as error:
                self._fail(error)
            except TransportError as error:  # its nick may still belong to its former connection
                self.happened("listen failed", str(error))
                self._be_silent(str(error))
                self._tasks.spawn(self._begin_anew(LISTEN_AGAIN))

    def _fail(self, error: Exception) -> None:
        logger.error("the node cannot go on: %s", error)
        self.driver.silence(str(error))
        self._forsake(str(error))
        self.error = error
        self._stop.set()

    def _command(self, command: OperatorCommand) -> None:
        node, number, by = self.driver.node, command.number or 0, command.by
        match command.action:
            case CommandAction.RESIGN:
                self.driver.tell(node.step_down)
            case CommandAction.DROP:
                self.driver.tell(node.drop, number, f"dropped by {by}", unit="an operator's command")
            case CommandAction.DISCONNECT_LINK:
                self.driver.tell(node.disconnect, number, f"closed by {by}", unit="an operator's command")

    # Called by the driver (`Watcher`).

    def changed(self, role: Role, term: int, leader: int | None) -> None:
        """See `Watcher`."""
        logger.info("%s in term %d, leader %s", role.name.lower(), term, leader)
        if role is not Role.LEADING:
            self._forsake("the node leads no longer")
        self._show_now()
        self._gate.set_leader_elsewhere(False)
        if role is Role.FOLLOWING and self._sender is not None:
            self._tasks.spawn(self._look_for_leader(term))
        self._gate_changed()

    async def _look_for_leader(self, term: int) -> None:
        node = self.driver.node
        while node is self.driver.node and node.role is Role.FOLLOWING and node.term == term:
            member = node.members.get(node.leader)
            try:
                here = await self._database.run(has_node, None if member is None else member.voter)
            except OSError:
                await asyncio.sleep(STATUS)
                continue
            if node.role is Role.FOLLOWING and node.term == term:
                self._gate.set_leader_elsewhere(not here)
                self._gate_changed()
            return

    def delivered(self, term: int, idx: int, line: str) -> None:
        """See `Watcher`."""
        self._position = term, idx
        if self._recorder is not None:
            self._recorder.take(term, idx, line)

    def happened(self, kind: str, text: str) -> None:
        """See `Watcher`."""
        logger.info("%s: %s", kind, text)
        self._note(kind, text)
        if kind == "irc":
            self._gate_changed()
            self._show_now()

    def _happened_beside(self, kind: str, text: str) -> None:
        """Note an event of the recorder or the sender."""
        self._faults_beside += kind == "fault"
        self._note(kind, text)

    def _note(self, kind: str, text: str) -> None:
        self._lines[kind] += kind in ENDS
        self.store.status.happened(kind, text)

    def failed(self, error: Exception) -> None:
        """Begin the node anew from its row, as after a crash, unless that happens too often."""
        logger.error("the node has a fault: %s", error, exc_info=error)
        self.happened("fault", f"the node begins anew: {type(error).__name__}: {error}")
        self._faults_beside += 1
        now = clock.now()
        self._faults.append(now)
        if len(self._faults) == MAX_FAULTS and now - self._faults[0] < FAULTS_WITHIN:
            self._fail(error)
            return
        self._be_silent(str(error))
        self._tasks.spawn(self._begin_anew(LISTEN_AGAIN))

    # Lines for IRC.

    def _submit(self, message: str, line: str) -> asyncio.Future[Fate] | None:
        """Give a line to the node; its fate, unless another node sends it."""
        self._gate.spend()
        node, fate = self.driver.node, None
        if node.role is Role.LEADING:
            fate = self._fates[f"{node.core.voter}/{message}"] = self._loop.create_future()
        self.driver.tell(node.submit, message, line, unit=f"message {message} for IRC")
        return fate

    def settled(self, message: str, line: str, fate: Fate) -> None:
        """See `Watcher`. A line of another node's has no queue here: its end is an event."""
        waiting = self._fates.pop(message, None)
        if waiting is not None:
            if not waiting.done():
                waiting.set_result(fate)
        elif fate.kind is FateKind.REFUSED:
            self._other_ended(LINE_REFUSED, message, line, fate)
        elif fate.kind is not FateKind.SENT:
            self._other_ended(LINE_LOST, message, line, fate)

    def _other_ended(self, kind: str, message: str, line: str, fate: Fate) -> None:
        logger.warning("%s of another node: %s: %s", kind, message, fate.words)
        self.happened(kind, f"{message}: {fate.words}: {line[:MAX_LINE]}")

    def _forsake(self, reason: str) -> None:
        """Lines that the node has not given to IRC by now never leave it."""
        fates, self._fates = self._fates, {}
        for waiting in fates.values():
            if not waiting.done():
                waiting.set_result(Fate(FateKind.UNSENT, reason))

    def _awaits(self, line: str) -> str | None:
        leads = self.driver.node.role is Role.LEADING
        return self._irc.awaits(line) if leads and self._irc is not None else None

    def _joined(self) -> None:
        if self._sender is not None:
            self._sender.joined()

    def _gate_changed(self) -> None:
        self._gate.changed()
        if self._sender is not None:
            self._sender.gate_changed()

    # Periodic work.

    def _show_now(self) -> None:
        faults, lines = self._faults_beside + self.driver.faults, self._lines
        self.store.status.publish(
            snapshot(self.driver.node, clock.now(), faults, lines[LINE_REFUSED], lines[LINE_LOST] + lines[LINES_MISSED])
        )

    async def _show(self) -> None:
        while True:
            self._show_now()
            await asyncio.sleep(STATUS)

    async def _prune(self) -> None:
        while True:
            database = DatabaseThread("hydra-prune")  # its own: lines must not wait for it
            with contextlib.suppress(OSError):
                await database.run(prune)
            await database.stop()
            await asyncio.sleep(PRUNE)
