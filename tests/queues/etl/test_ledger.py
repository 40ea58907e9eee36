"""The record of runs, killed at every step: a change is whole after the next start, or had not been."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import pytest

from queues.etl.errors import NewerOutput, OutputUnusable
from queues.etl.job.files import Files
from queues.etl.job.ledger import ExportState, Ledger, MovePlan, Record, staging


class Killed(BaseException):
    """The process died here."""


class Memory:
    """A file system in memory, of a process that dies after so many changes; `moves_by_copy` as object stores move."""

    def __init__(self, moves_by_copy: bool = False) -> None:
        self.contents: dict[str, str] = {}
        self.moves_by_copy = moves_by_copy
        self.life: int | None = None
        self.changes = 0

    def _change(self) -> None:
        if self.life is not None and self.changes >= self.life:
            raise Killed
        self.changes += 1

    def url(self, path: str) -> str:
        return f"memory:/{path}"

    def exists(self, path: str) -> bool:
        return any(name == path or name.startswith(f"{path}/") for name in self.contents)

    def names(self, path: str) -> list[str]:
        return sorted({name[len(path) + 1 :].split("/")[0] for name in self.contents if name.startswith(f"{path}/")})

    def walk(self, path: str) -> list[tuple[str, int]]:
        below = [name for name in self.contents if name.startswith(f"{path}/")]
        return [(name[len(path) + 1 :], len(self.contents[name])) for name in below]

    def read(self, path: str) -> str:
        return self.contents[path]

    def write(self, path: str, text: str) -> None:
        self._change()
        self.contents[path] = text

    def move(self, source: str, target: str) -> None:
        self._change()
        self.contents[target] = self.contents[source]
        if self.moves_by_copy:
            self._change()
        del self.contents[source]

    def remove(self, path: str) -> None:
        for name in [name for name in self.contents if name == path or name.startswith(f"{path}/")]:
            self._change()
            del self.contents[name]

    def each(self, action: Callable[[Any], None], items: Iterable[Any]) -> None:
        for item in items:
            action(item)

    def sync(self, paths: Iterable[str]) -> None:
        for path in paths:
            assert self.exists(path)

    @property
    def data(self) -> dict[str, str]:
        return {name: text for name, text in self.contents.items() if not name.startswith("_")}


def state(snapshot: str) -> ExportState:
    return ExportState(snapshot=snapshot, at="2026-11-22T00:00:00+00:00", system="1", database="2", token="t")


def ledger(files: Memory) -> Ledger:
    return Ledger(cast(Files, files))


def change(made: Ledger, snapshot: str, new: dict[str, str], old: Iterable[str] = ()) -> None:
    """Stage files and commit them, as a run does."""
    files = cast(Memory, made.files)
    number = made.next_number
    for name, text in new.items():
        files.write(f"{staging(number)}/{name}", text)
    record = Record(number=number, kind="run", state=state(snapshot), files=list(new))
    moves = [(f"{staging(number)}/{name}", name) for name in new]
    made.commit(MovePlan(record=record, moves=moves, removals=list(old)))


def before_and_after(moves_by_copy: bool) -> tuple[Memory, dict[str, str], dict[str, str]]:
    files = Memory(moves_by_copy)
    first = ledger(files)
    first.recover()
    change(first, "1:1:", {"m/a": "1", "m/b": "2", "l/x": "old"})
    was = dict(files.data)
    return files, was, {"m/a": "1", "m/c": "3", "m/d": "4", "l/y": "new"}


@pytest.mark.parametrize("moves_by_copy", [False, True])
def test_a_change_that_is_cut_off_anywhere_is_whole_or_nothing_after_the_next_start(moves_by_copy: bool) -> None:
    outcomes = set()
    for life in range(200):
        files, was, will_be = before_and_after(moves_by_copy)
        dying = ledger(files)
        dying.recover()
        files.life, files.changes = life, 0
        try:
            change(dying, "2:2:", {"m/c": "3", "m/d": "4", "l/y": "new"}, old=["m/b", "l/x"])
        except Killed:
            survived = False
        else:
            survived = True
        files.life = None
        again = ledger(files)
        again.recover()
        assert again.last is not None
        done = again.last.state.snapshot == "2:2:"
        assert files.data == (will_be if done else was), life
        assert not files.names("_staging")
        assert all(name.endswith(".json") for name in files.names("_runs"))
        outcomes.add(done)
        if survived:
            assert done
            break
    assert outcomes == {True, False}
    assert survived


def test_a_recovery_that_is_cut_off_anywhere_is_completed_by_the_next() -> None:
    for life in range(50):
        files, _, will_be = before_and_after(True)
        dying = ledger(files)
        dying.recover()
        files.life, files.changes = 6, 0  # in the middle of its moves
        with pytest.raises(Killed):
            change(dying, "2:2:", {"m/c": "3", "m/d": "4", "l/y": "new"}, old=["m/b", "l/x"])
        files.life, files.changes = life, 0
        try:
            ledger(files).recover()
        except Killed:
            survived = False
        else:
            survived = True
        files.life = None
        ledger(files).recover()
        assert files.data == will_be
        if survived:
            assert life > 3
            return
    raise AssertionError("it never came to an end")


def test_a_change_whose_staged_files_are_gone_is_undone() -> None:
    files, was, _ = before_and_after(False)
    dying = ledger(files)
    dying.recover()
    files.life, files.changes = 4, 0  # the plan is written, nothing is moved
    with pytest.raises(Killed):
        change(dying, "2:2:", {"m/c": "3", "m/d": "4", "l/y": "new"})
    files.life = None
    files.remove(f"{staging(2)}/m/d")
    again = ledger(files)
    again.recover()
    assert again.last is not None
    assert (again.last.number, files.data) == (1, was)


def test_a_record_that_cannot_be_read_stops_everything() -> None:
    files, _, _ = before_and_after(False)
    files.contents["_runs/000001.json"] = "{"
    with pytest.raises(OutputUnusable, match=r"000001\.json is no record"):
        ledger(files).recover()


def test_an_output_of_a_newer_version_is_left_alone() -> None:
    files, _, _ = before_and_after(False)
    text = files.contents["_runs/000001.json"]
    files.contents["_runs/000001.json"] = text.replace('"version": 1', '"version": 2')
    with pytest.raises(NewerOutput):
        ledger(files).recover()
