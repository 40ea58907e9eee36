"""The files of a run beside its output: its log; and temporary ones, in a directory that is gone after the run."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from queues.config.settings import settings

PREFIX = "fivewire-etl-run-"
#: Seconds within which a new directory may not have its holder yet.
FRESH = 60.0


def logs() -> Path:
    """The directory of the runs' logs, which is no part of an output."""
    return settings.DATA_DIR / "etl-logs"


def is_log(path: Path) -> bool:
    """Whether this is a run's log on this machine. Earlier versions kept logs in the default output."""
    return path.is_relative_to(logs()) or path.is_relative_to(settings.DATA_DIR / "etl" / "logs")


@contextmanager
def workspace() -> Iterator[tuple[Path, int]]:
    """A new private directory and a descriptor that holds it.

    A process that inherits the descriptor holds the directory too. It is removed with this context; that of a killed
    process is removed by the end of a later run, once it has no holder.
    """
    path = Path(tempfile.mkdtemp(prefix=PREFIX))
    holder = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(holder, fcntl.LOCK_EX)
        yield path, holder
    finally:
        os.close(holder)
        shutil.rmtree(path, ignore_errors=True)
        _remove_left()


def _remove_left() -> None:
    """Remove directories that killed runs of this user have left."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, held, or just removed by another process
            holder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                found = os.stat(holder)
                if found.st_uid == os.geteuid() and time.time() - found.st_mtime > FRESH:
                    fcntl.flock(holder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(holder)
