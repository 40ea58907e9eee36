"""One process of `manage.py runwire`: the engine, the listeners, an orderly stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import logging
import signal
import socket
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from queues.engine.api import Broker, Destination, Engine, EngineOptions, spare_garbage_collector
from queues.errors import BrokerError
from queues.operations import bulk
from queues.schedules.periodic import Scheduler
from wire.blipmq.session import BlipMQSession
from wire.net.address import HostPort, Network
from wire.net.limits import ConnectionLimits, ListenerOptions
from wire.net.listener import Listener
from wire.net.process_group import Place, ProcessGroup, Reservation, State
from wire.overhop.service import OverhopOptions, OverhopService
from wire.overhop.session import OverhopSession
from wire.server import Quotas, Server, ensure_queue
from wire.sspq.session import SspqQueue, SspqSession
from wire.status import StatusServer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class WireOptions:
    """The listeners and options of one process. An address of None is off; times are seconds, sizes bytes."""

    engine: EngineOptions
    listener: ListenerOptions
    overhop: HostPort | None = None
    overhop_options: OverhopOptions = field(default_factory=OverhopOptions)
    blipmq: HostPort | None
    sspq: tuple[tuple[HostPort, str], ...]
    #: Networks that may reach protocols without authentication; empty means all.
    allow: tuple[Network, ...] = ()
    status: HostPort | None = None
    #: Reads the certificates of `listener` again. Raises BrokerError or OSError.
    read_certificates: Callable[[], ssl.SSLContext | None] = lambda: None
    sspq_dead_letters: bool = True
    max_frame: int = 16 << 20
    quotas: Quotas = field(default_factory=Quotas)
    #: Among the processes that share the ports, if there are several.
    place: Place | None = None
    drain_timeout: float = 10.0


def run(options: WireOptions, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises what a start can: EngineError, ListenError, psycopg.OperationalError."""
    spare_garbage_collector()
    _run_loop(serve(options, announce))


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where it exists."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


async def _start(engine: Broker, stop: asyncio.Event) -> bool:
    """Start the engine, which may wait for the database; False when this process is to stop first."""
    starting, stopping = asyncio.ensure_future(engine.start(patient=True)), asyncio.ensure_future(stop.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        return False
    starting.result()
    return True


async def serve(options: WireOptions, announce: Callable[[str], None]) -> None:
    """Start everything, announce each address, wait for a signal, stop within the drain timeout."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = Engine(options.engine)
    if not await _start(engine, stop):
        return
    server = Server(engine, options.quotas)
    if options.place is not None:
        server.process_group = ProcessGroup(options.place, functools.partial(_reserve, server))
    overhop = None
    if options.overhop:
        overhop = OverhopService(engine, options.overhop_options, server.unconfirmed, server.process_group)
    schedulers = [Scheduler(), Scheduler(look=bulk.run_pending, name="bulk operations")]
    engine.on_periodic_change += [scheduler.wake for scheduler in schedulers]
    try:
        if overhop is not None:
            await overhop.start()
        if server.process_group is not None:
            server.process_group.start()
        for listener in await _listeners(options, server, overhop):
            address = await listener.start()
            server.listeners.append(listener)
            announce(f"{listener.name} {address}")
        status = StatusServer(server) if options.status else None
        if status is not None and options.status is not None:
            announce(f"status {await status.start(options.status)}")
        loop.add_signal_handler(signal.SIGHUP, _read_certificates, options, server)
        for scheduler in schedulers:
            scheduler.start()
        announce("ready")
        await stop.wait()
        logger.info("stopping")
        if status is not None:
            status.close()
    finally:
        if server.process_group is not None:
            server.process_group.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*(asyncio.to_thread(scheduler.stop, 1.0) for scheduler in schedulers))
            await server.stop(options.drain_timeout)
            if overhop is not None:
                await overhop.stop()


def _read_certificates(options: WireOptions, server: Server) -> None:
    """Have new connections meet the certificates as their files are now; after a fault in one, as they were."""
    try:
        tls = options.read_certificates()
    except (BrokerError, OSError) as error:
        logger.error("the certificates stay as they were: %s", error)
        return
    for listener in server.listeners:
        listener.use_certificates(tls)
    logger.info("the certificates were read again" if tls else "there are no certificates to read again")


def _reserve(server: Server, name: str, sock: socket.socket, state: State) -> Reservation | None:
    """Count in a connection that another process offers to the listener of this name; None if there is no room."""
    for listener in server.listeners:
        if listener.name == name:
            return listener.reserve(sock, state)
    return None


async def _listeners(options: WireOptions, server: Server, overhop: OverhopService | None) -> list[Listener]:
    """One listener for each address that is on; they share the limits on connections."""
    limits = ConnectionLimits.of(options.listener)
    listener = functools.partial(Listener, reuse_port=options.place is not None, limits=limits)
    made: list[Listener] = []
    if options.blipmq is not None:
        blipmq = functools.partial(BlipMQSession, server=server, max_frame=options.max_frame)
        made.append(listener("blipmq", options.blipmq, blipmq, options.listener, has_room=server.has_room))
    guarded = replace(options.listener, allow=options.allow)
    if options.overhop is not None and overhop is not None:
        made.append(listener("overhop", options.overhop, functools.partial(OverhopSession, service=overhop), guarded))
    for address, queue in options.sspq:
        sspq = functools.partial(SspqSession, server=server, serves=await sspq_queue(options, server.engine, queue))
        made.append(listener("sspq", address, sspq, guarded))
    return made


async def sspq_queue(options: WireOptions, engine: Broker, name: str) -> SspqQueue:
    """The queue an SSPQ listener serves, made if there is none of this name."""
    await ensure_queue(engine, name)
    dead = await engine.dead_letters(name) if options.sspq_dead_letters else None
    return SspqQueue(Destination("queue", name.encode()), await engine.queue(name), dead, options.max_frame)
