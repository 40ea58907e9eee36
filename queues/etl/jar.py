"""Finds the JDBC driver's jar on this machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

#: Where build tools and distributions put it. The newest version in the first directory that has one is used.
PLACES = (
    "~/.m2/repository/org/postgresql/postgresql/*/postgresql-*.jar",
    "~/.ivy2.5.2/jars/org.postgresql_postgresql-*.jar",
    "~/.ivy2/jars/org.postgresql_postgresql-*.jar",
    "/usr/share/java/postgresql.jar",
    "/usr/share/java/postgresql-jdbc.jar",
    "/usr/share/java/postgresql-*.jar",
)
OLDEST = (42, 2)


def driver_jar(given: Path | None, places: Iterable[str] = PLACES) -> Path | None:
    """The jar that the setting names, or one in a known directory. None: Spark fetches it from Maven."""
    if given is not None:
        return given
    home = os.environ.get("SPARK_HOME")
    for place in [*([f"{home}/jars/postgresql-*.jar"] if home else []), *places]:
        path = Path(place).expanduser()
        parts = path.parts
        found = Path(parts[0]).glob(str(Path(*parts[1:])))
        usable = [jar for jar in found if jar.is_file() and version(jar) >= OLDEST]
        if usable:
            return max(usable, key=version)
    return None


def version(jar: Path) -> tuple[int, ...]:
    """The version in a file's name. A name without one is the distribution's current version."""
    match = re.search(r"-(\d+(?:\.\d+)*)(?:\.jre\d+)?\.jar$", jar.resolve().name)
    return tuple(map(int, match[1].split("."))) if match else OLDEST
