"""Brokers inside this process: an engine and its listeners in a thread each, to be stopped, cut off or killed."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
import uvloop

from queues.celery.consumers import engine_thread
from queues.engine.api import Engine, options_from_settings
from queues.engine.engine import running
from queues.engine.settle import segments
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
from wire.sspq.client import Client as SspqClient
from wire.sspq.client_core import Declined
from wire.sspq.session import SspqQueue, SspqSession

T = TypeVar("T")
LOCAL = HostPort("127.0.0.1", 0)
OPTIONS = ListenerOptions()
#: Seconds of a turn of the tables that take turns: messages are moved while consumers have them.
TURN = 0.2


async def cut_off(engine: Engine) -> None:
    """End an engine as the end of its process does."""
    engine.connections.hang_up()
    running.discard(engine)
    await engine.supervisor.stop(5.0)
    await engine.connections.close()

def sessions_of(engine: Engine) -> list[int]:
    return [connection.info.backend_pid for connection in engine.connections.values()]


def await_end(store: Store, sessions: list[int]) -> None:
    """The server ends what it had begun for a process that was killed."""
    wait_until(
        lambda: not store.rows("select from pg_stat_activity where pid = any(%s)", sessions), "the end of its sessions"
    )


class LiveBroker:
    """One broker process after the other; the address of each listener changes with it."""

    def __init__(self, store: Store, host: str, segment_messages: int) -> None:
        """`host` is this one's alone: an engine awaits the end of its host's dead processes."""
        self.store = store
        self.options = dataclasses.replace(
            options_from_settings("model"), host=host, segment_messages=segment_messages, turn=TURN, mailboxes=True
        )
        self._sspq: dict[str, HostPort] = {}
        self._serves: dict[str, SspqQueue] = {}
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
        self.engine = Engine(self.options)
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
        serves = self._serves[queue] = await sspq_queue(options, self.engine, queue)
        listener = Listener("sspq", LOCAL, lambda connection: SspqSession(connection, server, serves), OPTIONS)
        server.listeners.append(listener)
        return await listener.start()

    def serve_again(self, queue: str, id: int) -> None:
        """The queue was deleted and made anew, with this id: its listener looks for it when a client asks."""

        def serves() -> bool:
            with SspqClient(self._sspq[queue].host, self._sspq[queue].port) as client, suppress(Declined):
                client.receive(0)  # which does not await a refusal
            return self._serves[queue].queue.id == id

        if queue in self._sspq:
            wait_until(serves, "a listener that serves the new queue")

    def stop(self) -> None:
        """An orderly stop."""
        self.ask(self._stop())
        self._end()

    async def _stop(self) -> None:
        await asyncio.gather(*(listener.stop(0.1) for listener in self._server.listeners))
        await self.engine.stop(10.0)
        await self._service.stop()

    def kill(self) -> None:
        """End as a killed process does: nothing more is written, its connections are reset."""
        sessions = sessions_of(self.engine)
        self.ask(self._kill())
        self._end()
        await_end(self.store, sessions)

    async def _kill(self) -> None:
        self.engine.connections.hang_up()
        for listener in self._server.listeners:
            for connection in tuple(listener.connections):
                connection.abort()
        await cut_off(self.engine)
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
        self.store.rows("select pg_terminate_backend(pid) from unnest(%s::int[]) as pid", sessions_of(self.engine))
        wait_until(lambda: self.engine.available and self.engine.node != node, "the new node")

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return not self._loop.is_closed()

    def ask(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the broker's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


class Brokers:
    """One or two brokers on one database, each a node. A process of Celery's, which is this one, is another node."""

    def __init__(self, store: Store, celery_url: str) -> None:
        self.store = store
        self.celery_url = celery_url
        self._segment_messages = 0
        self._all: list[LiveBroker] = []
        #: Those that run.
        self.living: list[LiveBroker] = []

    def begin(self, nodes: int, segment_messages: int, linger: float) -> None:
        """So many run, and store as segments what they may from so many messages on; these may be settled in part for
        so many seconds."""
        segments.LINGER = linger
        if segment_messages != self._segment_messages:
            self.stop()
            self._all.clear()
        engine_thread.stop_all()
        self._segment_messages = segment_messages
        self.revive()
        for broker in self._all[nodes:]:
            broker.stop()
        del self._all[nodes:]
        for n in range(len(self._all), nodes):
            self._all.append(LiveBroker(self.store, f"host{n}", segment_messages))
        self.living = list(self._all)

    @property
    def several(self) -> bool:
        """Whether there are several nodes, of which some may be dead."""
        return len(self._all) > 1 or bool(engine_thread._threads)

    def at(self, n: int) -> LiveBroker:
        """The nth that runs, or another one."""
        return self.living[n % len(self.living)]

    def let_die(self, broker: LiveBroker) -> None:
        """Kill one, which does not come back until `revive`."""
        broker.kill()
        self.living.remove(broker)

    def revive(self) -> None:
        """Start those that are dead."""
        for broker in self._all:
            if broker not in self.living:
                broker.start()
        self.living = list(self._all)

    def with_celery(self, queue: int) -> int:
        """The messages of a queue that its consumers in this process have, or are about to be given."""
        local = (thread.engine.prefetched_queues.queues.get(queue) for thread in engine_thread._threads.values())
        return sum(len(one.unacked) for one in local if one is not None)

    def kill_celery(self) -> None:
        """End the engine of Celery's process as its end does."""
        for thread in engine_thread._threads.values():
            sessions = sessions_of(thread.engine)
            thread.run(cut_off(thread.engine))
            thread._end()
            thread._thread.join(PATIENCE)
            await_end(self.store, sessions)
        engine_thread._threads.clear()

    def stop(self) -> None:
        """An orderly stop of all."""
        engine_thread.stop_all()
        for broker in self.living:
            broker.stop()
        self.living = []

    def obey(self, queue: str) -> None:
        """Have the engines follow a queue's policy as it is in the tables now."""
        for broker in self.living:
            broker.ask(broker.engine.refresh(queue))

    def nodes(self) -> dict[int, LiveBroker | None]:
        """The brokers that run, by the id of the node that each is now; None: this process's of Celery."""
        celery = {thread.engine.node: None for thread in engine_thread._threads.values()}
        return {broker.engine.node: broker for broker in self.living} | celery

    def at_once(self, sql: str, *parameters: Any) -> list[dict[str, Any]]:
        """As `store.rows`, with one snapshot for the functions that the statement calls, too."""
        connection = self.store.connection
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with connection.transaction():
            # Before the snapshot: what is truncated after it, with rows that it would see, is seen as empty.
            connection.execute(
                "lock table queues_segment, queues_segmentbody, queues_segmentsettlement, queues_queuetally"
                " in access share mode"
            )
            return self.store.rows(sql, *parameters)


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*tasks, return_exceptions=True)
