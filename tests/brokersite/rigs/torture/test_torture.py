"""`manage.py torture`: its options, what it prints, its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from brokersite.environment import CHECKOUT
from brokersite.management.commands import torture
from brokersite.rigs.torture.checker import BrokenPromise
from brokersite.rigs.torture.history import InjectedFault, InjectedFaultKind, RunHistory, Store
from brokersite.rigs.torture.runner import TorturePlan, TortureReport

NOTHING = [f"--{name}=0" for name in ("kills", "database-kills", "cuts", "freezes", "stops")]


@pytest.mark.timeout(300)
@pytest.mark.long
def test_a_short_run_passes_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "torture", *NOTHING, "--kills=2", "--seed=7"],
        cwd=CHECKOUT,
        env={**os.environ, "TMPDIR": str(tmp_path), "DATABASE_URL": "postgresql://127.0.0.1:1/none"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[-1]) == (0, "passed"), done.stdout
    assert lines[0].startswith("seed 7, data in ")
    figures = dict(line.rsplit(maxsplit=1) for line in lines if ":  " in line)
    assert figures["kill -9 of a listener:"] == "2"
    assert int(figures["confirmed:"]) > 0
    assert [path for path in tmp_path.iterdir() if "fivewire-ports" not in path.name] == []


class FakeDatabase:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def start(self) -> None:
        (self.data_dir / "kept").touch()

    def stop(self) -> None:
        (self.data_dir / "stopped").touch()

    def remove(self) -> None:
        (self.data_dir / "kept").unlink()
        self.data_dir.rmdir()


class FakeRun:
    """A run that finds what it is told to."""

    violations: list[BrokenPromise] = []
    plans: list[TorturePlan] = []

    def __init__(self, database: FakeDatabase, plan: TorturePlan, say: object) -> None:
        self.plans.append(plan)

    def run(self) -> TortureReport:
        history = RunHistory(faults=[InjectedFault(InjectedFaultKind.KILL, 1.0, 2.0, 0)])
        return TortureReport(self.violations, history, Store(), 12.3)


@pytest.fixture
def data_dirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The parent of data directories that are made, by a command that runs nothing."""
    monkeypatch.setattr(torture, "TortureDatabase", FakeDatabase)
    monkeypatch.setattr(torture, "Run", FakeRun)
    monkeypatch.setattr(FakeRun, "plans", [])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_broken_promise_is_exit_code_1_and_the_data_is_kept(
    data_dirs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FakeRun, "violations", [BrokenPromise("lost", "q", ("p/1",))])
    with pytest.raises(SystemExit, match="1"):
        call_command("torture")
    printed = capsys.readouterr().out
    assert "VIOLATED: lost in q: 1 (p/1)\nFAILED\nkept: " in printed
    (data_dir,) = data_dirs.iterdir()
    assert (data_dir / "stopped").exists()


def test_all_promises_kept_leaves_no_data_unless_asked_to(data_dirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("torture")
    assert list(data_dirs.iterdir()) == []
    call_command("torture", "--keep")
    assert len(list(data_dirs.iterdir())) == 1
    assert capsys.readouterr().out.count("passed\n") == 2


def test_the_options_are_the_plan(data_dirs: Path) -> None:
    call_command("torture", "--kills=1", "--database-kills=2", "--cuts=3", "--freezes=4", "--stops=5",
                 "--seconds=6", "--seed=7", "--listeners=8")  # fmt: skip
    faults = {
        InjectedFaultKind.KILL: 1,
        InjectedFaultKind.DATABASE_KILL: 2,
        InjectedFaultKind.CUT: 3,
        InjectedFaultKind.FREEZE: 4,
        InjectedFaultKind.STOP: 5,
    }
    assert FakeRun.plans == [TorturePlan(seed=7, faults=faults, seconds=6.0, listeners=8)]


@pytest.mark.parametrize("option", ["--kills=-1", "--seconds=0", "--listeners=0"])
def test_an_option_that_makes_no_sense_is_refused(data_dirs: Path, option: str) -> None:
    with pytest.raises(CommandError, match="must be"):
        call_command("torture", option)
    assert FakeRun.plans == []
