"""Running commands as a shell would see them."""

from __future__ import annotations

import io
import json
import logging
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import ManagementUtility


@dataclass(frozen=True)
class Outcome:
    """A command's output and exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Shell:
    """Runs `manage.py` in this process, so that it sees the test's transaction."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capture = capfd

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        self._capture.readouterr()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        # A command ends by closing connections, which here are the test's.
        self._monkeypatch.setattr("django.core.management.base.connections.close_all", lambda: None)
        handlers, status = logging.getLogger().handlers[:], 0
        try:
            ManagementUtility(["manage.py", *arguments]).execute()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:  # a command begins with handlers of its own, for this test's output
            logging.getLogger().handlers[:] = handlers
        written = self._capture.readouterr()
        return Outcome(status, written.out, written.err)
