"""The program `celery` where no application can be imported: the entry point makes the transport known."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from brokersite.environment import CHECKOUT
from tests.queues.celery.transport.tables import Tables

Celery = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def celery(tmp_path: Path) -> Celery:
    """Runs `celery` as where the package is installed: with its entry points."""
    points = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["entry-points"]["celery.commands"]
    installed = tmp_path / "fivewire_of_this_test-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: fivewire-of-this-test\nVersion: 0\n")
    lines = [f"{name} = {where}" for name, where in points.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[celery.commands]", *lines]))

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)])}
        command = [sys.executable, "-W", "ignore", "-m", "celery", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return run


def test_celery_without_an_application_finds_the_broker(celery: Celery, broker_url: str, tables: Tables) -> None:
    ping = celery("-b", broker_url, "inspect", "-t", "0.1", "ping")
    assert "No nodes replied" in ping.stdout
    check = celery("-b", broker_url, "fivewire")
    assert (check.returncode, check.stdout.strip().rpartition(" can ")[2]) == (0, "be used"), check.stdout


def test_celery_says_why_a_broker_cannot_be_used(celery: Celery) -> None:
    check = celery("-b", "fivewire://a/x;fivewire://b", "fivewire")
    assert check.returncode == 1
    assert "each must name a host and a database" in check.stdout
