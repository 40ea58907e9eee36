"""Hydra's SQL: one file a statement in `sql/`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from queues.sqlfiles import statements

DIRECTORY: Final = Path(__file__).parent / "sql"

statement = statements(DIRECTORY)
