"""Child processes that end when their parent ends, however that ends.

A parent that is killed cannot stop its children. Each child therefore polls for its parent: once the parent has
changed, the child sends itself SIGTERM and ends in order. :func:`command` is the command line of such a child; this
file is what it runs: ``python childprocess.py PARENT_PID FILE_OR_MODULE ARGUMENT…``.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

#: The directory that holds the packages: the checkout, or site-packages.
PACKAGES: Final = Path(__file__).resolve().parents[2]

#: Seconds between two looks at the parent.
POLL_SECONDS = 0.5

#: Seconds that an orphan has to end after SIGTERM before it ends by force.
GRACE_SECONDS = 15.0


def command(program: str, *arguments: str) -> list[str]:
    """The command line of a child of this process. `program` is a module's name or the path of a Python file.

    A module beside this package is found from every working directory.
    """
    return [sys.executable, __file__, str(os.getpid()), program, *arguments]


def own_program() -> str:
    """The program that this process runs, as :func:`command` takes it: a module's name or the path of a file."""
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec is not None else os.path.abspath(sys.argv[0])


def end_with_parent(parent: int) -> None:
    """Wait until `parent` is no longer the parent of this process, then end this process."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os._exit(1)


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=end_with_parent, args=(parent,), name="end-with-parent", daemon=True).start()
    sys.argv = sys.argv[2:]
    if os.path.isabs(program) or program.endswith(".py"):
        sys.path[:1] = [os.path.dirname(os.path.abspath(program)), str(PACKAGES)]
        runpy.run_path(program, run_name="__main__")
    else:
        sys.path[0] = str(PACKAGES)
        runpy.run_module(program, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
