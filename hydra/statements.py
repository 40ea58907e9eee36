"""Hydra's SQL: one file a statement under sql/, named for what it does, read once."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parent / "sql"


@cache
def statement(name: str) -> str:
    """The text of sql/NAME.sql without its comments, which need not travel."""
    lines = (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8").splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith("--"))


def names() -> list[str]:
    """Every statement there is."""
    return sorted(path.stem for path in DIRECTORY.glob("*.sql"))
