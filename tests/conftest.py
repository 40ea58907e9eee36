"""What every test may use: a PostgreSQL of this run's own, and how other processes reach it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from urllib.parse import quote, urlencode

import hypothesis
import pytest
from django.conf import settings

from brokersite import embedded
from brokersite.databases import connection_parameters

# How long an example takes says nothing: the machine may be busy with something else.
hypothesis.settings.register_profile(
    "patient",
    hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]),
)
hypothesis.settings.load_profile("patient")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no server and no file of this run behind."""
    data_dir: Path = settings.DATA_DIR
    if data_dir.name.startswith("test-"):
        embedded.remove(data_dir)
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show beside a failure what the brokers that run at that moment have said last: theirs may be the cause."""
    report = yield
    module = sys.modules.get("tests.wire.broker")
    for broker in tuple(module.RUNNING) if report.failed and module is not None else ():
        report.sections.append((f"broker {broker.process.pid}", broker.log[-3000:]))
    return report


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """DATABASE_URL for a process that a test starts: there it sees what the test has committed."""
    parameters = {name: str(value) for name, value in connection_parameters().items()}
    name, user, password, host, port = (
        quote(parameters.pop(key, ""), safe="") for key in ("dbname", "user", "password", "host", "port")
    )
    return f"postgresql://{user}:{password}@{host}:{port}/{name}?{urlencode(parameters)}"
