"""The output's file system, whatever it is: what Spark can write to, through Hadoop's own interface."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from queues.etl.errors import OutputUnusable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Files moved in parallel. Object stores take long for each.
AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Footer:
    """A Parquet file's rows, and the least and the greatest value of a column; None: it does not say."""

    rows: int
    least: int | None
    most: int | None

    def only(self, unit: int) -> int | None:
        """The one multiple of `unit` that contains all values. None: several do, or the footer does not say."""
        if self.least is None or self.most is None or self.least // unit != self.most // unit:
            return None
        return self.least // unit


class Files:
    """Paths are relative to the output. Raises OutputUnusable for whatever the file system refuses."""

    def __init__(self, spark: SparkSession, output: str) -> None:
        assert spark.sparkContext._jvm is not None
        self._hadoop: Any = spark.sparkContext._jvm.org.apache.hadoop
        self._io: Any = spark.sparkContext._jvm.org.apache.commons.io
        self._parquet: Any = spark.sparkContext._jvm.org.apache.parquet.hadoop
        self._configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
        self.output = output.rstrip("/")
        try:
            root = self._hadoop.fs.Path(self.output)
            self._fs: Any = root.getFileSystem(self._configuration)
            self._fs.mkdirs(root)
            self.root: str = self._fs.resolvePath(root).toUri().getPath()
            self.is_local = str(self._fs.getScheme()) == "file"
        except Py4JJavaError as error:
            raise OutputUnusable(f"{output}: {_reason(error)}") from error
        if self.is_local:
            self._leave_checksums()

    def _leave_checksums(self) -> None:
        """Use the local file system without Hadoop's checksums, files beside the data that some readers do not pass
        over; and remove those of earlier versions. The one that is looked at first is removed last."""
        with suppress(Py4JError):  # a file system class of the operator's choice may lack the method
            self._fs = self._fs.getRaw()
        first = Path(self.root) / "._schema.json.crc"
        if first.exists():
            for path in Path(self.root).rglob(".*.crc"):
                if path != first:
                    path.unlink(missing_ok=True)
            first.unlink(missing_ok=True)

    def url(self, path: str) -> str:
        """A path's URL for Spark."""
        return f"{self.output}/{path}"

    def _path(self, path: str) -> Any:
        return self._hadoop.fs.Path(f"{self.output}/{path}")

    def exists(self, path: str) -> bool:
        return bool(self._do(path, lambda: self._fs.exists(self._path(path))))

    def names(self, path: str) -> list[str]:
        """The names in a directory; empty if the directory does not exist."""
        if not self.exists(path):
            return []
        found = self._do(path, lambda: self._fs.listStatus(self._path(path)))
        return sorted(status.getPath().getName() for status in found)

    def walk(self, path: str) -> list[tuple[str, int]]:
        """Every file below a directory: its path below it, and its size in bytes."""
        if not self.exists(path):
            return []
        return self._do(path, lambda: list(self._walk(path)))  # type: ignore[no-any-return]

    def _walk(self, path: str) -> Iterable[tuple[str, int]]:
        prefix = len(self._fs.resolvePath(self._path(path)).toUri().getPath()) + 1
        found = self._fs.listFiles(self._path(path), True)
        while found.hasNext():
            status = found.next()
            yield status.getPath().toUri().getPath()[prefix:], status.getLen()

    def read(self, path: str) -> str:
        """A file's text."""
        return str(self._do(path, lambda: self._read(path)))

    def _read(self, path: str) -> str:
        stream = self._fs.open(self._path(path))
        try:
            return str(self._io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a file atomically, replacing an earlier one."""
        self._do(path, lambda: self._write(f"{path}.new", text))
        self.move(f"{path}.new", path)
        self.sync([path])

    def _write(self, path: str, text: str) -> None:
        stream = self._fs.create(self._path(path), True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def move(self, source: str, target: str) -> None:
        """Rename a file, replacing the target."""
        self._do(target, lambda: self._move(self._path(source), self._path(target)))

    def _move(self, source: Any, target: Any) -> None:
        self._fs.mkdirs(target.getParent())
        if self._fs.exists(target):
            self._fs.delete(target, False)
        if not self._fs.rename(source, target):
            raise OutputUnusable(f"{source.toString()} could not be moved to {target.toString()}")

    def remove(self, path: str) -> None:
        """Remove a file or a directory tree, if it exists."""
        self._do(path, lambda: self._fs.delete(self._path(path), True))

    def each(self, action: Any, items: Iterable[Any]) -> None:
        """Call `action` for each file, several in parallel."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for _ in pool.map(action, items):
                pass

    def footers(self, paths: Iterable[str], column: str) -> dict[str, Footer]:
        """Figures of all rows, and of a column of numbers or times, from the footers of Parquet files."""
        found: dict[str, Footer] = {}

        def read(path: str) -> None:
            found[path] = self._do(path, lambda: self._footer(path, column))

        self.each(read, paths)
        return found

    def _footer(self, path: str, column: str) -> Footer:
        opened = self._parquet.ParquetFileReader.open(
            self._parquet.util.HadoopInputFile.fromPath(self._path(path), self._configuration)
        )
        try:
            blocks = list(opened.getFooter().getBlocks())
        finally:
            opened.close()
        chunks = [chunk for block in blocks for chunk in block.getColumns() if chunk.getPath().toDotString() == column]
        statistics = [chunk.getStatistics() for chunk in chunks]
        known = len(chunks) == len(blocks) and all(one.hasNonNullValue() for one in statistics)
        return Footer(
            rows=sum(block.getRowCount() for block in blocks),
            least=min((one.genericGetMin() for one in statistics), default=None) if known else None,
            most=max((one.genericGetMax() for one in statistics), default=None) if known else None,
        )

    def sync(self, paths: Iterable[str]) -> None:
        """Sync files and their directories to disk. Other file systems do it themselves."""
        if not self.is_local:
            return
        files = [f"{self.root}/{path}" for path in paths]
        for path in [*files, *sorted({os.path.dirname(path) for path in files})]:
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)

    def _do(self, path: str, action: Any) -> Any:
        try:
            return action()
        except Py4JJavaError as error:
            raise OutputUnusable(f"{self.url(path)}: {_reason(error)}") from error


def _reason(error: Py4JJavaError) -> str:
    return str(error.java_exception.toString()).split("\n", 1)[0]
