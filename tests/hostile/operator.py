"""An operator who types anything: management commands, beside a running broker."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from django.conf import settings

from brokersite.environment import CHECKOUT
from tests.peers.running import home
from tests.process import Process
from tests.wire.broker import Database


class Operator(Process):
    """A process of :mod:`tests.hostile.shell`."""

    def __init__(self, database: Database) -> None:
        self._directory = tempfile.TemporaryDirectory()
        environment = {
            "DATABASE_URL": database.url, "DATA_DIR": home(database.url), "PYTHONPATH": CHECKOUT,
            "SECRET_KEY": settings.SECRET_KEY, "DJANGO_SETTINGS_MODULE": "brokersite.settings", "PYTHONUTF8": "1",
        }  # fmt: skip
        super().__init__(
            sys.executable, "-m", "tests.hostile.shell", cwd=Path(self._directory.name), environment=environment
        )

    def runs(self, command: str, *arguments: str) -> None:
        """Run a management command. What it says when it fails is one line, behind how to use it if the arguments are
        wrong, and no traceback."""
        line = json.dumps([command, "--skip-checks", *arguments])  # those of Django, which take long
        self.tell(line.encode() + b"\n")
        code, _, err = json.loads(self.next_line())
        assert "Traceback" not in err, err
        assert code in (0, 1, 2), (code, err)
        assert code == 0 or err.strip(), "it fails and says nothing"
        assert code != 1 or len(err.strip().splitlines()) == 1, err

    def close(self) -> None:
        """End the process."""
        self.finish()
        self._directory.cleanup()
