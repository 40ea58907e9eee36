"""Fixtures of every test: a PostgreSQL of this run's own, and its address for other processes."""

from __future__ import annotations

import gc
import logging
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import hypothesis
import pytest
from django.conf import settings
from django.db import connection, connections
from django.test import TransactionTestCase
from django.test.utils import setup_databases, teardown_databases
from pytest_django import DjangoDbBlocker
from xdist.scheduler.loadfile import LoadFileScheduling

from brokersite import embedded
from brokersite.rigs.process import free_ports
from queues.database.parameters import connection_parameters
from tests.process import Process, stop_forge
from tests.settings import PREFIX
from tests.tools import need, summary
from tests.wire.broker import create_database, drop_databases

# An example's time says nothing: the machine may be busy with something else.
for name, examples in (("some", 40), ("all", 100)):
    hypothesis.settings.register_profile(
        name,
        hypothesis.settings(
            max_examples=examples, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
        ),
    )
hypothesis.settings.load_profile("some")


def pytest_configure(config: pytest.Config) -> None:
    """Draw more examples where everything is to run."""
    if config.getoption("everything"):
        hypothesis.settings.load_profile("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--everything", action="store_true", help="run the long tests too, and fail those that lack a tool"
    )
    parser.addoption("--soak", action="store_true", help="run only the longest form of each test that has one")
    parser.addoption("--screenshots", type=Path, metavar="DIR", help="write the pictures of the documentation there")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests of other lengths than the one that is to run. The slowest files come first."""
    everything, soak = config.getoption("everything"), config.getoption("soak")

    def is_wanted(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        return "soak" in marks if soak else not marks & {"soak", "short" if everything else "long"}

    wanted = [item for item in items if is_wanted(item)]
    if len(wanted) < len(items):
        config.hook.pytest_deselected(items=list(set(items) - set(wanted)))
        items[:] = wanted
    ranks = {path: _rank(path) for path in {item.path for item in items}}
    items.sort(key=lambda item: ranks[item.path])
    for item in items:
        if item.path.relative_to(TESTS).as_posix().startswith(VERSIONED):
            item.add_marker("version")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage meanwhile: next to all that is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Leave what the collection has made, which stays until the end, out of every collection of garbage. Undo what the
    web server's entry does when a test imports it: threads of tests end with their connections."""
    gc.freeze()
    for database in connections.databases.values():
        database["CONN_MAX_AGE"] = 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    return FileScheduling(config, log)


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Each file's tests to one process, and all of those that share a Spark to the same."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return SPARK if path.removeprefix("tests/").startswith(SPARK_FILES) else path


def _rank(path: Path) -> int:
    """The place of a file in the order of all: those of the slow directories first."""
    name = path.relative_to(TESTS).as_posix()
    return next((n for n, slow in enumerate(SLOW) if name.startswith(slow)), len(SLOW))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line what was not run for want of a tool."""
    skipped = terminalreporter.getreports("skipped")
    reasons = (report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    if line := summary(reason.removeprefix("Skipped: ") for reason in reasons):
        terminalreporter.write_line(line)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no process, no server and no file of this run behind."""
    stop_forge()
    data_dir: Path = settings.DATA_DIR
    if data_dir.name.startswith(PREFIX):
        embedded.remove(data_dir)
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure the last words of the processes that run at that moment: theirs may be the cause."""
    report = yield
    for process in tuple(Process.RUNNING) if report.failed else ():
        said = "\n".join(line[:300] for line in process.log.splitlines())  # hostile clients have long ones logged
        report.sections.append((f"{type(process).__name__} {process.process.pid}", said[-6000:]))
    return report


SPARK = "spark"
#: Files whose tests share one Spark: to start it takes long, and two take all memory and processors from the others.
SPARK_FILES = (
    "rigs/etl_soak/test_soak.py", "queues/etl/test_process.py", "browser/test_etl.py",
    "brokersite/rigs/bench/test_export.py", "queues/etl/test_export.py", "queues/etl/test_rollups.py",
    "queues/etl/test_compaction.py", "queues/etl/test_verdict.py", "queues/etl/test_class_archive.py",
    "queues/etl/test_reading.py",
)  # fmt: skip

#: Compiling what runs once costs more than it saves.
SPARK_DEFAULTS = """
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.sql.codegen.wholeStage false
spark.sql.codegen.factoryMode NO_CODEGEN
"""

TESTS = Path(__file__).parent
#: Directories and files that take longest. They are started first, so that no process is left with one at the end.
SLOW = (
    *SPARK_FILES, "torture/", "failover/", "browser/", "peers/durability/", "hydra/network/",
    "rigs/hydra_simulator/test_seeds", "brokersite/", "queues/celery/transport/",
    "wire/overhop/test_two_nodes", "peers/", "hostile/",
)  # fmt: skip

#: Tests that depend on versions of what is installed, for `make matrix`.
VERSIONED = (
    "rigs/control_room/", "brokersite/test_checks", "brokersite/test_csp", "brokersite/test_invalid_values",
    "brokersite/test_tasks", "hydra/test_admin", "hydra/test_models", "peers/server/", "queues/admin/",
    "queues/celery/", "queues/engine/test_plans", "queues/management/", "queues/operations/", "queues/test_",
    "wire/test_clients_against_broker",
)  # fmt: skip

#: Empties the tables that have grown since they were last emptied, which their files tell at once, but those that
#: migrations fill. TRUNCATE, since the audit chains refuse DELETE.
EMPTY_TABLES = """
do $$
declare
    grown text := (
        select string_agg(oid::regclass::text, ', ') from pg_class
        where relnamespace = current_schema()::regnamespace and relkind = 'r' and pg_relation_size(oid) > 0
            and relname not in ('auth_permission', 'django_content_type', 'django_migrations')
    );
