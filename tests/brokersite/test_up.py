"""`manage.py up`: one command that starts everything, one signal that leaves nothing."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from brokersite import embedded
from brokersite.embedded import EmbeddedServer
from brokersite.environment import CHECKOUT
from brokersite.management.commands.up import Command, _other_clients
from tests.brokersite.processes import Ports, Up
from tests.process import has_ended
from tests.waiting import wait_until
from wire.net.address import HostPort

#: It starts half a dozen programs, and each has a good deal to import.
pytestmark = pytest.mark.timeout(300)

StartUp = Callable[..., "Up"]


@pytest.fixture
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A data directory with a server that was made here, without the WAL files that wait for a load; in long tests
    there is none yet."""
    path = tmp_path / "data"
    if request.node.get_closest_marker("long") is None:
        embedded.ensure_running(path)
        embedded.stop(path)
    yield path
    embedded.remove(path)


@pytest.fixture
def ports(unused_tcp_port_factory: Callable[[], int]) -> Ports:
    return {name: unused_tcp_port_factory() for name in ("http", "overhop", "blipmq", "sspq", "hydra")}


@pytest.fixture
def start(data_dir: Path, ports: Ports) -> Iterator[StartUp]:
    """Starts everything; without Celery, which takes a while to begin, unless told otherwise."""
    started: list[Up] = []

    def start(celery: str = "off") -> Up:
        started.append(Up([sys.executable, "manage.py"], CHECKOUT, ports, f"--celery={celery}", DATA_DIR=str(data_dir)))
        return started[-1]

    yield start
    for up in started:
        up.stop()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def value(up: Up, label: str) -> str:
    (line,) = [line for line in up.lines if line.startswith(label + ":")]
    return line.removeprefix(label + ":").strip()


def kill_the_listener_and_the_database(up: Up, ports: Ports, data_dir: Path) -> None:
    """Kill both; each is started again."""
    (listener,) = [p for p in psutil.Process(up.process.pid).children() if "runwire" in p.cmdline()]
    listener.kill()
    assert "killed by SIGKILL: started again" in up.read_until("runwire")
    wait_until(lambda: accepts(ports["blipmq"]))
    pid_file = data_dir / "postgres" / "data" / "postmaster.pid"
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
    up.read_until("PostgreSQL does not run: started again")
    wait_until(lambda: embedded.is_running(data_dir))


def test_up_prints_where_everything_is_starts_again_what_was_killed_and_ctrl_c_leaves_no_process(
    start: StartUp, ports: Ports, data_dir: Path
) -> None:
    up = start(celery="on")
    up.wait_ready()
    assert re.fullmatch(r"worker up-\d+@\S+, 2 tasks at a time, with the beat", value(up, "celery"))
    assert value(up, "site") == f"http://127.0.0.1:{ports['http']}/admin/"
    assert value(up, "blipmq") == f"127.0.0.1:{ports['blipmq']}"
    assert all(accepts(port) for port in ports.values())
    kept = re.escape(str(data_dir / "admin_password"))
    assert re.fullmatch(rf"user admin, password \S{{20}} \(printed this once; kept in {kept}\)", value(up, "log in"))
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/readyz") as answer:
        assert answer.status == 200
    kill_the_listener_and_the_database(up, ports, data_dir)
    family = up.family()
    assert len(family) >= 2
    assert up.stop() == 0
    wait_until(lambda: all(map(has_ended, family)))
    assert not embedded.is_running(data_dir)
    assert not any(accepts(port) for port in ports.values())


@pytest.mark.long
def test_a_second_up_prints_the_same_key_and_where_the_password_lies(start: StartUp, data_dir: Path) -> None:
    first = start()
    first.wait_ready()
    assert first.stop(signal.SIGTERM) == 0
    second = start()
    second.wait_ready()
    assert value(second, "API key") == value(first, "API key")
    assert value(second, "log in") == f"user admin, password in {data_dir / 'admin_password'}"


def test_taken_ports_are_named_with_their_options_before_anything_is_made(ports: Ports, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", ports["sspq"])), socket.create_server(("127.0.0.1", ports["http"])):
        up = Up([sys.executable, "manage.py"], CHECKOUT, ports, DATA_DIR=str(tmp_path / "data"))
        assert up.wait() == 1
    refused = "manage.py: 127.0.0.1:{} cannot be listened on: Address already in use. Another one is given by "
    assert up.lines == [
        refused.format(ports["http"]) + "--http HOST:PORT.", refused.format(ports["sspq"]) + "--sspq HOST:PORT, or off."
    ]  # fmt: skip
    assert not (tmp_path / "data").exists()


def test_who_keeps_postgresql_running_is_named_and_how_it_is_stopped(database_url: str, settings: Any) -> None:
    settings.EMBEDDED_DATABASE = EmbeddedServer("127.0.0.1", 1, "", "", "", None, started=False)
    said = io.StringIO()
    with psycopg.connect(database_url, application_name="night shift") as others:
        on_the_server = others.info.backend_pid
        Command(stdout=said)._leave_database()
        named = _other_clients()
    assert "PostgreSQL goes on for" in said.getvalue()
    assert said.getvalue().endswith(". `make stop` stops it.\n")
    assert named[-1] in (f"night shift (process {os.getpid()})", f"night shift (process {on_the_server} of the server)")


@pytest.mark.long
def test_the_children_of_a_killed_up_end(start: StartUp) -> None:
    up = start(celery="on")
    up.wait_ready()
    assert sum("celery" in process.cmdline() for process in up.family()) >= 3  # the worker, its two, the beat
    family = up.family()
    up.process.kill()
    wait_until(lambda: all(map(has_ended, family)))


def test_up_warns_of_listeners_that_other_hosts_reach() -> None:
    said = io.StringIO()
    here, anywhere = HostPort("127.0.0.1", 8000), HostPort("0.0.0.0", 5555)
    Command(stdout=said)._warn_of_strangers({"site": here, "blipmq": anywhere})
    assert said.getvalue() == "warning: blipmq listens on 0.0.0.0:5555: other hosts reach it, and not over TLS\n"
