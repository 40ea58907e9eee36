"""Whole runs as processes: from the shell, killed, and on a cluster of Spark's own."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pyspark
import pytest

from brokersite.environment import CHECKOUT
from queues.audit.chains import append
from queues.database import connection_parameters
from tests.queues.audit.conftest import CHAIN, Intruder, letters
from tests.queues.etl.conftest import Etl
from tests.waiting import wait_until

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

#: Seconds for a whole run, several Java processes included, on a machine that has much else to do.
PATIENCE = 600.0


@pytest.fixture
def environment(database_url: str, spark_defaults: Path, tmp_path: Path) -> dict[str, str]:
    """For `manage.py` on the test database, with a home and an output of this test's own."""
    return {
        **os.environ, "DATABASE_URL": database_url, "DATA_DIR": str(tmp_path / "data"),
        "ETL_OUTPUT": str(tmp_path / "out"), "SPARK_MASTER": "local[2]", "BROKER_ETL_READERS": "2",
    }  # fmt: skip


def manage(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "manage.py", "etl", *arguments]
    return subprocess.Popen(
        command, cwd=CHECKOUT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: its status, what it printed, and what it complained of."""
    process = manage(environment, *arguments)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def test_a_killed_run_leaves_no_process_and_the_next_exports_all_and_finds_a_broken_chain(
    etl: Etl, environment: dict[str, str], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**environment, "TMPDIR": str(temporary)}
    etl.finish(1, 2)
    with psycopg.connect(**connection_parameters()) as obstacle:
        obstacle.execute("lock table queues_message in access exclusive mode")  # so it stays where it is
        process = manage(environment, "run", "--no-verify")
        reading = "select pid from queues_etlrun where stage = 'live messages'"
        ((job,),) = wait_until(lambda: etl.sql(reading), "it reads", PATIENCE)
        assert job == process.pid
        family = psutil.Process(job).children(recursive=True)
        (left,) = temporary.iterdir()
        assert list(left.glob("spark-*")) != []  # what Java leaves is there too
        process.send_signal(signal.SIGKILL)
        process.communicate()
        _, alive = psutil.wait_procs(family, PATIENCE)  # without the obstacle it may be done before it ends
        obstacle.rollback()
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    os.utime(left, (0, 0))
    etl.finish(3)
    append(CHAIN, letters(30))
    with psycopg.connect(**connection_parameters(), autocommit=True) as connection:
        Intruder(connection).run("update queues_audit set sender = 'mallory' where seq = 17")
    status, out, err = finish(environment, "run", "--json")
    run = json.loads(out)
    assert (run["state"], run["figures"]["tables"]["messages"]["rows_out"], etl.ids()) == ("succeeded", 3, [1, 2, 3])
    assert status == 1
    assert "The audit chain peerbus is broken at seq 17" in err
    assert run["figures"]["audit"][CHAIN] == {"ok": False, "rows": 17, "broken_seq": 17}
    states = etl.sql("select state, error like '%%is gone.' from queues_etlrun order by id")
    assert states == [("lost", True), ("succeeded", False)]
    assert list(temporary.iterdir()) == []
    written = [path for path in Path(etl.output).rglob("*") if "messages" in path.parts]
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_dir()} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written if path.is_file()} == {0o600}


@contextmanager
def cluster(directory: Path, environment: dict[str, str]) -> Iterator[str]:
    """A master and a worker of Spark's own on loopback; the master's address."""
    home = Path(pyspark.__file__).parent
    given = {**environment, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    names = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
    log = directory / "master.log"
    started = []

    def launch(name: str, *arguments: str, output: Path) -> None:
        with open(output, "wb") as stream:
            command = [str(home / "bin" / "spark-class"), name, "--host", "127.0.0.1", "--port", "0", *arguments]
            started.append(subprocess.Popen(command, env=given, stdout=stream, stderr=stream))

    try:
        launch(names[0], "--webui-port", "0", output=log)
        address = re.compile(r"Starting Spark master at (spark://\S+)")
        found = wait_until(lambda: address.search(log.read_text()), "a master", PATIENCE)
        launch(
            names[1], "--webui-port", "0", "--cores", "2", "--memory", "1g", "--work-dir", str(directory / "work"),
            found[1], output=directory / "worker.log",
        )  # fmt: skip
        wait_until(lambda: "Registering worker" in log.read_text(), "a worker", PATIENCE)
        yield str(found[1])
    finally:
        for process in started:
            process.terminate()
            process.wait()


def test_a_cluster_does_the_same_work(etl: Etl, environment: dict[str, str], tmp_path: Path) -> None:
    etl.finish(1, 2)
    etl.finish(3, queue="a b", payload=b"\x81\xa1a\x01", content=1)
    append(CHAIN, letters(5))
    tmp_path.joinpath("cluster").mkdir()
    with cluster(tmp_path / "cluster", environment) as master:
        changed = {"SPARK_MASTER": master, "BROKER_ETL_EXECUTOR_MEMORY": "512MiB", "BROKER_ETL_BODIES": "json"}
        status, out, err = finish({**environment, **changed}, "run", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["figures"]["audit"] == {CHAIN: {"ok": True, "rows": 5, "broken_seq": None}}
    assert sorted((row["id"], row["queue"], row["body_json"]) for row in etl.rows()) == [
        (1, "orders", None), (2, "orders", None), (3, "a b", '{"a":1}'),
    ]  # fmt: skip
    assert "app-" in (tmp_path / "cluster" / "master.log").read_text()
