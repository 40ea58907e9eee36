"""The embedded PostgreSQL: started by the first process, shared by all processes of a DATA_DIR.

:func:`ensure_running` joins the server of a data directory, starting it (and, the first time, making it) when
it does not run. The server belongs to no process of ours: it has a session of its own, so neither the
death of the process that started it nor a Ctrl-C in its terminal reaches it. :func:`stop` stops it.

A file lock makes starting and stopping exclusive. Whether the server runs is read from PostgreSQL's own
``postmaster.pid``, and believed only when that process really is a server of that directory. After a crash
the orphans of the old server may hold its shared memory for a moment; a start waits for them.

As a command: ``python -m brokersite.embedded status|stop|remove [DATA_DIR]``.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from brokersite import embedded_home
from brokersite.embedded_home import EmbeddedPostgresError, Home
from queues.config.secret_files import kept_secret, read_secret

__all__ = ["EmbeddedPostgresError", "EmbeddedServer", "ensure_running", "is_running", "remove", "stop"]

HOST = "127.0.0.1"
USER = DATABASE = "fivewire"
#: The owner of the server, for an operator. Nothing of the project connects as it. In data directories of earlier
#: versions the user of the project is the superuser and stays it: PostgreSQL does not take that from its first role.
SUPERUSER = "postgres"
#: The password is long and random, beyond guessing: more iterations only cost each connection a few ms of processor
#: time. Drivers for Java refuse fewer (pgjdbc before 42.7, which Debian 12 has).
SCRAM_ITERATIONS = 4096
#: For scratch databases and tests; to look at sessions; for measurements.
PRIVILEGES = f"""\
SET scram_iterations = {{iterations}};
CREATE ROLE {USER} LOGIN CREATEDB PASSWORD '{{password}}';
GRANT pg_monitor, pg_checkpoint TO {USER};
CREATE DATABASE {DATABASE} OWNER {USER};
"""

#: Recovery after a crash reads at most ``max_wal_size`` of log, which a slow disk needs minutes for.
START_TIMEOUT = 300.0
LOCK_TIMEOUT = START_TIMEOUT + 30.0

#: Below what Linux and macOS hand out to clients, so that a kept port is not taken by a passing connection.
PORTS = range(20_000, 30_000)

#: Lines of a log after which another start may succeed: orphans of a killed server, a lost race for the port.
PASSING = ("pre-existing shared memory block", "Address already in use", 'lock file "postmaster.pid"')

#: Megabytes of a WAL file, and of those that are made with the server, which are no more than a fiftieth of the free
#: space. After the first checkpoint files are used again (``min_wal_size``).
WAL_FILE, WAL_AHEAD = 2, 1024

#: The server's configuration, with places for what is known at the start.
CONFIGURATION = Path(__file__).with_name("embedded.conf")
AUTHENTICATION = Path(__file__).with_name("embedded_hba.conf")


@dataclass(frozen=True)
class EmbeddedServer:
    """The address of the database. ``socket_directory`` is a quicker way than ``host`` where there is one."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    dbname: str
    socket_directory: Path | None
    #: True for the caller whose call started the server.
    started: bool


@dataclass(frozen=True)
class Postmaster:
    """A live server, as its ``postmaster.pid`` describes it."""

    pid: int
    port: int
    socket_directory: Path | None
    ready: bool


def ensure_running(data_dir: Path) -> EmbeddedServer:
    """Join the server of ``data_dir``, starting it when it does not run; returns when it accepts connections.

    Raises EmbeddedPostgresError, with the end of the server's log, when it does not start.
    """
    root = embedded_home.link(data_dir)
    try:
        server = _postmaster(root / "data")
        started = server is None
        if server is None or not server.ready:
            with _lock(data_dir):
                home = embedded_home.prepare(data_dir)
                server, started = _start(home)
        password = read_secret(root / "password")
    except OSError as error:
        raise EmbeddedPostgresError(
            f"The embedded PostgreSQL in {root} cannot be used: {error}. "
            "Work as the user who made it, choose another DATA_DIR, or set DATABASE_URL."
        ) from error
    return EmbeddedServer(HOST, server.port, USER, password, DATABASE, server.socket_directory, started)


def is_running(data_dir: Path) -> bool:
    """Whether the server of ``data_dir`` runs and accepts connections."""
    server = _postmaster(embedded_home.link(data_dir) / "data")
    return server is not None and server.ready


