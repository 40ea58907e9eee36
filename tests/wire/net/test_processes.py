"""Several listener processes under one parent: their command lines, their deaths, their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import psutil
import pytest

from tests.process import Process
from wire.management.commands.runwire import Command, place_of
from wire.net import processes
from wire.net.address import HostPort
from wire.net.process_group import Place
from wire.net.processes import LIVED, Child, StartFailed, child_arguments

# Command lines.


def place(number: int) -> Place:
    """The place of one of three processes."""
    return Place(Path("/sockets"), number, 3)


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The options that runwire reads from a command line."""
    return vars(Command().create_parser(*arguments[:2]).parse_args(arguments[2:]))


@pytest.mark.parametrize("processes_", [("--processes", "3"), ("--processes=3",), ("--proc", "3"), ("--process=3",)])
@pytest.mark.parametrize("number", [0, 1])
def test_a_child_is_one_process_that_shares_its_ports_however_the_number_was_written(
    processes_: tuple[str, ...], number: int
) -> None:
    others = ["--sspq-also", "127.0.0.1:1=orders", "--blipmq", "127.0.0.1:2", "--settings", "x.y"]
    for arguments in ([*processes_, *others], [*others, *processes_]):
        child = child_arguments(["manage.py", "runwire", *arguments], place(number))
        parent = parsed(["manage.py", "runwire", *arguments])
        assert parent["processes"] == 3
        assert parsed(child) == parent | {"processes": 1, "share_ports": ["/sockets", str(number), "3"]}
        assert place_of(*parsed(child)["share_ports"]) == place(number)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_only_the_first_child_has_the_status_page(number: int) -> None:
    arguments = ["manage.py", "runwire", "--status", "127.0.0.1:9", "--processes", "3", "--skip-checks"]
    options = parsed(child_arguments(arguments, place(number)))
    status = Command._wire_options(options | {"sspq": []}).status
    assert status == (None if number else HostPort("127.0.0.1", 9))


# Pauses, by a clock of the test's own.


class Started:
    """A process that has been started."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.returncode: int | None = None
        self.stdout: Any = subprocess.DEVNULL

    def poll(self) -> int | None:
        return self.returncode


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, in `now`; processes that are started live until the test says otherwise."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=Started, PIPE=subprocess.PIPE))
    monkeypatch.setattr(processes, "threading", SimpleNamespace(Thread=lambda **_: SimpleNamespace(start=lambda: None)))
    return clock


def pause_after_death(child: Child, clock: SimpleNamespace) -> float:
    """Have a running child end now; seconds until it is started again."""
    dead: Any = child.process
    dead.returncode = 1
    died = clock.now
    child.watch()
    while child.process is None:
        clock.now += 0.125
        child.watch()
    assert child.process is not dead
    return float(clock.now - died)


def test_a_child_that_keeps_dying_is_started_after_longer_and_longer_pauses(clock: SimpleNamespace) -> None:
    said: list[str] = []
    child = Child(place(7), said.append, lambda _: None)
    child.was_ready = True
    child.watch()
    assert [pause_after_death(child, clock) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert said == ["process 7 ended with status 1; starting it again"] * 8


def test_a_child_that_has_lived_is_started_at_once_and_then_patience_is_new(clock: SimpleNamespace) -> None:
    child = Child(place(0), lambda _: None, lambda _: None)
    child.was_ready = True
    child.watch()
    assert [pause_after_death(child, clock) for _ in range(3)] == [0.5, 1, 2]
    clock.now += LIVED + 1
    assert pause_after_death(child, clock) == 0
    assert pause_after_death(child, clock) == 0.5


def test_a_child_that_cannot_even_start_is_not_started_for_ever(clock: SimpleNamespace) -> None:
    child = Child(place(0), lambda _: None, lambda _: None)
    child.watch()
    dead: Any = child.process
    dead.returncode = 2
    with pytest.raises(StartFailed, match="status 2 before it was ready") as failed:
        child.watch()
    assert failed.value.status == 2


def test_a_child_that_lives_is_left_alone(clock: SimpleNamespace) -> None:
    child = Child(place(0), lambda _: None, lambda _: None)
    child.watch()
    first = child.process
    clock.now += 3600
    child.watch()
    assert child.process is first


# Real processes, of a small program in runwire's place.

PROGRAM = """
import json, os, signal, sys
stubborn = "--stubborn" in sys.argv
ended = signal.SIG_IGN if stubborn else lambda *_: sys.exit(0)
signal.signal(signal.SIGTERM, ended)
print(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:]}), flush=True)
print("ready", flush=True)
while True:
    signal.pause()
"""

PARENT = """
import sys
from wire.net.processes import run_processes
count, drain_timeout, *sys.argv = sys.argv[1:]
sys.exit(run_processes(int(count), float(drain_timeout), lambda line: print(line, flush=True)))
"""


class Family(Process):
    """A parent, and what it has said about its children."""

    def __init__(self, program: Path, count: int, *arguments: str, drain_timeout: float = 10.0) -> None:
        self.pids: set[int] = set()
        self.arguments: dict[int, list[str]] = {}
        super().__init__(sys.executable, "-c", PARENT, str(count), str(drain_timeout), str(program), *arguments)

    def note(self, line: str) -> None:
        if line.startswith("["):
            number, _, text = line[1:].partition("] ")
            report = json.loads(text)
            self.pids.add(report["pid"])
            self.arguments[int(number)] = report["arguments"]

    def wait_ready(self) -> Self:
        """Take lines up to the one that says so."""
        while self.next_line() != "ready":
            pass
        return self

    def next_child(self) -> int:
        """The number of the next child that reports itself."""
        return int(self.read_until("] {")[1])

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for pid in self.pids:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    return file


def test_all_children_run_the_same_command_line_and_the_parent_is_ready_once(program: Path) -> None:
    with Family(program, 3, "runwire", "--processes", "3", "--status", "127.0.0.1:9") as family:
        assert len(family.pids) == 3
        assert family.arguments.keys() == {0, 1, 2}
        status, alone = ["--status", "127.0.0.1:9"], ["--processes", "1", "--share-ports"]
        directory = Path(family.arguments[0][-3])
        assert directory.stat().st_mode & 0o777 == 0o700
        for number in range(3):
            expected = ["runwire", "--processes", "3", *status, *alone, str(directory), str(number), "3"]
            assert family.arguments[number] == expected
        assert family.stop() == 0
        assert family.finish() == (0, [], "")
        assert not directory.exists()


def test_a_dead_child_is_started_again_and_the_others_live_on(program: Path) -> None:
    with Family(program, 2) as family:
        before = {child.pid: child for child in family.family()}
        assert before.keys() == family.pids
        victim, other = sorted(before)
        before[victim].kill()
        number = family.next_child()
        after = {child.pid for child in family.family()}
        assert len(after) == 2
        assert other in after
        assert victim not in after
        assert number in (0, 1)
        assert family.stop() == 0
        assert "ready" not in family.finish()[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_stops_them_all(program: Path, number: int) -> None:
    with Family(program, 2) as family:
        children = family.family()
        assert len(children) == 2
        assert family.stop(number) == 0
        assert not any(child.is_running() for child in children)


def test_a_child_that_does_not_stop_in_time_is_ended(program: Path) -> None:
    with Family(program, 2, "--stubborn", drain_timeout=-processes.GRACE) as family:
        children = family.family()
        assert family.stop() == 0
        assert not any(child.is_running() for child in children)
