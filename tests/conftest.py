"""What every test may use: a PostgreSQL of this run's own, and how other processes reach it."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from django.conf import settings

from brokersite import embedded
from brokersite.databases import connection_parameters


def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave no server and no file of this run behind."""
    data_dir: Path = settings.DATA_DIR
    if data_dir.name.startswith("test-"):
        embedded.remove(data_dir)
        shutil.rmtree(data_dir, ignore_errors=True)


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """DATABASE_URL for a process that a test starts: there it sees what the test has committed."""
    parameters = {name: str(value) for name, value in connection_parameters().items()}
    name, user, password, host, port = (
        quote(parameters.pop(key, ""), safe="") for key in ("dbname", "user", "password", "host", "port")
    )
    return f"postgresql://{user}:{password}@{host}:{port}/{name}?{urlencode(parameters)}"
