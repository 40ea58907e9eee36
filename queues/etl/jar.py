"""The JDBC driver: a file that is here already, if there is one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

#: Directories of build tools and distributions. The newest version of the first place that has one is taken.
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
    """The file that the setting names, or one in a known place; None: Spark has to fetch it from Maven."""
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
    """The version in a file's name; a name without one is whatever the distribution has now."""
    match = re.search(r"-(\d+(?:\.\d+)*)(?:\.jre\d+)?\.jar$", jar.resolve().name)
    return tuple(map(int, match[1].split("."))) if match else OLDEST
