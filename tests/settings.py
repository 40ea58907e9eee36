"""Settings under test: the project's own, on a PostgreSQL that belongs to this run alone.

With DATABASE_URL set, a test database is made on that server instead.
"""

import os
import shutil
from pathlib import Path

import psutil

from brokersite import embedded

DATA_DIRS = Path(__file__).resolve().parent.parent / ".data"


def _own_data_dir() -> Path:
    """A data directory named after this process; those that killed runs have left are removed."""
    for left in DATA_DIRS.glob("test-*"):
        if not psutil.pid_exists(int(left.name.removeprefix("test-"))):
            embedded.remove(left)
            shutil.rmtree(left, ignore_errors=True)
    return DATA_DIRS / f"test-{os.getpid()}"


for name in [name for name in os.environ if name.startswith("BROKER_")]:
    del os.environ[name]
os.environ["DATA_DIR"] = str(_own_data_dir())
os.environ["DEBUG"] = "off"
# The copies of anchors outlive the tables, which are emptied between tests: an engine that lives long writes none.
os.environ["BROKER_AUDIT_ANCHOR_INTERVAL"] = "3600"

from brokersite.settings import *  # noqa: E402, F403

# Processes that tests start are to have the project's own settings.
os.environ["DJANGO_SETTINGS_MODULE"] = "brokersite.settings"

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
