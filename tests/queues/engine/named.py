"""The names of the engine's statements."""

from __future__ import annotations

from queues.database.sql_files import statement_files
from queues.engine.statements import DIRECTORY

STATEMENTS = sorted(statement_files(DIRECTORY))
