"""The processes of a job: its descendants, and its session's members that outlive it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

import psutil

#: Repeated looks for processes that started meanwhile.
ROUNDS = 20


def descendants(parent: int) -> list[psutil.Process]:
    """The descendants of a process, without the current process."""
    try:
        return [one for one in psutil.Process(parent).children(recursive=True) if one.pid != os.getpid()]
    except psutil.NoSuchProcess:
        return []


def members(session: int) -> list[psutil.Process]:
    """The processes of a session, without the current process."""
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if pid != os.getpid() and os.getsid(pid) == session:
                found.append(psutil.Process(pid))
    return found


def kill(session: int, known: Iterable[psutil.Process] = ()) -> None:
    """End the other processes of a session, what its leader has started, and some that are known, at once.

    Java is not asked to end: it would first archive its classes.
    """
    for _ in range(ROUNDS):
        everyone = {*known, *descendants(session), *members(session)}
        if not (family := [one for one in everyone if _is_alive(one)]):
            return
        for process in family:
            with suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(family, timeout=1.0)


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False
