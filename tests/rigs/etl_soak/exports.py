"""Runs as an operator's are: processes that look after processes. Some are killed, all of them at once."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from time import monotonic, sleep

import psutil

from brokersite.rigs.process import RigProcess
from queues.etl import runs
from queues.etl.job.layout import MESSAGES, RUNS, STAGING
from queues.etl.options import RunOptions
from queues.etl.workspace import PREFIX
from queues.models import EtlRun, EtlState
from queues.processes import childprocess
from tests.rigs.etl_soak.errors import SoakBroken

RUNNER = "queues.etl.runner"
#: Seconds that a run may take, and between two looks at one that is to be killed.
LONGEST, LOOK = 1200.0, 0.002
#: Seconds that a kill comes after its stage was seen, at most: so it hits other places in it.
LATER = {"reading": 0.5, "writing": 0.5, "moving": 0.1, "recording": 0.01, "rolling up": 0.5}


class KillStage(StrEnum):
    """The stage in which a run is killed."""

    READING = "reading"
    WRITING = "writing"
    MOVING = "moving"
    RECORDING = "recording"
    ROLLING_UP = "rolling up"


class Exports:
    """Begins runs into one output, and follows each to its end."""

    def __init__(
        self, alias: str, output: Path, directory: Path, environment: Mapping[str, str], chance: random.Random
    ) -> None:
        self.output = output
        self._alias = alias
        self._environment = dict(environment)
        self._temporary = Path(environment["TMPDIR"])
        self._directory = directory
        self._chance = chance

    def whole(self, meanwhile: Callable[[Callable[[], bool]], None] = lambda goes_on: None) -> EtlRun:
        """A run, to its end. Raises SoakBroken or ProcessFailed when it does not succeed.

        `meanwhile` is called while it goes on, and may ask whether it does.
        """
        made, process = self._start()
        try:
            meanwhile(lambda: process.status is None)
            process.wait(LONGEST)
        finally:
            _kill(process)
        made.refresh_from_db()
        if made.state != EtlState.SUCCEEDED:
            raise SoakBroken(f"run {made.pk} has {made.state}: {made.error}")
        return made

    def killed(self, stage: KillStage) -> str:
        """A run that is killed when it is in this stage; says what it left. Raises SoakBroken when it ends before."""
        seen = self._sight(stage)
        made, process = self._start()
        try:
            deadline = monotonic() + LONGEST
            while not seen():
                if process.status is not None or monotonic() > deadline:
                    raise SoakBroken(f"run {made.pk} was to be killed {stage}, and was never seen there")
                sleep(LOOK)
            sleep(self._chance.random() * LATER[stage])
        finally:
            _kill(process)
        return f"run {made.pk} was killed {stage}: {self._left()}"

    def _start(self) -> tuple[EtlRun, RigProcess]:
        made = runs.create(RunOptions(), trigger="soak", output=str(self.output), using=self._alias)
        command = childprocess.command(RUNNER, str(made.pk))
        return made, RigProcess(f"run {made.pk}", command, self._directory / "runs.log", self._environment)

    def _sight(self, stage: KillStage) -> Callable[[], bool]:
        """The signs that the next run is in this stage: its news, and its changes of the output."""
        output, before = self.output, set(self._temporary.glob(f"{PREFIX}*/progress"))
        records = set((output / RUNS).glob("*.json"))
        sights: dict[KillStage, tuple[str, Callable[[], bool]]] = {
            KillStage.READING: (MESSAGES, lambda: True),
            KillStage.WRITING: (MESSAGES, lambda: any((output / STAGING).glob(f"*/{MESSAGES}/**/*.parquet"))),
            KillStage.MOVING: ("committing", lambda: any((output / RUNS).glob("*.plan"))),
            KillStage.RECORDING: ("committing", lambda: bool(set((output / RUNS).glob("*.json")) - records)),
            KillStage.ROLLING_UP: ("rollups", lambda: True),
        }
        name, done = sights[stage]
        return lambda: name in self._said(before) and done()

    def _said(self, before: set[Path]) -> set[str]:
        """The stages that the run has told of."""
        said: set[str] = set()
        for path in set(self._temporary.glob(f"{PREFIX}*/progress")) - before:
            with suppress(FileNotFoundError, ValueError):
                said |= {json.loads(line).get("stage", "") for line in path.read_text().splitlines()}
        return said

    def _left(self) -> str:
        """The incomplete parts of the output."""
        plans = sorted((self.output / RUNS).glob("*.plan"))
        staged = len(list((self.output / STAGING).glob("*/*/**/*.parquet")))
        if not plans:
            return f"{staged} files staged, no plan"
        recorded = plans[0].with_suffix(".json").exists()
        try:
            moves = len(json.loads(plans[0].read_text())["moves"])
        except ValueError:
            return "a plan that cannot be read"
        return f"a plan, {moves - staged} of {moves} files moved, {'recorded' if recorded else 'no record'}"


def _kill(process: RigProcess) -> None:
    """End a run's processes, if there are any left, by force and all in one moment."""
    family: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        leader = psutil.Process(process.pid)
        leader.suspend()  # it starts no other now
        family = [leader, *leader.children(recursive=True)]
    for sign in (signal.SIGSTOP, signal.SIGKILL):
        for member in family:
            with suppress(psutil.NoSuchProcess):
                member.send_signal(sign)
    psutil.wait_procs(family[1:], 20.0)
    process.kill()
