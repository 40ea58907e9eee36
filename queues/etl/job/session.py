"""Starting Spark."""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pyspark.errors import PySparkException

from queues.etl.errors import NoJava, NoSpark
from queues.etl.job.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = "org.postgresql:postgresql:42.7.13"
EXCLUDED = "org.checkerframework:checker-qual"

#: Java's optimizing compiler waits twenty times longer than by default. It then compiles the code that runs per row and
#: skips planning and start, whose compilation took a third of the processor time of 5 million rows.
COMPILER = (
    "-XX:Tier4InvocationThreshold=100000 -XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=200000 "
    "-XX:Tier4BackEdgeThreshold=800000"
)

#: A small run ends before the optimizing compiler and Spark's generated classes pay off.
SMALL_COMPILER = "-XX:TieredStopAtLevel=1"
FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
}  # fmt: skip

CHECKOUT = Path(__file__).resolve().parents[3]

#: Modules that run in the executors' Python; no other module of the project is needed there.
SHIPPED = (
    "queues/__init__.py", "queues/formats/__init__.py", "queues/formats/canonical.py",
    "queues/database/__init__.py", "queues/database/sql_files.py", "queues/audit/__init__.py",
    "queues/audit/errors.py", "queues/audit/events.py", "queues/audit/spans.py", "queues/etl/__init__.py",
    "queues/etl/job/__init__.py", "queues/etl/job/blocks.py", "queues/etl/job/bodies.py",
)  # fmt: skip


def settings(config: Config, java_options: str = "", small: bool = False) -> dict[str, str]:
    """Spark's settings for a run; all others come from the operator's spark-defaults.conf.

    `java_options` are further ones of the driver's Java.
    """
    compiler = SMALL_COMPILER if small else COMPILER
    found = {

        "spark.driver.memory": f"{config.driver_memory // 2**20}m",
        "spark.executor.memory": f"{config.executor_memory // 2**20}m",
        "spark.cores.max": str(config.readers),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # A run's reads and writes are known before. Planning again after each step costs more than it saves.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.sources.partitionOverwriteMode": "static",
        # Temporary files go to the job's directory. The operator chooses where shuffled rows go.
        "spark.driver.defaultJavaOptions": f'-Djava.io.tmpdir="{tempfile.gettempdir()}" {compiler} {java_options}',
        "spark.executor.defaultJavaOptions": compiler,
        # With fewer queues one file per queue is open at a time. With more, rows are sorted first, which costs a
        # quarter.
        "spark.sql.maxConcurrentOutputFileWriters": "8",
        "spark.sql.shuffle.partitions": str(config.readers),
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        # Hadoop sets file modes by this option and ignores the process's umask.
        "spark.hadoop.fs.permissions.umask-mode": f"{_umask():03o}",
        "spark.hadoop.parquet.block.size": str(16 * 2**20),
        "spark.executor.heartbeatInterval": "2s",
        "spark.sql.debug.maxToStringFields": "100",
        "spark.executorEnv.LC_ALL": "C.UTF-8",
        **(FEW_ROWS if small else {}),
    }
    if config.jar is not None:
        found["spark.jars"] = config.jar
    else:
        found |= {"spark.jars.packages": PACKAGE, "spark.jars.excludes": EXCLUDED}
    host = urlsplit(config.master).hostname
    if config.master.startswith("local") or host in ("127.0.0.1", "localhost", "::1"):
        found |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return found


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextmanager
def session(config: Config, java_options: str = "", small: bool = False) -> Iterator[SparkSession]:
    """A session on the master that the configuration names, while the context lasts. Raises NoJava, NoSpark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory(prefix="fivewire-etl-") as directory:
        spark = _start(config, settings(config, java_options, small))
        try:
            spark.sparkContext.setLogLevel("WARN")
            spark.sparkContext.addPyFile(str(_pack(Path(directory))))
            yield spark
        finally:
            spark.stop()


def _start(config: Config, given: dict[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(f"fivewire etl {config.run}").master(config.master)
    for name, value in given.items():
        builder = builder.config(name, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except PySparkException as error:
        if "JAVA_GATEWAY" in str(error):
            raise NoJava() from error
        raise NoSpark(" ".join(str(error).split())) from error
    except FileNotFoundError as error:
        raise NoJava() from error
    except Exception as error:  # the gateway raises many kinds for Java's errors
        raise NoSpark(str(error).strip().split("\n", 1)[0]) from error
    return spark


def _pack(directory: Path) -> Path:
    """The modules for the executors' Python, in a file that they fetch."""
    path = directory / "fivewire_etl.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in SHIPPED:
            archive.write(CHECKOUT / name, name)
    return path
