"""An operator who types anything: management commands, beside a running broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from django.conf import settings

from tests.peers.running import home
from tests.wire.broker import Database

CHECKOUT = Path(__file__).parents[2]


class Operator:
    """A process of :mod:`tests.hostile.shell`."""

    def __init__(self, database: Database) -> None:
        self._directory = tempfile.TemporaryDirectory()
        environment = {
            **os.environ, "DATABASE_URL": database.url, "DATA_DIR": home(database.url), "PYTHONPATH": str(CHECKOUT),
            "SECRET_KEY": settings.SECRET_KEY, "DJANGO_SETTINGS_MODULE": "brokersite.settings", "PYTHONUTF8": "1",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.shell"], cwd=self._directory.name, env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def runs(self, command: str, *arguments: str) -> None:
        """Run a management command. What it says when it fails is one line, behind how to use it if the arguments are
        wrong, and no traceback."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = json.dumps([command, "--skip-checks", *arguments])  # those of Django, which take long
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        code, _, err = json.loads(self._process.stdout.readline())
        assert "Traceback" not in err, err
        assert code in (0, 1, 2), (code, err)
        assert code == 0 or err.strip(), "it fails and says nothing"
        assert code != 1 or len(err.strip().splitlines()) == 1, err

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()
