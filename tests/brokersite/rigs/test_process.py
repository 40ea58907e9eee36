"""Child processes of rigs: started, waited for, told, ended with their group."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from brokersite.rigs import process
from brokersite.rigs.process import HOST, ProcessFailed, RigProcess, free_ports
from tests.process import has_ended
from tests.waiting import wait_until

#: Starts a child that ignores SIGTERM, prints its pid and repeats what it is told.
PARENT = """
import signal, subprocess, sys
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print("child", child.pid, flush=True)
for line in sys.stdin:
    print("told", line, end="", flush=True)
"""


def run(log: Path, code: str, *arguments: str) -> RigProcess:
    return RigProcess("the program", [sys.executable, "-c", code, *arguments], log / "log", os.environ)


def test_it_is_told_lines_and_its_output_is_waited_for(tmp_path: Path) -> None:
    with run(tmp_path, PARENT) as program:
        program.wait_for(r"^child \d+$")
        program.tell("go")
        assert program.wait_for("^told .*$") == "told go"
        assert program.status is None


def test_children_end_with_it(tmp_path: Path) -> None:
    with run(tmp_path, PARENT) as program:
        child = psutil.Process(int(program.wait_for(r"^child \d+$").split()[1]))
        assert program.stop() == -signal.SIGTERM
        wait_until(lambda: has_ended(child), "the child's end")


def test_one_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); signal.pause()"
    program = run(tmp_path, code)
    program.wait_for("ready")
    assert program.stop(0.1) == -signal.SIGKILL


def test_one_that_ends_at_its_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    with run(tmp_path, "raise SystemExit('no coffee')") as program:
        with pytest.raises(ProcessFailed, match=r"^the program ended with status 1; its log ends with: no coffee$"):
            program.wait_for("ready")
        with pytest.raises(ProcessFailed):
            program.tell("go")


def test_one_that_is_never_ready_is_not_waited_for_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "START", 0.1)
    with run(tmp_path, PARENT) as program, pytest.raises(ProcessFailed, match="is not ready after 0 s"):
        program.wait_for("ready")


def test_output_of_an_earlier_process_with_the_same_log_is_not_its_own(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with run(tmp_path, "import sys; print(sys.argv[1])", word) as program:
            assert program.wait() == 0
            assert program.output == f"{word}\n"
    assert (tmp_path / "log").read_text() == "first\nsecond\n"


def test_servers_of_several_processes_are_not_given_the_same_port() -> None:
    code = "from brokersite.rigs.process import free_ports; print(*(free_ports(1)[0] for _ in range(20)))"
    command = [sys.executable, "-c", code]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    own = [port for _ in range(10) for port in free_ports(2)]
    given = own + [int(port) for other in others for port in other.communicate()[0].split()]
    assert len(set(given)) == len(given) == 60


def test_a_port_that_is_taken_is_not_free(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(process, "PORTS", range(port, port + 1))
    with socket.create_server((HOST, port)), pytest.raises(OSError, match=rf"no 1 ports from {port} to {port}"):
        free_ports(1)
    assert free_ports(1) == [port]


def test_it_is_waited_for_until_it_listens(tmp_path: Path) -> None:
    (free,) = free_ports(1)
    code = "import signal, socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); signal.pause()"
    with run(tmp_path, code, str(free)) as program:
        program.wait_listening(free)
        socket.create_connection((HOST, free)).close()
