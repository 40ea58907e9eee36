"""The archive of Java's classes: when there is one, and that it is kept whole or not at all."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from pyspark.core.context import SparkContext

from queues.etl.job.class_archive import ClassArchive, archive_path, class_archive, keep
from queues.etl.job.config import Config
from queues.etl.job.session import settings
from tests.conftest import SPARK_DEFAULTS
from tests.queues.etl.conftest import MEMORY, Etl
from tests.queues.etl.test_process import environment, finish

__all__ = ["environment"]  # a fixture


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark of the test's own, without settings."""
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"):
        monkeypatch.delenv(name, raising=False)
    for name in ("jars", "bin"):
        (tmp_path / name).mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def config(home: Path) -> Config:
    return Config(
        run=0, output="", master="local[2]", database={}, jar=None, driver_memory=MEMORY, executor_memory=MEMORY,
        readers=2, archive_days=30, compact_files=3, classes=str(home / "classes"),
    )  # fmt: skip


def test_the_archive_is_of_one_java_one_spark_and_one_size_of_memory(config: Config, home: Path) -> None:
    places = {archive_path(config), archive_path(replace(config, driver_memory=2 * MEMORY))}
    (home / "jars" / "another.jar").touch()
    places.add(archive_path(config))
    (home / "bin" / "java").write_text("#!/bin/sh\n# another version\n")
    places.add(archive_path(config))
    assert None not in places
    assert len(places) == 4
    assert archive_path(config) == archive_path(replace(config, run=7))


@pytest.mark.parametrize("name", ["HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"])
def test_java_archives_nothing_with_directories_among_the_jars(
    config: Config, home: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    assert archive_path(config) is not None
    monkeypatch.setenv(name, str(home))
    assert archive_path(config) is None


def test_settings_of_an_operator_are_such_a_directory(
    config: Config, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "conf").mkdir()
    assert archive_path(config) is not None
    (home / "conf" / "spark-defaults.conf").touch()
    assert archive_path(config) is None
    (home / "own").mkdir()
    monkeypatch.setenv("SPARK_CONF_DIR", str(home / "own"))
    assert archive_path(config) is not None


def test_without_java_or_a_directory_there_is_none(config: Config, home: Path) -> None:
    assert archive_path(replace(config, classes="")) is None
    assert archive_path(replace(config, classes="a:b")) is None  # Java would take it for two files
    (home / "bin" / "java").unlink()
    assert archive_path(config) is None
    with class_archive(config) as archive:
        assert archive is None


def test_a_kept_archive_takes_the_place_of_earlier_ones(tmp_path: Path) -> None:
    written, path = tmp_path / "written", tmp_path / "classes" / "new.jsa"
    with pytest.raises(FileNotFoundError):
        keep(written, path)
    written.write_bytes(b"classes")
    (tmp_path / "classes" / "old.jsa").touch()
    keep(written, path)
    assert [(one.name, one.read_bytes()) for one in path.parent.iterdir()] == [("new.jsa", b"classes")]


@pytest.mark.parametrize(("complete", "status", "kept"), [(True, 0, True), (True, 1, False), (False, 0, False)])
def test_an_archive_is_kept_if_the_run_was_whole_and_java_has_ended_well(
    config: Config, monkeypatch: pytest.MonkeyPatch, complete: bool, status: int, kept: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(Path(config.classes).parent))
    program = "import sys; sys.stdin.read(); open(sys.argv[1], 'w').write('classes'); sys.exit(int(sys.argv[2]))"
    with class_archive(config) as archive:
        assert archive is not None
        assert archive.written is not None
        assert f'-XX:ArchiveClassesAtExit="{archive.written}" ' in archive.java_options
        java = subprocess.Popen([sys.executable, "-c", program, archive.written, str(status)], stdin=subprocess.PIPE)
        monkeypatch.setattr(SparkContext, "_gateway", SimpleNamespace(proc=java))
        archive.complete = complete
    assert java.stdin is not None
    java.stdin.close()
    assert java.returncode is not None
    assert archive.path.exists() is kept
    with class_archive(config) as archive:
        assert archive is not None
        assert (archive.written is None) is kept


def test_a_kept_archive_is_used_and_java_is_left_alone(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", None)
    archive = ClassArchive(Path("/a place/one.jsa"), None, complete=True)
    archive.end()
    options = settings(config, archive.java_options)["spark.driver.defaultJavaOptions"]
    assert '-XX:SharedArchiveFile="/a place/one.jsa" -Xshare:auto' in options


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_run_after_the_first_takes_its_classes_from_the_archive(
    etl: Etl, environment: dict[str, str], tmp_path: Path
) -> None:
    given = [one.split(" ", 1) for one in SPARK_DEFAULTS.split("\n") if one]
    own = {
        **environment, "DATA_DIR": str(tmp_path / "a directory"), "ETL_OUTPUT": str(etl.output),
        "BROKER_ETL_BUSY_PERCENT": "100",  # else a small run on a busy machine leaves none
        "PYSPARK_SUBMIT_ARGS": " ".join([*(f"--conf '{name}={value}'" for name, value in given), "pyspark-shell"]),
        "SPARK_CONF_DIR": str(tmp_path / "none"),
    }  # fmt: skip
    classes = tmp_path / "a directory" / "etl-classes"
    assert finish(own, "run")[0] == 0
    assert not classes.exists()  # it has written no file, so it has not used what does
    etl.finish(1, 2)
    assert finish(own, "run")[0] == 0
    assert [path.suffix for path in classes.iterdir()] == [".jsa"]
    etl.finish(3)
    logged = {**own, "JAVA_TOOL_OPTIONS": f"-Xlog:class+load:file={tmp_path}/loaded-%p"}
    assert finish(logged, "run")[0] == 0
    assert etl.ids() == [1, 2, 3]
    logs = [path.read_text() for path in tmp_path.glob("loaded-*")]
    mapped = [line for log in logs for line in log.splitlines() if "source: shared objects file (top)" in line]
    assert sum("org.apache.spark.sql" in line for line in mapped) > 1000
