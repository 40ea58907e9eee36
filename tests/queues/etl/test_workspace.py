"""Runs leave nothing in the temporary directory, even when they were killed."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from queues.etl.workspace import PREFIX, workspace
from tests.process import Process

#: Holds the directory that it is given, and says so.
HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX)
print("ready", flush=True)
input()
"""
#: Starts a job in a workspace, and says where that is and which process that.
RUN = """
import subprocess, sys, tempfile
from queues.etl.workspace import workspace
tempfile.tempdir = sys.argv[1]
with workspace() as (path, holder):
    command = [sys.executable, "-c", "import time; time.sleep(300)"]
    job = subprocess.Popen(command, pass_fds=(holder,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print(path, job.pid, "ready", sep="\\n", flush=True)
    job.wait()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def left(temporary: Path, name: str, *, old: bool) -> Path:
    """A directory with something in it."""
    path = temporary / name
    path.mkdir()
    (path / "spark-1").mkdir()
    if old:
        os.utime(path, (0, 0))
    return path


def test_it_is_the_owners_alone_and_gone_afterwards(temporary: Path) -> None:
    with workspace() as (path, _):
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "x").touch()
        assert list(temporary.iterdir()) == [path]
    assert list(temporary.iterdir()) == []


def test_files_left_by_killed_runs_are_removed_and_nothing_else(temporary: Path) -> None:
    left(temporary, f"{PREFIX}killed", old=True)
    kept = {left(temporary, f"{PREFIX}new", old=False), left(temporary, "another", old=True)}
    (temporary / f"{PREFIX}link").symlink_to(temporary / "another")
    with workspace():
        pass
    assert set(temporary.iterdir()) == {*kept, temporary / f"{PREFIX}link"}
    assert (temporary / "another" / "spark-1").exists()


def test_a_held_directory_is_left_alone_until_its_holder_is_gone(temporary: Path) -> None:
    path = left(temporary, f"{PREFIX}held", old=True)
    with Process(sys.executable, "-c", HOLD, str(path)) as holder:
        with workspace():
            pass
        assert path.exists()
        holder.kill()
    with workspace():
        pass
    assert not path.exists()


def test_the_job_of_a_run_that_was_killed_holds_it(temporary: Path) -> None:
    with Process(sys.executable, "-c", RUN, str(temporary)) as run:
        path, job = Path(run.next_line()), int(run.next_line())
        run.kill()
    os.utime(path, (0, 0))
    with workspace():
        pass
    assert path.exists()
    os.kill(job, signal.SIGKILL)
    _, alive = psutil.wait_procs([psutil.Process(job)], 60) if psutil.pid_exists(job) else ([], [])
    assert alive == []
    with workspace():
        pass
    assert not path.exists()