def stop(data_dir: Path, timeout: float = 30.0) -> None:
    """Stop the server of ``data_dir``; nothing to do when it does not run.

    Connections are closed. A server that has not written its checkpoint within ``timeout`` seconds is
    stopped without, and recovers at its next start. Raises EmbeddedPostgresError if it lives on.
    """
    if not embedded_home.link(data_dir).exists():
        return
    with _lock(data_dir):
        home = embedded_home.prepare(data_dir)
        for mode in ("fast", "immediate"):
            if _postmaster(home.data) is None:
                return
            home.run("pg_ctl", "stop", "-D", str(home.data), "-m", mode, "-w", "-t", str(max(1, round(timeout))))
        if _postmaster(home.data) is not None:
            raise EmbeddedPostgresError(f"PostgreSQL in {home.root} does not stop.\n{_tail(home.log, 0)}")


def remove(data_dir: Path) -> None:
    """Stop the server of ``data_dir`` and delete it with every message in it."""
    stop(data_dir)
    if data_dir.exists():
        with _lock(data_dir):
            embedded_home.remove(data_dir)


@contextmanager
def _lock(data_dir: Path) -> Iterator[None]:
    """Hold the lock of ``data_dir``. The system frees it when its holder dies."""
    data_dir.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + LOCK_TIMEOUT
    with open(data_dir / "postgres.lock", "a") as stream:
        while True:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"Another process has held {stream.name} for {LOCK_TIMEOUT:.0f} s while starting or "
                        "stopping PostgreSQL."
                    ) from None
                time.sleep(0.05)
        yield


