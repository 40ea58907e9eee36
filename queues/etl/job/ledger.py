"""The record of what was done to an output: the one place that says what has been exported.

`_runs/000012.json` is record 12. It is written when everything it speaks of is in place, and the next run goes on from
the last one. A change to the output, a run's new files or a merging of old ones, goes like this:

1. all new files are written below `_staging/000012`, where no reader looks;
2. `_runs/000012.plan` says which file goes where, and which ones go away: from here on it will be done;
3. files are removed and moved; names come from the record's number, so a second time does what the first did;
4. `_runs/000012.json` is written, then plan and staging go.

A run begins with the remains of the one before. Without a plan its staging is deleted; with one the
plan is carried out. So a run that was killed anywhere is as if it had been whole, or had not been. No step needs more
of a file system than that a file appears whole; none needs to move a directory at once, which object stores cannot.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from queues.etl.errors import NewerOutput, OutputUnusable
from queues.etl.job.files import Files
from queues.etl.job.layout import AUDIT, LIVE, MESSAGES, RUNS, STAGING

#: Of the records and of the columns; see `schema.py`.
VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportState:
    """The state of the output, from which the next run goes on."""

    #: `pg_current_snapshot()` at the end of the last window, when that was, and in which server and database.
    snapshot: str
    at: str
    system: str
    database: str
    #: The token that the last run left in the database.
    token: str
    #: Per audit chain: the first seq that is not exported yet.
    audit: dict[str, int] = field(default_factory=dict)
    #: Per directory: the files that may be merged.
    small: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One change to the output. `kind` is `run` or `compaction`; `figures` is for people."""

    number: int
    kind: str
    state: ExportState
    #: Hours (UTC, ISO 8601) that got rows. Their rollups have to be computed.
    hours: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    version: int = VERSION

    def text(self) -> str:
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=1)

    @classmethod
    def parse(cls, text: str) -> Record:
        """Read a record back. Raises NewerOutput, or ValueError, KeyError or TypeError for another text."""
        given = json.loads(text)
        if given["version"] > VERSION:
            raise NewerOutput(f"version {given['version']}")
        return cls(**{**given, "state": ExportState(**given["state"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class MovePlan:
    """A planned change. `moves` are pairs of paths, from staging to the final place."""

    record: Record
    moves: list[tuple[str, str]]
    removals: list[str] = field(default_factory=list)

    def text(self) -> str:
        plan = {"record": json.loads(self.record.text()), "moves": self.moves, "removals": self.removals}
        return json.dumps(plan, ensure_ascii=False)

    @classmethod
    def parse(cls, text: str) -> MovePlan:
        given = json.loads(text)
        moves = [(source, target) for source, target in given["moves"]]
        return cls(record=Record.parse(json.dumps(given["record"])), moves=moves, removals=given["removals"])


Kind = TypeVar("Kind", Record, MovePlan)


def staging(number: int) -> str:
    """The directory in which a change is prepared."""
    return f"{STAGING}/{number:06d}"


class Ledger:
    """The records of one output. Its owner holds the output's lock."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.last: Record | None = None
        self._taken = 0

    def recover(self) -> bool:
        """Finish or undo what the last run left incomplete, and find the last record. True: a change was finished.

        Raises OutputUnusable when a record cannot be read.
        """
        plans = self._numbers("plan")
        records = self._numbers("json")
        for number in plans:
            if number not in records and self._carry_out(self._read(number, "plan", MovePlan)):
                records.append(number)
            self.files.remove(f"{RUNS}/{number:06d}.plan")
        self.files.remove(STAGING)
        self.last = self._read(max(records), "json", Record) if records else None
        if not records:
            self._taken = self._number_in_names()
        return bool(plans)

    def _number_in_names(self) -> int:
        """The highest number in file names without a record. Those files must not be replaced."""
        paths = (path for table in (MESSAGES, AUDIT, LIVE) for path, _ in self.files.walk(table))
        return max((int(found[1]) for path in paths if (found := re.search(r"(?:^|/)run-(\d+)-", path))), default=0)

    def _numbers(self, suffix: str) -> list[int]:
        names = self.files.names(RUNS)
        return [int(found[1]) for name in names if (found := re.fullmatch(rf"(\d{{6,}})\.{suffix}", name))]

    def _read(self, number: int, suffix: str, kind: type[Kind]) -> Kind:
        """A record or a plan. Raises OutputUnusable, NewerOutput."""
        path = f"{RUNS}/{number:06d}.{suffix}"
        try:
            return kind.parse(self.files.read(path))
        except (ValueError, KeyError, TypeError) as error:
            what = "record" if suffix == "json" else suffix
            raise OutputUnusable(f"{self.files.url(path)} is no {what} of a run") from error

    @property
    def newest(self) -> Record:
        """The last record, of an output that has one."""
        assert self.last is not None
        return self.last

    @property
    def next_number(self) -> int:
        return (self.last.number if self.last else self._taken) + 1

    def commit(self, plan: MovePlan) -> None:
        """Make a change. It is complete when this returns; if the process dies first, the next run completes it."""
        self.files.sync(source for source, _ in plan.moves)
        self.files.write(f"{RUNS}/{plan.record.number:06d}.plan", plan.text())
        if not self._carry_out(plan):
            raise OutputUnusable(f"files below {self.files.url(staging(plan.record.number))} have vanished")
        self.files.remove(f"{RUNS}/{plan.record.number:06d}.plan")
        self.files.remove(STAGING)
        self.last = plan.record

    def _carry_out(self, plan: MovePlan) -> bool:
        """Carry out a plan, possibly for the second time. False: files it needs are missing, and the plan was
        undone."""
        staged = {f"{staging(plan.record.number)}/{path}" for path, _ in self.files.walk(staging(plan.record.number))}
        done = [target for source, target in plan.moves if source not in staged]
        if not all(self.files.exists(target) for target in done):
            self.files.each(self.files.remove, (target for _, target in plan.moves))
            return False
        # Rows may be missing for a moment, but never doubled.
        self.files.each(self.files.remove, plan.removals)
        self.files.each(lambda move: self.files.move(*move), (move for move in plan.moves if move[0] in staged))
        self.files.sync(target for _, target in plan.moves)
        self.files.write(f"{RUNS}/{plan.record.number:06d}.json", plan.record.text())
        return True

    def earlier(self) -> Iterable[Record]:
        """All records, the newest first."""
        for number in sorted(self._numbers("json"), reverse=True):
            yield self._read(number, "json", Record)
