"""Whether the output has what the archive has: by day and queue, and where that differs by id."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from queues.database.parameters import connection_parameters
from queues.database.sql_files import statements
from queues.etl.options import RunOptions, config_for
from queues.processes import childprocess
from tests.rigs.etl_soak.errors import SoakBroken

_sql = statements(Path(__file__).with_name("sql"))

READING = "tests.rigs.etl_soak.reading"
#: Seconds that reading all Parquet may take; and ids that are named of each day and queue that differs.
LONGEST, NAMED = 900.0, 10


Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of one day and queue, different ids among them, and a checksum over id, outcome, attempts, times, size."""

    rows: int
    ids: int
    checksum: str

    def __str__(self) -> str:
        return f"{self.rows} rows, {self.ids} ids, checksum {self.checksum}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both sides by day and queue, and sentences about those that differ."""

    archive: Mapping[Key, Group]
    output: Mapping[Key, Group]
    differences: tuple[str, ...]

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.archive.values())


def compare(alias: str, output: Path, directory: Path, environment: Mapping[str, str]) -> Comparison:
    """Read both sides whole. Raises SoakBroken when the output cannot be read."""
    with psycopg.connect(**connection_parameters(alias), autocommit=True) as connection:
        archive = _groups(connection.execute(_sql("groups")).fetchall())
        found = _groups(_ask(None, alias, output, directory, environment))
        differing = sorted(key for key in archive.keys() | found.keys() if archive.get(key) != found.get(key))
        there = {}
        if differing:
            answers = _ask([list(key) for key in differing], alias, output, directory, environment)
            there = {(day, queue): ids for day, queue, ids in answers}
        told: list[str] = []
        for key in differing:
            told += _tell(key, archive.get(key), found.get(key))
            here = [row[0] for row in connection.execute(_sql("ids"), {"day": key[0], "queue": key[1]})]
            told += _name(here, there[key])
    told += [f"{day} {queue}: rows are there twice" for (day, queue), group in found.items() if group.ids < group.rows]
    return Comparison(archive, found, tuple(told))


def _groups(rows: list[Any]) -> dict[Key, Group]:
    return {(day, queue): Group(int(count), int(ids), checksum) for day, queue, count, ids, checksum in rows}


def _tell(key: Key, archive: Group | None, output: Group | None) -> Iterator[str]:
    nothing = Group(0, 0, "0")
    yield f"{key[0]} {key[1]}: {archive or nothing} by SQL; {output or nothing} in the output"


def _name(archive: list[int], output: list[int]) -> Iterator[str]:
    """Ids that one side has more often than the other."""
    here, there = Counter(archive), Counter(output)
    for text, ids in (("missing", here - there), ("too many", there - here)):
        if ids:
            yield f"  {text}: {ids.total()} rows, among them {', '.join(map(str, sorted(ids)[:NAMED]))}"


def _ask(
    question: list[list[str]] | None, alias: str, output: Path, directory: Path, environment: Mapping[str, str]
) -> list[Any]:
    """The answer of a process that has nothing but the output."""
    path = directory / "reading.json"
    given = config_for(0, str(output), RunOptions(bodies="none", body_schema=""), directory / "none", alias)
    path.write_text(dataclasses.replace(given, database={}, progress="").text())
    command = childprocess.command(READING, str(path), json.dumps(question))
    done = subprocess.run(
        command, env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=LONGEST, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SoakBroken(f"the output could not be read: {done.stderr.strip().splitlines()[-1:]}")
    found: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
