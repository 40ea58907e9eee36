"""The names of the engine's statements."""

from __future__ import annotations

from queues.engine.statements import DIRECTORY
from queues.sqlfiles import statement_files

STATEMENTS = sorted(statement_files(DIRECTORY))
