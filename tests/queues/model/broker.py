"""A broker inside this process: the engine and its listeners in a thread, to be stopped, cut off or killed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import psycopg
import uvloop

from queues.engine import Engine, options_from_settings
from queues.engine.engine import running
from tests.queues.engine.conftest import Store
from tests.waiting import PATIENCE, wait_until
from wire.blipmq.session import BlipMQSession
from wire.net.address import HostPort
from wire.net.limits import ListenerOptions
from wire.net.listener import Listener
from wire.overhop.service import OverhopOptions, OverhopService
from wire.overhop.session import OverhopSession
from wire.runner import WireOptions, sspq_queue
from wire.server import Server
from wire.sspq.session import SspqSession

T = TypeVar("T")
LOCAL = HostPort("127.0.0.1", 0)
OPTIONS = ListenerOptions(drain_timeout=0.1)
#: The sessions of brokers.
OURS = (
    "from pg_stat_activity"
    " where application_name like 'fivewire %%' and datname = current_database() and pid <> pg_backend_pid()"
)


class LiveBroker:
    """One broker process after the other; the address of each listener changes with it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._sspq: dict[str, HostPort] = {}
        self.start()

    # Life.

    def start(self) -> None:
        """Begin, as a process that starts."""
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker")
        self._thread.start()
        self._sspq.clear()
        self.ask(self._start())

    async def _start(self) -> None:
        self.engine = Engine(options_from_settings("model"))
        await self.engine.start()
        server = self._server = Server(self.engine)
        service = self._service = OverhopService(self.engine, OverhopOptions(), server.unconfirmed)
        await service.start()
        blipmq = Listener("blipmq", LOCAL, lambda connection: BlipMQSession(connection, server, 1 << 20), OPTIONS)
        overhop = Listener("overhop", LOCAL, lambda connection: OverhopSession(connection, service), OPTIONS)
        self.blipmq, self.overhop = await blipmq.start(), await overhop.start()
        server.listeners += [blipmq, overhop]

    def sspq(self, queue: str) -> HostPort:
        """A listener for a queue, made at the first call."""
        if queue not in self._sspq:
            self._sspq[queue] = self.ask(self._listen(queue))
        return self._sspq[queue]

    async def _listen(self, queue: str) -> HostPort:
        server = self._server
        options = WireOptions(engine=self.engine.options, listener=OPTIONS, blipmq=None, sspq=())
        serves = await sspq_queue(options, self.engine, queue)
        listener = Listener("sspq", LOCAL, lambda connection: SspqSession(connection, server, serves), OPTIONS)
        server.listeners.append(listener)
        return await listener.start()

    def stop(self) -> None:
        """An orderly stop."""
        self.ask(self._stop())
        self._end()

    async def _stop(self) -> None:
        await asyncio.gather(*(listener.stop() for listener in self._server.listeners))
        await self.engine.stop(10.0)
        await self._service.stop()

    def kill(self) -> None:
        """End as a killed process does: nothing more is written, its connections are reset."""
        self.ask(self._kill())
        self._end()
        # The server ends what it had begun for it.
        wait_until(lambda: not self.store.rows(f"select {OURS}"), "the end of its sessions")

    async def _kill(self) -> None:
        self.engine.connections.hang_up()
        for listener in self._server.listeners:
            for connection in tuple(listener.connections):
                connection.abort()
        running.discard(self.engine)
        await self.engine.supervisor.stop(5.0)
        await self.engine.connections.close()
        await asyncio.gather(*(listener.stop(0) for listener in self._server.listeners))
        await self._service.stop()

    def _end(self) -> None:
        self.ask(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def lose_connections(self) -> None:
        """PostgreSQL ends its connections: the engine comes back as another node; clients stay connected."""
        node = self.engine.node
        self.store.rows(
            f"select pg_terminate_backend(pid) {OURS}")
        wait_until(lambda: self.engine.available and self.engine.node != node, "the new node")

    # The store, for tests.

    def at_once(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """As `store.rows`, with one snapshot for the functions that the statement calls, too."""
        connection = self.store.connection
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            return self.store.rows(sql, *parameters)

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def obey(self, queue: str) -> None:
        """Have the engine follow a queue's policy as it is in the tables now."""
        self.ask(self.engine.refresh(queue))


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