def _postmaster(data: Path) -> Postmaster | None:
    """The live server of the directory ``data``; None if there is none, whatever a stale file says."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return None
    if len(lines) < 5 or not _serves(int(lines[0]), data):
        return None
    socket_directory = Path(lines[4]) if lines[4] else None
    ready = len(lines) > 7 and lines[7].strip() == "ready"
    return Postmaster(int(lines[0]), int(lines[3]), socket_directory, ready)


def _serves(pid: int, data: Path) -> bool:
    """Whether process ``pid`` is a server of ``data``: it may be a zombie, or the number may be used anew."""
    import psutil

    try:
        arguments = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return str(data.resolve()) in arguments and "postgres" in os.path.basename(arguments[0])


def _start(home: Home) -> tuple[Postmaster, bool]:
    """Start the server and wait until it is ready, or wait for one that another process has started."""
    deadline = time.monotonic() + START_TIMEOUT
    if not home.data.exists():
        _initialise(home)
    while True:
        server = _postmaster(home.data)
        if server is not None and server.ready:
            return server, False
        if server is None:
            seen = home.log.stat().st_size if home.log.exists() else 0
            crashed = _forget_stale_pid(home)
            _configure(home, _port(home, patience=5.0 if crashed else 0.0))
            wait = ["-w", "-t", str(round(START_TIMEOUT))]
            code, printed = home.run("pg_ctl", "start", "-D", str(home.data), "-l", str(home.log), *wait)
            server = _postmaster(home.data)
            if code == 0 and server is not None and server.ready:
                return server, True
            log = _tail(home.log, seen)
            if not any(words in log for words in PASSING):
                raise EmbeddedPostgresError(f"PostgreSQL in {home.root} does not start.\n{printed}{log}")
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"PostgreSQL in {home.root} is not ready after {START_TIMEOUT:.0f} s.\n{_tail(home.log, 0)}"
            )
        time.sleep(0.1)


def _initialise(home: Home) -> None:
    """Make the data directory with the role and the database in it, whole or not at all."""
    password = kept_secret(home.password)
    kept_secret(home.superuser_password)
    for path in (home.password, home.superuser_password):
        home.give(path)
    unfinished = home.root / "data.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    role = [f"--username={SUPERUSER}", f"--pwfile={home.superuser_password}", "--auth=scram-sha-256"]
    # PostgreSQL's own locale: the order of texts does not change with the system's libraries.
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    # While a new WAL file is filled with zeros nothing is committed: 45 ms for one of the usual 16 MB.
    code, printed = home.run("initdb", "-D", str(unfinished), f"--wal-segsize={WAL_FILE}", *role, *locale)
    if code == 0:
        create = PRIVILEGES.format(iterations=SCRAM_ITERATIONS, password=password)
        code, printed = home.run("postgres", "--single", "-D", str(unfinished), "template1", input=create)
    if code != 0 or "ERROR:" in printed:
        raise EmbeddedPostgresError(f"A database could not be made in {home.root}.\n{printed}")
    ahead = min(WAL_AHEAD, shutil.disk_usage(unfinished).free // 50 // 2**20)
    _make_wal_files(home, unfinished / "pg_wal", ahead // WAL_FILE)
    unfinished.rename(home.data)


def _make_wal_files(home: Home, directory: Path, number: int) -> None:
    """Make the WAL files that the server will write first. It takes them as those that it has used before, and need not
    make them itself, which holds up all commits and writes everything twice."""
    zeros = bytes(WAL_FILE * 2**20)
    in_a_log = 4096 // WAL_FILE  # files with the same second part of the name: they have 4 GB
    last = max(int(name[8:16], 16) * in_a_log + int(name[16:], 16) for name in os.listdir(directory) if len(name) == 24)
    paths = [
        directory / f"{1:08X}{file // in_a_log:08X}{file % in_a_log:08X}" for file in range(last + 1, last + 1 + number)
    ]
    for path in paths:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
            stream.write(zeros)
        home.give(path)
    for path in paths:  # at the end: the disk has begun with all of them
        with open(path, "rb") as stream:
            os.fsync(stream.fileno())


def _forget_stale_pid(home: Home) -> bool:
    """Remove a ``postmaster.pid`` that would keep the server from starting; True if there was one: a crash.

    PostgreSQL itself ignores one whose process is gone, but not one whose number belongs to another process
    by now. It finds backends that still run by their shared memory, with or without the file.
    """
    pid_file = home.data / "postmaster.pid"
    try:
        pid = int(pid_file.read_text().split("\n", 1)[0])
    except FileNotFoundError:
        return False
    except ValueError:  # cut short by the crash
        pid_file.unlink()
        return True
    if psutil.pid_exists(pid):
        pid_file.unlink()
    return True


def _port(home: Home, *, patience: float) -> int:
    """The last time's port if it is free within ``patience`` seconds, for clients to find; else a new one."""
    kept = home.root / "port"
    deadline = time.monotonic() + patience
    if kept.exists():
        port = int(kept.read_text())
        while not (free := _is_free(port)) and time.monotonic() <= deadline:
            time.sleep(0.1)
        if free:
            return port
    port = next((port for port in random.sample(PORTS, 500) if _is_free(port)), 0)
    if not port:
        raise EmbeddedPostgresError(f"No port from {PORTS.start} to {PORTS.stop - 1} is free for PostgreSQL.")
    kept.write_text(f"{port}\n")
    return port


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _configure(home: Home, port: int) -> None:
    """Write the server's configuration; a start is the moment it takes effect."""
    sockets = home.root / "run"
    if sockets.exists():
        shutil.rmtree(sockets)  # a lock file in it may name a process that is another's by now, or a zombie
    sockets.mkdir(mode=0o755)
    home.give(sockets)
    too_long = len(os.fsencode(sockets)) + len("/.s.PGSQL.12345.lock") > 100
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    text = CONFIGURATION.read_text().format(
        host=HOST,
        port=port,
        socket_directory="" if too_long else str(sockets).replace("'", "''"),
        shared_buffers=min(1024, max(128, memory // 16)),
    )
    (home.data / "postgresql.conf").write_text(text)
    (home.data / "pg_hba.conf").write_text(AUTHENTICATION.read_text())
    if home.log.exists() and home.log.stat().st_size > 16 * 2**20:
        home.log.replace(home.log.with_suffix(".log.old"))


def _tail(log: Path, start: int, limit: int = 4000) -> str:
    """The log since byte ``start``, at most its last ``limit`` bytes."""
    try:
        with open(log, "rb") as stream:
            stream.seek(max(start, log.stat().st_size - limit))
            return stream.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def main() -> None:
    """Tell whether the server of a data directory runs, stop it, or delete it."""
    from brokersite.environment import DATA_DIR

    parser = argparse.ArgumentParser(prog="python -m brokersite.embedded", description=main.__doc__)
    parser.add_argument("action", choices=["status", "stop", "remove"])
    default = Path(os.environ.get("DATA_DIR") or DATA_DIR)
    parser.add_argument("data_dir", nargs="?", type=Path, default=default, metavar="DATA_DIR")
    arguments = parser.parse_args()
    data_dir = arguments.data_dir.absolute()
    if arguments.action == "status":
        print("running" if is_running(data_dir) else "not running")
    elif arguments.action == "stop":
        stop(data_dir)
    else:
        remove(data_dir)


if __name__ == "__main__":
    main()
