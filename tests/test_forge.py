"""Programs that are forked end as those that Python starts."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from brokersite.environment import CHECKOUT
from tests.forge import Forge, ForkedProcess
from tests.process import Process
from tests.waiting import PATIENCE

#: Typed into `python -m code`, which is ended by what follows: a thread that ends with its input, and words at exit.
FIRST = (
    "import atexit, sys, threading; at_exit = atexit.register(print, 'at exit');"
    "threading.Thread(target=lambda: print('read', sys.stdin.read())).start(); "
)


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [("sys.exit()", 0, ""), ("sys.exit(3)", 3, ""), ("sys.exit('in words')", 1, "in words")],
)
def test_a_program_that_exits_ends_its_threads_first_then_calls_what_is_registered(
    end: str, status: int, said: str
) -> None:
    process = Process(sys.executable, "-m", "code")
    assert isinstance(process.process, ForkedProcess)
    process.tell(f"{FIRST}{end}\n".encode())
    ended, lines, log = process.finish()
    assert (ended, [line.removeprefix(">>> ") for line in lines]) == (status, ["read ", "at exit"])
    assert log.splitlines()[-1].endswith(said)


def test_an_error_is_shown_and_is_status_1() -> None:
    process = Process(sys.executable, "-m", "tests.forge.nothing")
    assert isinstance(process.process, ForkedProcess)
    status, _, log = process.finish()
    assert status == 1
    assert "ModuleNotFoundError" in log


def test_a_program_that_comes_too_late_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    forge = Forge()
    try:
        os.kill(forge._process.pid, signal.SIGSTOP)
        monkeypatch.setattr("tests.forge.PATIENCE", 0.01)
        with pytest.raises(AssertionError, match="does not answer"):
            forge.fork(["-m", "tests.forge.late"], CHECKOUT, os.environ, None, leads=False)
        monkeypatch.undo()
        os.kill(forge._process.pid, signal.SIGCONT)
        child = forge.fork(["-m", "code"], CHECKOUT, os.environ, None, leads=False)
        child.stdin.write(b"import os; print('I am', os.getpid())\n")
        child.stdin.close()
        assert f"I am {child.pid}" in child.stdout.read().decode()
        assert child.wait(PATIENCE) == 0
        child.stdout.close()
    finally:
        forge.stop()
