"""Run a program that ends when its parent does: ``python tied.py PARENT_PID FILE_OR_MODULE ARGUMENT…``.

A supervisor that is killed cannot stop its children. Each of them therefore watches for itself: once its
parent is another process than the one that started it, it sends itself SIGTERM, and ends as if asked to.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time

POLL_SECONDS = 0.5

#: An orphan that has not ended on SIGTERM after this long is ended by force.
GRACE_SECONDS = 15.0


def end_with_parent(parent: int) -> None:
    """Return when ``parent`` is no longer the parent of this process, having asked this process to end."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=end_with_parent, args=(parent,), name="end-with-parent", daemon=True).start()
    sys.argv = sys.argv[2:]
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if program.endswith(".py"):
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
