"""Supervises one run: the Spark job as a child process, its progress, its time limit.

``python -m queues.etl.runner RUN`` is a process that does this for a started run (`queues.etl.runs`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import IO, Any

import django

from queues.config.settings import settings
from queues.etl.errors import JobDied, TimedOut
from queues.etl.job.family import kill
from queues.etl.workspace import logs, workspace
from queues.processes import childprocess

#: The module that the child process runs.
JOB = "queues.etl.job"
#: Seconds between two looks at the job.
LOOK_EVERY = 0.1
#: Environment variables passed on to Spark, Java, Python, libpq and clients of file systems.
PASSED_ON = frozenset({
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TERM", "LD_LIBRARY_PATH", "JAVA_HOME",
    "JAVA_TOOL_OPTIONS", "VIRTUAL_ENV", "KRB5CCNAME", "KRB5_CONFIG", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
    "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "GOOGLE_APPLICATION_CREDENTIALS",
})  # fmt: skip
PASSED_ON_PREFIXES = ("LC_", "PG", "SPARK_", "PYSPARK_", "HADOOP_", "YARN_", "AWS_", "AZURE_")
#: Characters of the log's end shown when a job dies without an error.
TAIL = 2000


def supervise(run_id: int, show: Callable[[str, int, int], None] | None = None) -> None:
    """Run a queued run to its end and show its progress. Its row has the result."""
    from queues.etl.run_supervisor import Cancelled, RunSupervisor
    from queues.models import EtlState

    supervisor = RunSupervisor.take(run_id)
    if supervisor is None:
        return
    supervisor.show = show
    try:
        with job_process(run_id, supervisor.config_text) as job:
            supervisor.set(log=str(job.log))
            outcome = follow(job, supervisor.take_line, supervisor.look)
        supervisor.conclude(outcome)
    except Cancelled:
        supervisor.end(EtlState.CANCELLED)
    except (TimedOut, JobDied) as error:
        supervisor.end(EtlState.FAILED, error=str(error))
    except KeyboardInterrupt:
        supervisor.end(EtlState.CANCELLED)
        raise
    except Exception as error:
        supervisor.end(EtlState.FAILED, error=f"{type(error).__name__}: {error}")
        raise


class JobProcess:
    """The child process, and the lines that it writes."""

    def __init__(self, process: subprocess.Popen[bytes], progress: IO[str], log: Path) -> None:
        self._process = process
        self._progress = progress
        self._rest = ""
        self.log = log

    def lines(self) -> Iterator[dict[str, Any]]:
        """The job's news since the last call."""
        text = self._rest + self._progress.read()
        *whole, self._rest = text.split("\n")
        for line in whole:
            yield json.loads(line)

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    @property
    def last_words(self) -> str:
        """The last line of its log that is not empty."""
        with open(self.log, "rb") as stream:
            stream.seek(max(0, self.log.stat().st_size - TAIL))
            lines = stream.read().decode(errors="replace").strip().splitlines()
        return lines[-1].strip() if lines else ""

    def end(self) -> None:
        """End it and all that it has started."""
        kill(self._process.pid)
        self._process.wait()


@contextmanager
def job_process(run_id: int, config_text: Any) -> Iterator[JobProcess]:
    """A run's job, which ends with the context. `config_text` makes the configuration for a progress file."""
    log = logs() / f"{run_id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.parent.chmod(0o700)  # Spark's log may have contents of messages
    with workspace() as (directory, holder):
        config, told = directory / "config.json", directory / "progress"
        told.touch()
        config.touch(mode=0o600)
        config.write_text(config_text(told))
        with open(log, "ab", opener=_private) as output, open(told) as progress:
            job = JobProcess(_launch(config, output, holder), progress, log)
            try:
                yield job
            finally:
                job.end()


def _launch(config: Path, output: IO[bytes], holder: int) -> subprocess.Popen[bytes]:
    """Start the job in a session of its own. It ends when this process does, however that ends."""
    environment = {name: value for name, value in os.environ.items() if is_passed_on(name)}
    environment |= {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(childprocess.PACKAGES), "TMPDIR": str(config.parent)}
    if settings.SPARK_MASTER.startswith("local"):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return subprocess.Popen(
        childprocess.command(JOB, str(config)),
        cwd=childprocess.PACKAGES, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
        start_new_session=True, pass_fds=(holder,), umask=settings.BROKER_ETL_UMASK,
    )  # fmt: skip


def is_passed_on(name: str) -> bool:
    """Whether the job has this variable of the environment: no secret of the broker's is among them."""
    passed_on = name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES) or name in settings.BROKER_ETL_ENVIRONMENT
    return passed_on and name != "PGPASSWORD"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def follow(
    job: JobProcess, tell: Callable[[dict[str, Any]], None] = lambda line: None, look: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Pass on the job's progress until it ends, and call `look` meanwhile, which may raise. Returns its `result` or its
    `error`. Raises JobDied."""
    outcome: dict[str, Any] = {}
    while True:
        status = job.status  # asked before reading: an ended process has written all its lines
        for line in job.lines():
            tell(line)
            outcome |= {name: line[name] for name in ("result", "error") if name in line}
        if status is not None:
            break
        look()
        sleep(LOOK_EVERY)
    if not outcome:
        raise JobDied(f"status {status}; its log ends with: {job.last_words}")
    return outcome


def main() -> None:
    django.setup()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        supervise(int(sys.argv[1]))
    except KeyboardInterrupt:
        sys.exit(1)


if __name__ == "__main__":
    main()
