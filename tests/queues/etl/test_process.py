"""Whole runs as processes: from the shell, killed, and on a cluster of Spark's own."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
import pyspark
import pytest

from queues.audit.chains import append
from queues.database.parameters import connection_parameters
from tests.process import Process
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


class Manage(Process):
    """`manage.py etl`."""

    patience = PATIENCE

    def __init__(self, environment: dict[str, str], *arguments: str) -> None:
        super().__init__(sys.executable, "manage.py", "etl", *arguments, environment=environment)


def finish(environment: dict[str, str], *arguments: str) -> tuple[int, str, str]:
    """Run a command to its end: its status, what it printed, and what it complained of."""
    status, lines, err = Manage(environment, *arguments).finish()
    return status, "".join(lines), err


def test_a_killed_run_leaves_no_process_and_the_next_exports_all_and_finds_a_broken_chain(
    etl: Etl, environment: dict[str, str], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**environment, "TMPDIR": str(temporary)}
    etl.finish(1, 2)
    with psycopg.connect(**connection_parameters()) as obstacle:
        obstacle.execute("lock table queues_message in access exclusive mode")  # so it stays where it is
        process = Manage(environment, "run", "--no-verify")
        reading = "select pid from queues_etlrun where stage = 'live messages'"
        ((job,),) = wait_until(lambda: etl.sql(reading), "it reads", PATIENCE)
        assert job == process.process.pid
        family = process.family()
        (left,) = temporary.iterdir()
        assert list(left.glob("spark-*")) != []  # what Java leaves is there too
        process.send_signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(family, PATIENCE)  # without the obstacle it may be done before it ends
        obstacle.rollback()
    process.end()
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


class SparkClass(Process):
    """A program of Spark's own on loopback, on a free port."""

    patience = PATIENCE

    def __init__(self, environment: dict[str, str], name: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        super().__init__(
            str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", "--port", "0",
            "--webui-port", "0", *arguments, merged=True,
            environment={**environment, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": home},
        )  # fmt: skip


@contextmanager
def cluster(directory: Path, environment: dict[str, str]) -> Iterator[tuple[SparkClass, str]]:
    """A master and a worker of Spark's own; the master and its address."""
    with ExitStack() as stack:
        master = SparkClass(environment, "master.Master")
        stack.callback(master.stop)
        address = re.search(r"spark://\S+", master.read_until("Starting Spark master at"))
        assert address is not None
        size = "--cores", "2", "--memory", "1g", "--work-dir", str(directory)
        worker = SparkClass(environment, "worker.Worker", *size, address[0])
        stack.callback(worker.stop)
        master.read_until("Registering worker")
        yield master, address[0]


def test_a_cluster_does_the_same_work(etl: Etl, environment: dict[str, str], tmp_path: Path) -> None:
    etl.finish(1, 2)
    etl.finish(3, queue="a b", payload=b"\x81\xa1a\x01", content=1)
    append(CHAIN, letters(5))
    with cluster(tmp_path / "work", environment) as (master, address):
        changed = {"SPARK_MASTER": address, "BROKER_ETL_EXECUTOR_MEMORY": "512MiB", "BROKER_ETL_BODIES": "json"}
        status, out, err = finish({**environment, **changed}, "run", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out)["figures"]["audit"] == {CHAIN: {"ok": True, "rows": 5, "broken_seq": None}}
    assert sorted((row["id"], row["queue"], row["body_json"]) for row in etl.rows()) == [
        (1, "orders", None), (2, "orders", None), (3, "a b", '{"a":1}'),
    ]  # fmt: skip
    assert "app-" in master.log


def test_an_error_of_the_first_run_is_told_with_its_cause(
    etl: Etl, environment: dict[str, str], tmp_path: Path
) -> None:
    own = {**environment, "SPARK_CONF_DIR": str(tmp_path / "none")}  # so that classes would be archived
    etl.finish(1)
    body = "begin return 'nonsense'::date is null; end"
    etl.sql(f"create function broken() returns boolean language plpgsql as $$ {body} $$")
    try:
        etl.sql("alter table queues_archivedmessage rename to archived")
        etl.sql("create view queues_archivedmessage as select * from archived where broken() or size > 0")
        status, _, err = finish(own, "run", "--no-verify")
    finally:
        etl.sql("drop view queues_archivedmessage")
        etl.sql("alter table archived rename to queues_archivedmessage")
        etl.sql("drop function broken()")
    assert status == 1
    assert 'invalid input syntax for type date: "nonsense"' in err


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_process_and_no_session(
    etl: Etl, environment: dict[str, str], tmp_path: Path, sign: signal.Signals
) -> None:
    own = {**environment, "SPARK_CONF_DIR": str(tmp_path / "none")}  # so that Java archives its classes when it ends
    etl.finish(1)
    with psycopg.connect(**connection_parameters()) as obstacle:
        obstacle.execute("lock table queues_message in access exclusive mode")
        process = Manage(own, "run", "--no-verify")
        process.read_until("live messages")
        family = process.family()
        process.send_signal(sign)
        _, alive = psutil.wait_procs(family, 30)
        obstacle.rollback()
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    process.end()
    gone = "select count(*) from pg_stat_activity where application_name like 'fivewire etl%%'"
    wait_until(lambda: etl.sql(gone) == [(0,)])
    if sign != signal.SIGKILL:
        assert etl.sql("select state from queues_etlrun") == [("cancelled",)]
