"""The job's progress as JSON lines in a file that the parent follows."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at Spark's own figures.
LOOK_EVERY = 0.5


class ProgressFile:
    """Writes one line per event: a `stage`, `result`, `warning` or `error`."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1) if path else None  # noqa: SIM115
        self._guard = threading.Lock()
        self.seconds: dict[str, float] = {}
        self.warnings: list[str] = []

    def tell(self, **line: Any) -> None:
        if self._file is not None:
            with self._guard:
                self._file.write(json.dumps(line, default=str) + "\n")

    def warn(self, text: str) -> None:
        """Warn the operator."""
        self.warnings.append(text)
        self.tell(warning=text)

    @contextmanager
    def stage(self, name: str, spark: SparkSession | None = None, total: int = 0) -> Iterator[None]:
        """A stage of the job. Reports how many of about `total` rows Spark has read."""
        started = time.monotonic()
        self.tell(stage=name, done=0, total=total)
        ended = threading.Event()
        follower = threading.Thread(target=self._follow, args=(name, spark, total, ended), daemon=True)
        if spark is not None:
            follower.start()
        try:
            yield
        finally:
            ended.set()
            if spark is not None:
                follower.join()
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 3)

    def _follow(self, name: str, spark: SparkSession, total: int, ended: threading.Event) -> None:
        store = spark.sparkContext._jsc.sc().statusStore()
        said = 0
        while not ended.wait(LOOK_EVERY):
            active = store.activeStages()
            done = sum(active.apply(n).inputRecords() for n in range(active.size()))
            if done > said:
                said = done
                self.tell(stage=name, done=min(done, total) if total else done, total=total)
