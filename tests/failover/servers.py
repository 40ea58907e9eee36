"""PostgreSQL servers of a test's own: copies of a migrated one, that can be killed, be standbys, and be filled."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg

from brokersite import embedded_home
from brokersite.embedded_home import Home
from brokersite.rigs.process import free_ports
from tests.waiting import PATIENCE, wait_until
from tests.wire.broker import Broker

HOST = "127.0.0.1"
#: Of every server here; they listen on loopback, or in a network of the test's own.
PASSWORD = "failover"
OWNER, ROLE, DATABASE = "postgres", "fivewire", "fivewire"

CONFIGURATION = {
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "max_connections": "40",
    "max_wal_size": "256MB",
    "wal_keep_size": "256MB",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "100ms",
    "timezone": "UTC",
}
AUTHENTICATION = """\
host all,replication all 127.0.0.1/32 scram-sha-256
host all all 10.0.0.0/8 scram-sha-256
"""


class Server:
    """A PostgreSQL whose home is under `directory`; `source`, which does not run, is what it is a copy of."""

    def __init__(self, directory: Path, source: Server | None = None) -> None:
        directory.mkdir()
        self.directory = directory
        self.home: Home = embedded_home.prepare(directory)
        self.host = HOST
        (self.port,) = free_ports(1)
        if source is None:
            password = self.home.give(_written(self.home.root / "password", PASSWORD))
            arguments = ("-D", str(self.home.data), f"--username={OWNER}", f"--pwfile={password}")
            self._run("initdb", *arguments, "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync")
        else:
            subprocess.run(["cp", "-a", str(source.home.data), str(self.home.data)], check=True)

    def _run(self, program: str, *arguments: str) -> None:
        code, printed = self.home.run(program, *arguments)
        assert code == 0, f"{program}: {printed}{self.log}"

    @property
    def log(self) -> str:
        """The server's log so far."""
        return self.home.log.read_text(errors="replace") if self.home.log.exists() else ""

    @property
    def parameters(self) -> dict[str, Any]:
        """For the broker's role."""
        return {"host": self.host, "port": self.port, "user": ROLE, "password": PASSWORD, "dbname": DATABASE}

    def start(self, listen: str = HOST, **settings: str) -> None:
        """Start it with these settings beside its own."""
        given = CONFIGURATION | {"listen_addresses": listen, "port": str(self.port)} | settings
        lines = "".join(f"{name} = '{value}'\n" for name, value in given.items())
        self.home.give(_written(self.home.data / "postgresql.conf", lines))
        self.home.give(_written(self.home.data / "pg_hba.conf", AUTHENTICATION))
        self._run("pg_ctl", "start", "-D", str(self.home.data), "-l", str(self.home.log), "-w", "-t", "60")

    def start_as_standby(self, primary: Server, name: str) -> None:
        """Follow another server, under this name."""
        self.home.give(_written(self.home.data / "standby.signal", ""))
        where = f"host={primary.host} port={primary.port} user={OWNER} password={PASSWORD} application_name={name}"
        self.start(primary_conninfo=where)
        query = "select exists (select from pg_stat_replication where application_name = %s and state = 'streaming')"
        primary.wait_for(query, name)

    def kill(self) -> None:
        """kill -9 of all its processes."""
        pid = int((self.home.data / "postmaster.pid").read_text().split("\n", 1)[0])
        postmaster = psutil.Process(pid)
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=PATIENCE)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Within it all its processes stand still: it is there, and says nothing."""
        pid = int((self.home.data / "postmaster.pid").read_text().split("\n", 1)[0])
        postmaster = psutil.Process(pid)
        postmaster.suspend()
        processes = postmaster.children(recursive=True)
        try:
            for process in processes:
                process.suspend()
            yield
        finally:
            for process in (*processes, postmaster):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def promote(self) -> None:
        """Make a standby the primary."""
        self._run("pg_ctl", "promote", "-D", str(self.home.data), "-w", "-t", "60")

    def stop(self) -> None:
        """Stop it, whatever state it is in."""
        self.home.run("pg_ctl", "stop", "-D", str(self.home.data), "-m", "immediate", "-w", "-t", "30")

    def stop_cleanly(self) -> None:
        """Stop it so that its files may be copied."""
        self._run("pg_ctl", "stop", "-D", str(self.home.data), "-m", "fast", "-w", "-t", "60")

    def remove(self) -> None:
        """Leave nothing of it."""
        embedded_home.remove(self.directory)
        shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, database: str = DATABASE) -> psycopg.Connection[Any]:
        """A connection of the server's owner's, in autocommit."""
        return psycopg.connect(
            **self.parameters | {"user": OWNER, "dbname": database}, autocommit=True, connect_timeout=30
        )

    def rows(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run a statement; its rows, if it has any."""
        with self.connect() as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def wait_for(self, query: str, *parameters: Any) -> None:
        """Wait until this SELECT of one boolean is true."""
        with self.connect() as connection:
            wait_until(lambda: (connection.execute(query.encode(), parameters).fetchone() or (False,))[0], query)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def url(*servers: Server) -> str:
    """DATABASE_URL with the hosts of these servers."""
    hosts = ",".join(f"{server.host}:{server.port}" for server in servers)
    return f"postgresql://{ROLE}:{PASSWORD}@{hosts}/{DATABASE}"


def page(broker: Broker, path: str) -> tuple[int, str]:
    """A page of a broker's status server."""
    host, port = broker.addresses["status"]
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def notes(broker: Broker) -> list[str]:
    """The notes of /readyz."""
    return list(json.loads(page(broker, "/readyz")[1]).get("notes", []))


def is_ready(broker: Broker) -> bool:
    return page(broker, "/readyz")[0] == 200


def wait_unready(broker: Broker, *words: str) -> None:
    """Wait until /readyz gives a reason with one of these words."""

    def said() -> bool:
        status, body = page(broker, "/readyz")
        return status == 503 and any(word in reason for reason in json.loads(body)["reasons"] for word in words)

    wait_until(said, lambda: f"{words} in {page(broker, '/readyz')}\n{broker.log}")


def wait_ready(broker: Broker) -> None:
    """Wait until a broker is ready; it is the same process as before."""
    wait_until(lambda: is_ready(broker), lambda: f"ready: {page(broker, '/readyz')}\n{broker.log}")
    assert broker.process.poll() is None