begin
    if grown is not null then
        execute 'truncate ' || grown || ' cascade';
    end if;
end $$
"""


@pytest.fixture(scope="session")
def django_db_setup(
    django_test_environment: None, django_db_modify_db_settings: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """Django's test database, and a copy of it that no test changes: every migration is applied once only."""
    with django_db_blocker.unblock():
        made = setup_databases(verbosity=0, interactive=False)
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]  # of a run under the option `pool`
    server = connection_parameters()
    drop_databases(server, _template(server))
    create_database(server | {"dbname": "postgres"}, _template(server), server["dbname"])
    with django_db_blocker.unblock(), connection.cursor() as cursor:  # as after every test that commits
        cursor.execute("truncate queues_samplemark")
        connection.close()
    yield
    drop_databases(server, _template(server))
    with django_db_blocker.unblock():
        teardown_databases(made, verbosity=0)


def _template(server: dict[str, Any]) -> str:
    return f"{server['dbname']}_template"


@pytest.fixture(scope="session")
def migrated_database(django_db_setup: None) -> dict[str, Any]:
    """A database with every migration applied and no connection, to be copied."""
    server = connection_parameters()
    return server | {"dbname": _template(server)}


@pytest.fixture(scope="session", autouse=True)
def _empty_filled_tables_only() -> Iterator[None]:
    """After a test that commits, empty what it has filled: Django's flush takes ten times as long for all tables."""

    def empty(self: TransactionTestCase) -> None:
        with connection.cursor() as cursor:
            cursor.execute(EMPTY_TABLES)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TransactionTestCase, "_fixture_teardown", empty)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Spell what is not Unicode in a report by escapes, else pytest-xdist could not send it."""
    data = yield
    return None if data is None else _encodable(data)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_encodable(item) for item in value)
    return value


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """DATABASE_URL for a process that a test starts: there it sees what the test has committed."""
    parameters = {name: str(value) for name, value in connection_parameters().items()}
    name, user, password, host, port = (
        quote(parameters.pop(key, ""), safe="") for key in ("dbname", "user", "password", "host", "port")
    )
    return f"postgresql://{user}:{password}@{host}:{port}/{name}?{urlencode(parameters, quote_via=quote)}"


@pytest.fixture(scope="session")
def spark_defaults(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Spark's own configuration, as an operator has one, for this process and those that it starts; runs never pause,
    although the machine is busy with other tests."""
    need(request.config, "Java")
    directory = tmp_path_factory.mktemp("spark-conf")
    (directory / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_CONF_DIR", str(directory))
        patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patched.setenv("BROKER_ETL_BUSY_PERCENT", "100")
        yield directory


@pytest.fixture(scope="session")
def unused_tcp_port_factory() -> Callable[[], int]:
    """A function that finds a free port. In place of pytest-asyncio's: its ports are those that the system gives to
    clients, so that any connection may have taken one before the server of the test begins to listen."""
    return lambda: free_ports(1)[0]


@pytest.fixture
def unused_tcp_port(unused_tcp_port_factory: Callable[[], int]) -> int:
    """A free port."""
    return unused_tcp_port_factory()
