"""A job's priority beside the broker."""

from __future__ import annotations

import subprocess
import sys

from brokersite.environment import CHECKOUT

#: Prints the lowest niceness of its threads and of those of a child, which were there before.
STEP_BACK = """
import os, subprocess, sys
from pathlib import Path
import psutil
from queues.etl.job.__main__ import step_back
CHILD = "import sys, threading; threading.Thread(target=sys.stdin.read).start(); print(flush=True); sys.stdin.read()"
child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
step_back()
threads = [thread.id for pid in (os.getpid(), child.pid) for thread in psutil.Process(pid).threads()]
assert len(threads) == 3
session = Path("/proc/self/autogroup")
print(min(os.getpriority(os.PRIO_PROCESS, id) for id in threads), session.read_text() if session.exists() else "")
"""


SESSION = """
from pathlib import Path
session = Path("/proc/self/autogroup")
print(session.read_text() if session.exists() else "")
"""


def said(program: str, own_session: bool) -> list[str]:
    """The words that a Python program prints, which runs in a session of its own or in this one."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, start_new_session=own_session, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    return done.stdout.split()


def stepped_back(own_session: bool) -> list[str]:
    """The niceness of a process that has stepped back, and what its session has."""
    return said(STEP_BACK, own_session)


def test_a_job_comes_after_others() -> None:
    assert int(stepped_back(own_session=True)[0]) >= 10


def test_a_jobs_session_comes_after_other_sessions_and_no_other_session_is_changed() -> None:
    # For example `/autogroup-17 nice 0`; nothing where sessions are no groups, or for a process that is in none.
    before, fresh = said(SESSION, own_session=False), said(SESSION, own_session=True)
    own, shared = stepped_back(own_session=True), stepped_back(own_session=False)
    assert said(SESSION, own_session=False) == before
    # Where sessions are no groups, there is the niceness of the processes alone.
    assert own[2:] == (["nice", "10"] if fresh else [])
    assert shared[1:] == before
