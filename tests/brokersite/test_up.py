"""`manage.py up`: one command that starts everything, one signal that leaves nothing."""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from brokersite import embedded
from brokersite.environment import CHECKOUT
from brokersite.management.commands.up import Command
from tests.brokersite.processes import has_ended
from wire.address import Address

#: It starts half a dozen programs, and each has a good deal to import.
pytestmark = pytest.mark.timeout(300)

Ports = dict[str, int]
StartUp = Callable[..., "Up"]


class Up:
    """A running `manage.py up`, and what it has printed."""

    def __init__(self, data_dir: Path, ports: Ports, *options: str) -> None:
        environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        addresses = [text for name, port in ports.items() for text in (f"--{name}", f"127.0.0.1:{port}")]
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", *addresses, *options],
            cwd=CHECKOUT,
            env={**environ, "DATA_DIR": str(data_dir)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def read_until(self, words: str) -> str:
        """Read lines until one has ``words``; the test's own time limit bounds the wait."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if words in line:
                return self.lines[-1]
        raise AssertionError(f"{words!r} is not in what up printed:\n" + "\n".join(self.lines))

    def wait_until_ready(self) -> None:
        """Read to the line `ready`; fail with all that was printed if up ends before it."""
        while self.read_until("ready") != "ready":
            pass

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code, once it has ended."""
        self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=60)
        self.lines += rest.splitlines()
        return self.process.returncode


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"
    embedded.remove(tmp_path / "data")


@pytest.fixture
def ports(unused_tcp_port_factory: Callable[[], int]) -> Ports:
    return {name: unused_tcp_port_factory() for name in ("http", "blipmq", "sspq", "hydra")}


@pytest.fixture
def start(data_dir: Path, ports: Ports) -> Iterator[StartUp]:
    """Starts everything; without Celery, which takes a while to begin, unless told otherwise."""
    started: list[Up] = []

    def start(celery: str = "off") -> Up:
        started.append(Up(data_dir, ports, f"--celery={celery}"))
        return started[-1]

    yield start
    for up in started:
        if up.process.poll() is None:
            up.end()
        assert up.process.stdout is not None
        up.process.stdout.close()


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def value(up: Up, label: str) -> str:
    (line,) = [line for line in up.lines if line.startswith(label + ":")]
    return line.removeprefix(label + ":").strip()


def test_up_prints_where_everything_is_and_ctrl_c_leaves_no_process(
    start: StartUp, ports: Ports, data_dir: Path
) -> None:
    up = start(celery="on")
    up.wait_until_ready()
    assert re.fullmatch(r"worker up-\d+@\S+, 2 tasks at a time, with the beat", value(up, "celery"))
    assert value(up, "site") == f"http://127.0.0.1:{ports['http']}/admin/"
    assert value(up, "blipmq") == f"127.0.0.1:{ports['blipmq']}"
    assert all(accepts(port) for port in ports.values())
    kept = re.escape(str(data_dir / "admin_password"))
    assert re.fullmatch(rf"user admin, password \S{{20}} \(printed this once; kept in {kept}\)", value(up, "log in"))
    with urllib.request.urlopen(f"http://127.0.0.1:{ports['http']}/readyz") as answer:
        assert answer.status == 200
    family = up.family()
    assert len(family) >= 2
    assert up.end() == 0
    wait_for(lambda: all(map(has_ended, family)))
    assert not embedded.is_running(data_dir)
    assert not any(accepts(port) for port in ports.values())


def test_a_second_up_prints_the_same_key_and_where_the_password_lies(start: StartUp, data_dir: Path) -> None:
    first = start()
    first.wait_until_ready()
    assert first.end(signal.SIGTERM) == 0
    second = start()
    second.wait_until_ready()
    assert value(second, "API key") == value(first, "API key")
    assert value(second, "log in") == f"user admin, password in {data_dir / 'admin_password'}"


def test_a_killed_listener_and_a_killed_database_are_started_again(
    start: StartUp, ports: Ports, data_dir: Path
) -> None:
    up = start()
    up.wait_until_ready()
    (listener,) = [p for p in psutil.Process(up.process.pid).children() if "runwire" in p.cmdline()]
    listener.kill()
    assert "killed by SIGKILL: started again" in up.read_until("runwire")
    wait_for(lambda: accepts(ports["blipmq"]))
    pid_file = data_dir / "postgres" / "data" / "postmaster.pid"
    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
    up.read_until("PostgreSQL does not run: started again")
    wait_for(lambda: embedded.is_running(data_dir))


def test_a_taken_port_is_named_before_anything_starts(start: StartUp, ports: Ports) -> None:
    with socket.create_server(("127.0.0.1", ports["sspq"])):
        up = start()
        up.read_until(f"127.0.0.1:{ports['sspq']} cannot be listened on: Address already in use")
        assert up.process.wait(60) == 1
    assert "ready" not in up.lines


def test_the_children_of_a_killed_up_end(start: StartUp) -> None:
    up = start(celery="on")
    up.wait_until_ready()
    assert sum("celery" in process.cmdline() for process in up.family()) >= 3  # the worker, its two, the beat
    family = up.family()
    up.process.kill()
    wait_for(lambda: all(map(has_ended, family)))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_up_warns_of_listeners_that_other_hosts_reach() -> None:
    said = io.StringIO()
    here, anywhere = Address("127.0.0.1", 8000), Address("0.0.0.0", 5555)
    Command(stdout=said)._warn_of_strangers({"site": here, "blipmq": anywhere})
    assert said.getvalue() == "warning: blipmq listens on 0.0.0.0:5555: other hosts reach it, and not over TLS\n"
