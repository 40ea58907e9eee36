"""Settings under test: the project's own, on a PostgreSQL that belongs to this process alone.

With DATABASE_URL set, a test database is made on that server instead. Each worker of pytest-xdist has a PostgreSQL of
its own. Its files are in memory where the system has a file system for that: no test of these asks what a disk keeps.
"""

import contextlib
import fcntl
import json
import os
import shutil
from pathlib import Path

import psutil

from brokersite import embedded
from queues.etl.jar import driver_jar, version

#: The directory whose files Linux keeps in memory.
MEMORY = Path("/dev/shm")
#: Bytes that have to be free there: a few times of what all servers of a run use.
MEMORY_NEEDED = 6 << 30
PREFIX = "fivewire-test-"


def _data_dirs() -> Path:
    if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED:
        return MEMORY
    return Path(__file__).resolve().parent.parent / ".data"


def _own_data_dir() -> Path:
    """A data directory named after this process; those that killed runs have left are removed, by one process."""
    data_dirs = _data_dirs()
    data_dirs.mkdir(exist_ok=True)
    descriptor = os.open(data_dirs, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for left in data_dirs.glob(f"{PREFIX}*"):
            with contextlib.suppress(FileNotFoundError):  # a process that ends has just removed its own
                if left.stat().st_uid == os.getuid() and not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                    embedded.remove(left)
                    shutil.rmtree(left, ignore_errors=True)
    finally:
        os.close(descriptor)
    return data_dirs / f"{PREFIX}{os.getpid()}"


for name in [name for name in os.environ if name.startswith("BROKER_")]:
    del os.environ[name]
os.environ["DATA_DIR"] = str(_own_data_dir())
os.environ["DEBUG"] = "off"
# They would stand in memory, where commits wait for no disk.
embedded.WAL_AHEAD = 0
# A connection costs some ms less, unless the driver for Java that is here refuses that.
if (jar := driver_jar(None)) is None or version(jar) >= (42, 7):
    embedded.SCRAM_ITERATIONS = 1
# The copies of anchors outlive the tables, which are emptied between tests: an engine that lives long writes none.
os.environ["BROKER_AUDIT_ANCHOR_INTERVAL"] = "3600"
# Tests open pages beside each other, faster than people do.
os.environ["BROKER_ADMIN_BUSY_PERCENT"] = "100"

from brokersite.settings import *  # noqa: E402, F403

# Processes that tests start are to have the project's own settings.
os.environ["DJANGO_SETTINGS_MODULE"] = "brokersite.settings"

# A run under other options of Django's connections, such as {"OPTIONS": {"server_side_binding": true}}.
for key, value in json.loads(os.environ.get("TEST_DATABASE", "{}")).items():
    entry = DATABASES["default"]  # noqa: F405
    entry[key] = entry[key] | value if key == "OPTIONS" else value

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
