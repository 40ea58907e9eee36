"""The job's configuration file. Only its owner can read it, because it has the database's password."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BODIES = ("none", "raw", "json")
VERIFY = ("all", "none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One run. Sizes are bytes; `database` is what `psycopg.connect` takes.

    `classes`: the directory for the archive of Java's classes; empty: there is none. `previous`: the snapshot at the
    end of the last run into this output that succeeded, as far as the broker knows; empty: none.
    """

    run: int
    output: str
    master: str
    database: dict[str, str]
    jar: str | None
    driver_memory: int
    executor_memory: int
    readers: int
    archive_days: int
    compact_files: int
    bodies: str = "none"
    body_schema: str = ""
    since: str | None = None
    verify: str = "all"
    busy_percent: int = 100
    progress: str = ""
    classes: str = ""
    previous: str = ""

    def text(self) -> str:
        """The text of the file."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def take(cls, path: Path) -> Config:
        """Read the file and remove it, because it has the password."""
        given: dict[str, Any] = json.loads(path.read_text())
        path.unlink()
        return cls(**given)
