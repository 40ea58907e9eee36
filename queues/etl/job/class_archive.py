"""An archive of Java's classes, which one run leaves for those after it.

A run loads some fifteen thousand classes, most of them while all else waits. From an archive Java maps them checked and
linked. Java writes it when it ends, and looks by itself whether one fits: without one, or with one of other jars, a run
takes longer and does the same.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from pyspark.core.context import SparkContext

from queues.etl.job.config import Config

#: Seconds for Java to write an archive.
TIMEOUT = 300.0
#: Variables that put directories before Spark's jars, or other jars beside them: Java archives no classes with those.
CLASS_PATHS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")


@dataclass(slots=True)
class ClassArchive:
    """The archive of a run. `path`: where it is kept. `written`: where Java writes one; None: it uses the kept one."""

    path: Path
    written: Path | None
    #: Whether the run got far enough to load the usual classes.
    complete: bool = False

    @property
    def java_options(self) -> str:
        """Options of the driver's Java, as Spark parses them."""
        given = f'SharedArchiveFile="{self.path}"' if self.written is None else f'ArchiveClassesAtExit="{self.written}"'
        return f"-XX:{given} -Xshare:auto -Xlog:cds=off -Xlog:cds+dynamic=off"

    def end(self) -> None:
        """If Java was to write an archive: end it, and keep the archive if it is complete."""
        gateway: Any = SparkContext._gateway
        if self.written is None or gateway is None:
            return
        if self.complete:
            gateway.proc.stdin.close()  # Java ends by this
            with suppress(subprocess.TimeoutExpired):
                gateway.proc.wait(TIMEOUT)
        gateway.proc.kill()
        if gateway.proc.wait() == 0:
            with suppress(OSError):  # Java has written no archive, or the directory is read-only
                keep(self.written, self.path)


def keep(written: Path, path: Path) -> None:
    """Move an archive to this path atomically and remove the older ones. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    old = [other for other in path.parent.iterdir() if other != path]
    copy = path.with_suffix(f".{os.getpid()}")
    with open(written, "rb") as source, open(copy, "wb") as target:
        shutil.copyfileobj(source, target)
        target.flush()
        os.fsync(target.fileno())
    copy.replace(path)
    for other in old:
        other.unlink()


def archive_path(config: Config) -> Path | None:
    """Path of the archive for this Java and this Spark. None: archives cannot be used."""
    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    java = shutil.which(f"{os.environ['JAVA_HOME']}/bin/java" if os.environ.get("JAVA_HOME") else "java")
    settings = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf")
    has_directories = any(map(os.environ.get, CLASS_PATHS)) or (settings.is_dir() and any(settings.iterdir()))
    if not config.classes or java is None or has_directories or os.pathsep in config.classes:
        return None
    jars = home / "jars"
    program = Path(java).resolve()
    try:
        made = [program.stat().st_mtime_ns, jars.stat().st_mtime_ns]
    except OSError:
        return None
    key = repr((str(program), str(jars), *made, config.driver_memory))
    return Path(config.classes) / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


@contextmanager
def class_archive(config: Config) -> Iterator[ClassArchive | None]:
    """The archive for a run. A missing one is written when the context ends; Spark cannot be used after that."""
    path = archive_path(config)
    if path is None:
        yield None
        return
    # Earlier versions kept it in the default output.
    shutil.rmtree(path.parent.with_name("etl") / "classes", ignore_errors=True)
    archive = ClassArchive(path, None if path.exists() else Path(tempfile.gettempdir()) / path.name)
    try:
        yield archive
    finally:
        archive.end()
