"""A PostgreSQL of the run's own, and what can be done to it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import psycopg

from brokersite import embedded, embedded_home
from queues.engine.api import key_digest
from queues.etl.job.pacing import stopped
from queues.processes import childprocess

#: The engine's names of its connections.
ENGINE = "fivewire %"
KEY = "torture-key"
#: Seconds that killed processes have to be gone.
GONE = 20.0

ADD_KEY = """
    insert into queues_apikey (name, digest, hint, protocols, publish, consume, manage)
    values ('torture', %s, '', '{}', '{*}', '{*}', '{}') on conflict do nothing
"""


class TortureDatabase:
    """The embedded PostgreSQL of a data directory that nothing else uses."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.secret = secrets.token_hex(32)
        self.server: embedded.EmbeddedServer | None = None

    def environment(self, **more: str) -> dict[str, str]:
        """For processes that are to use this database: of ours only the given variables."""
        ours = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE")
        kept = {k: v for k, v in os.environ.items() if k not in ours and not k.startswith("BROKER_")}
        return {**kept, "DATA_DIR": str(self.data_dir), "SECRET_KEY": self.secret, **more}

    def start(self) -> None:
        """Start it, make its tables and the key. Raises EmbeddedPostgresError or CalledProcessError."""
        self.server = embedded.ensure_running(self.data_dir)
        self.make_tables()

    def make_tables(self) -> None:
        """Make the tables and the key of a started database. Raises CalledProcessError."""
        subprocess.run(
            childprocess.command("brokersite", "migrate", "--verbosity", "0"),
            env=self.environment(), check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        with self.connect() as connection:
            connection.execute(ADD_KEY, (key_digest(KEY, self.secret),))

    def connect(self) -> psycopg.Connection[Any]:
        """A connection in autocommit."""
        server = self.server
        assert server is not None
        return psycopg.connect(
            host=server.host, port=server.port, user=server.user, password=server.password,
            dbname=server.dbname, autocommit=True, connect_timeout=30,
        )  # fmt: skip

    def stop(self) -> None:
        """Stop it; its data stays."""
        embedded.stop(self.data_dir)

    def remove(self) -> None:
        """Stop it and delete it and the data directory."""
        embedded.remove(self.data_dir)
        shutil.rmtree(self.data_dir, ignore_errors=True)

    # Faults.

    def postmaster(self) -> psutil.Process:
        """The server's first process. Raises FileNotFoundError or psutil.NoSuchProcess when it does not run."""
        path = embedded_home.link(self.data_dir) / "data" / "postmaster.pid"
        return psutil.Process(int(path.read_text().split("\n", 1)[0]))

    def processes(self) -> list[psutil.Process]:
        """The postmaster and all its children."""
        postmaster = self.postmaster()
        return [postmaster, *postmaster.children(recursive=True)]

    def kill(self, everything: bool) -> bool:
        """kill -9 the postmaster, or everything, and start it again. True when it is on another port then."""
        assert self.server is not None
        processes = self.processes()
        for process in processes if everything else processes[:1]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(processes[:1], timeout=GONE)
        port = self.server.port
        self.server = embedded.ensure_running(self.data_dir)
        return self.server.port != port

    @contextlib.contextmanager
    def frozen(self, pids: Sequence[int] = ()) -> Iterator[None]:
        """Every process of it, or those named, stands still meanwhile."""
        with stopped([psutil.Process(pid) for pid in pids] or self.processes()):
            yield

    def cut(self, purpose: str = "%") -> None:
        """Terminate the backends of the engine's connections: of all, or of one purpose ("writer", "listener")."""
        with self.connect() as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like %s",
                (ENGINE.replace("%", purpose),),
            )

    def wait_for(self, question: str, timeout: float = 20.0) -> None:
        """Return when this SELECT of one boolean is true. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        with self.connect() as connection:
            while not (row := connection.execute(question.encode()).fetchone()) or not row[0]:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not true after {timeout} s: {question}")
                time.sleep(0.01)
