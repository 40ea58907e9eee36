"""``manage.py up``: everything for a first look, in one command that one Ctrl-C ends."""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import ArgumentParser
from contextlib import suppress
from typing import Any

import psutil
import psycopg
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from brokersite import bootstrap, embedded
from brokersite.addresses import add_addresses, given_addresses, refuse_taken_addresses
from brokersite.environment import IN_CHECKOUT
from brokersite.supervisor import ProcessSupervisor, Program, SupervisorError
from queues.config import extras
from queues.database.parameters import primary_parameters
from wire.management.serving import LISTENERS
from wire.net.address import HostPort

#: Seconds between two looks whether the embedded PostgreSQL lives.
DATABASE_POLL = 1.0

#: Connections that are named when PostgreSQL is left running for them.
MAX_NAMED = 5


class Command(BaseCommand):
    """Start the database, the site, the listeners and the rest; stop them on Ctrl-C or SIGTERM."""

    help = (
        "Start everything for a first look: the embedded PostgreSQL (or that of DATABASE_URL), migrations, "
        "an admin user, a development API key, the site, the listeners, a Hydra node and a Celery worker. "
        "Prints where they are, then one line 'ready' when all accept connections. Ctrl-C stops everything."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_addresses(parser)
        parser.add_argument(
            "--celery", choices=("on", "off"), default="on",
            help="a Celery worker with the beat, for ETL and periodic upkeep (default: %(default)s)",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.default_int_handler)
        try:
            listeners = {name: options[name] for name in LISTENERS if options[name] is not None}
            hydra = options["hydra"]
            addresses = given_addresses(options)
            refuse_taken_addresses(addresses)
            self._warn_of_strangers(addresses)
            bootstrap.migrate()
            admin = bootstrap.ensure_admin(settings.DATA_DIR)
            key = bootstrap.ensure_key(settings.DATA_DIR)
            if hydra is not None:
                bootstrap.ensure_hydra_secret(settings.DATA_DIR)
            founds = bootstrap.knows_no_hydra_network()
            programs = _programs(options["http"], listeners, hydra, options["status"], founds=founds)
            connections.close_all()
            celery = _celery_worker(programs) if options["celery"] == "on" else None
            asyncio.run(self._run(programs, self._banner(options["http"], listeners, hydra, celery, admin, key)))
        except SupervisorError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self._say("stopped before everything was ready")
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            self._leave_database()

    def _say(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()

    def _warn_of_strangers(self, addresses: dict[str, HostPort]) -> None:
        """Say which listeners other hosts reach; this command sets up neither TLS nor names of hosts."""
        for name, place in addresses.items():
            if not place.is_loopback:
                self._say(f"warning: {name} listens on {place}: other hosts reach it, and not over TLS")

    def _banner(
        self, http: HostPort, listeners: dict[str, HostPort], hydra: HostPort | None, celery: str | None, admin: str,
        key: str,
    ) -> list[str]:  # fmt: skip
        database = settings.DATABASES["default"]
        kind = "embedded" if settings.EMBEDDED_DATABASE else "DATABASE_URL"
        lines = [
            ("site", f"http://{http}/admin/"),
            ("peerbus", f"ws://{http}/ws/peerbus"),
            *((name, str(listener)) for name, listener in listeners.items()),
            *([("hydra", str(hydra))] if hydra is not None else []),
            *([("celery", celery)] if celery else []),
            ("PostgreSQL", f"{database['HOST']}:{database['PORT']} ({kind})"),
            ("log in", admin),
            ("API key", key),
        ]
        return [f"{label + ':':<12}{text}" for label, text in lines]

    async def _run(self, programs: list[Program], banner: list[str]) -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        supervisor = ProcessSupervisor(programs, self._say)
        tasks = [asyncio.create_task(stop.wait()), asyncio.create_task(supervisor.start())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():
                tasks[1].result()
                self._say("\n".join([*banner, "ready"]))
                tasks.append(asyncio.create_task(self._watch_database(supervisor)))
                await stop.wait()
            self._say("stopping")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await supervisor.stop()

    async def _watch_database(self, supervisor: ProcessSupervisor) -> None:
        """Start an embedded PostgreSQL that died again, on its old port if that is still free."""
        database = settings.EMBEDDED_DATABASE
        while database is not None:
            await asyncio.sleep(DATABASE_POLL)
            if embedded.is_running(settings.DATA_DIR):
                continue
            self._say("PostgreSQL does not run: started again")
            try:
                again = await asyncio.to_thread(embedded.ensure_running, settings.DATA_DIR)
            except embedded.EmbeddedPostgresError as error:
                self._say(str(error))
                continue
            if again.port != database.port:
                supervisor.restart()
            database = again

    def _leave_database(self) -> None:
        """Stop the embedded PostgreSQL, unless it ran before us and others use it."""
        database = settings.EMBEDDED_DATABASE
        if database is None:
            return
        connections.close_all()
        others = [] if database.started else _other_clients()
        if others:
            count = "another connection" if len(others) == 1 else f"{len(others)} other connections"
            more = ", …" if len(others) > MAX_NAMED else ""
            stop = "make stop" if IN_CHECKOUT else f"{sys.executable} -m brokersite.embedded stop"
            self._say(f"PostgreSQL goes on for {count}: {', '.join(others[:MAX_NAMED])}{more}. `{stop}` stops it.")
            return
        try:
            embedded.stop(settings.DATA_DIR)
        except embedded.EmbeddedPostgresError as error:
            raise CommandError(str(error)) from error


def _programs(
    http: HostPort, listeners: dict[str, HostPort], hydra: HostPort | None, status: HostPort | None, *, founds: bool
) -> list[Program]:
    programs = []
    if listeners:
        flags = [f"--{name}={listeners.get(name, 'off')}" for name in LISTENERS]
        flags += [f"--status={status}"] if status is not None else []
        programs.append(Program("runwire", ["brokersite", "runwire", *flags], list(listeners.values())))
    if hydra is not None:
        node = ["brokersite", "runhydra", f"--listen={hydra}", *(["--found"] if founds else [])]
        programs.append(Program("runhydra", node, [hydra]))
    # Peers stay as long as they like: daphne would close every WebSocket after a day.
    quiet = ["-v", "0", "--access-log", "/dev/null", "--websocket_timeout", "-1"]
    site = ["daphne", *quiet, "-b", http.host, "-p", str(http.port)]
    programs.append(Program("daphne", [*site, "brokersite.asgi:application"], [http]))
    return programs


def _celery_worker(programs: list[Program]) -> str:
    """Add the Celery worker to the programs and describe it, or say why there is none."""
    if problem := extras.problem("celery"):
        return f"none, so no ETL and no periodic upkeep. {problem}"
    from brokersite import celery_worker

    programs.append(celery_worker.program())
    return celery_worker.description()


def _other_clients() -> list[str]:
    """Connections of other processes to the database's server, in words; none when it does not answer."""
    query = """
        SELECT application_name, pid, client_port FROM pg_stat_activity
        WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY backend_start
    """
    try:
        with psycopg.connect(**primary_parameters() | {"connect_timeout": 3}) as connection:
            rows = connection.execute(query).fetchall()
            server = connection.info.port
    except psycopg.OperationalError:
        return []
    clients = _clients_of(server)
    return [_described(application, pid, clients.get(port)) for application, pid, port in rows]


def _clients_of(server: int) -> dict[int, int]:
    """The process at each port that is connected to this port of the server, as far as this user may know."""
    clients = {}
    with suppress(psutil.Error):
        for one in psutil.net_connections("tcp"):
            if one.laddr and one.raddr and one.raddr.port == server and one.pid:
                clients[one.laddr.port] = one.pid
    return clients


def _described(application: str, backend: int, client: int | None) -> str:
    """A connection: its application or the command of its process, and which process that is."""
    if client is None:
        return f"{application or 'a client without a name'} (process {backend} of the server)"
    command = ""
    with suppress(psutil.Error):
        command = " ".join(psutil.Process(client).cmdline())[:60]
    return f"{application or command or 'a client'} (process {client})"
