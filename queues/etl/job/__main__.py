"""The job as a process: ``python -m queues.etl.job CONFIG``. It ends with status 1 when it fails, and says why."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from queues.etl.errors import EtlError, SparkFailed
from queues.etl.job.class_archive import class_archive
from queues.etl.job.config import Config
from queues.etl.job.database import JobConnection
from queues.etl.job.failures import failures_named
from queues.etl.job.family import descendants
from queues.etl.job.pacing import others_are_busy, paced
from queues.etl.job.progress import ProgressFile
from queues.etl.job.session import session
from queues.etl.job.size import is_small
from queues.etl.job.stages import ExportJob

#: A large run gets the processor time that the broker leaves, but only after Spark has started: at low priority the
#: start alone takes minutes on a busy machine. A small run is mostly the start and keeps its priority.
NICENESS = 10
#: The file by which Linux shares the processors among sessions first; niceness counts only within one.
SESSION = Path("/proc/self/autogroup")


def step_back() -> None:
    """Lower the priority of this process, its children, and the session it leads."""
    for process in [psutil.Process(), *descendants(os.getpid())]:
        with suppress(psutil.Error, OSError):  # the process has ended, or belongs to another user
            for thread in process.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, NICENESS)  # of one thread, on Linux
    if os.getsid(0) == os.getpid() and SESSION.exists():
        with suppress(OSError):  # the system has no such groups, or allows no change
            SESSION.write_text(str(NICENESS))


def run(config: Config, progress: ProgressFile) -> None:
    """Connect, lock the output, start Spark, do the work. Raises EtlError."""
    with ExitStack() as stack:
        database = JobConnection(config.database)
        stack.callback(database.close)
        database.lock(config.output)
        end = database.snapshot()
        small = is_small(database, end, config)
        pace = stack.enter_context(paced(config.busy_percent if config.master.startswith("local") else 100))
        archive = stack.enter_context(class_archive(config))
        with progress.stage("starting Spark"):
            spark = stack.enter_context(session(config, archive.java_options if archive else "", small))
        if not small:
            pace()
            step_back()
        with failures_named():
            result = ExportJob(config, spark, database, progress, end).run()
        progress.tell(result=result)
        if archive is not None:
            used = result["tables"]["messages"]["rows_out"] > 0
            yields = config.busy_percent < 100
            archive.complete = used and not (small and yields and others_are_busy())


def main() -> None:
    config = Config.take(Path(sys.argv[1]))
    progress = ProgressFile(config.progress)
    try:
        run(config, progress)
    except EtlError as error:
        if not isinstance(error, SparkFailed):
            traceback.print_exc()
        progress.tell(error=str(error))
        sys.exit(1)
    except Exception as error:
        traceback.print_exc()
        text = str(error).strip().split("\n", 1)[0]
        progress.tell(error=f"{type(error).__name__}: {text}")
        sys.exit(1)


if __name__ == "__main__":
    main()
