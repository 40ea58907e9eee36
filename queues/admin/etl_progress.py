"""The progress of an ETL run, in stages, and the end of its log."""

from __future__ import annotations

import socket
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from queues.etl.workspace import is_log
from queues.formats.times import duration
from queues.models import EtlRun, EtlState

#: The stages of a run, in order; one that has nothing to do may be left out.
STAGES = (
    "starting Spark", "recovering", "messages", "audit rows", "live messages", "committing", "rollups", "verifying",
    "compacting",
)  # fmt: skip
#: Of a log, at most.
LOG_LINES, LOG_BYTES = 30, 16_384
#: Seconds without progress after which the page asks whether a worker runs.
LONG_WAIT = 20.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: `mark` is done, now or waiting."""

    name: str
    mark: str
    words: str


@dataclass(frozen=True, slots=True)
class RunProgress:
    """A run's progress, for its page and its line in the list; `percent` is that of the stage, None if not known."""

    words: str
    percent: int | None
    finished: bool
    stages: list[Stage]
    log: str = ""


def progress_of(run: EtlRun, log: bool = False) -> RunProgress:
    """The progress of a run; with the end of its log if that is asked for."""
    percent = min(100, 100 * run.done // run.total) if run.total else None
    if run.state == EtlState.SUCCEEDED:
        percent = 100
    return RunProgress(_words(run), percent, run.is_finished, _stages(run), log_tail(run) if log else "")


def run_seconds(run: EtlRun) -> float | None:
    """The duration of a run, until now if it has not ended."""
    if run.started_at is None:
        return None
    seconds: float = (run.ended_at or datetime.now(UTC)).timestamp() - run.started_at.timestamp()
    return max(0.0, seconds)


def in_order(stages: Collection[str]) -> list[str]:
    """Stages in the order of a run; what the database keeps has none."""
    return [*(name for name in STAGES if name in stages), *(name for name in stages if name not in STAGES)]


def _words(run: EtlRun) -> str:
    if run.state == EtlState.QUEUED:
        waited = (datetime.now(UTC) - run.queued_at).total_seconds()
        hint = f" for {duration(waited)}. Does a Celery worker run?" if waited > LONG_WAIT else ""
        return f"waits for a worker{hint}"
    if run.state == EtlState.RUNNING:
        return "is being cancelled" if run.cancelling else _stage_words(run)
    return str(run.get_state_display())


def _stage_words(run: EtlRun) -> str:
    if not run.stage:
        return "is being started"
    if run.total:
        return f"{run.stage}: {run.done:,} of about {run.total:,} rows"
    return f"{run.stage}: {run.done:,} rows" if run.done else run.stage


def _stages(run: EtlRun) -> list[Stage]:
    taken = run.figures.get("seconds", {})
    if run.state == EtlState.SUCCEEDED:
        return [Stage(name, "done", f"{taken[name]:.1f} s") for name in in_order(taken)]
    place = STAGES.index(run.stage) if run.stage in STAGES else -1
    stages = []
    for n, name in enumerate(STAGES):
        mark = "done" if n < place else "now" if n == place and not run.is_finished else "waiting"
        words = _stage_words(run).removeprefix(f"{name}: ").removeprefix(name) if n == place else ""
        if n == place and run.is_finished:
            words = "ended here"
        stages.append(Stage(name, mark, words))
    return stages


def log_tail(run: EtlRun) -> str:
    """The last lines of a run's log, or where it is."""
    if not run.log:
        return ""
    path = Path(run.log)
    if run.host != socket.gethostname() or not is_log(path):
        return f"It is on {run.host}: {run.log}"
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - LOG_BYTES))
            text = stream.read().decode(errors="replace")
    except OSError as error:
        return f"{run.log}: {error.strerror or error}"
    return "\n".join(text.splitlines()[-LOG_LINES:])
