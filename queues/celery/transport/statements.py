"""The transport's SQL under sql/; it also uses statements of `queues` and of the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queues.engine.statements import DIRECTORY as ENGINE_DIRECTORY
from queues.sqlfiles import statements

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY, DIRECTORY.parents[2] / "sql", ENGINE_DIRECTORY)
