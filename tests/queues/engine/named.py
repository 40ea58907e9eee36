"""The names of the engine's statements."""

from __future__ import annotations

from queues.engine.statements import DIRECTORY

STATEMENTS = sorted(path.stem for path in DIRECTORY.glob("*.sql"))
