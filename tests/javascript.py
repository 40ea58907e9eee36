"""Programs in JavaScript, written from the pages of the documentation alone, with the packages that they need."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.process import Process
from tests.tools import lack, need

#: Seconds that npm may take.
TIMEOUT = 100


def installed(config: pytest.Config, directory: Path, program: str) -> Path:
    """A copy of a program with its packages beside it."""
    place = packages(config, directory)
    return Path(shutil.copy(directory / program, place))


def packages(config: pytest.Config, directory: Path) -> Path:
    """A directory with the packages of a lock file below `node_modules`, kept until that file changes."""
    need(config, "Node.js")
    lock = (directory / "package-lock.json").read_bytes()
    assert config.cache is not None
    place = config.cache.mkdir(f"{directory.parent.name}-javascript-{hashlib.sha256(lock).hexdigest()[:16]}")
    for file in ("package.json", "package-lock.json"):
        shutil.copy(directory / file, place)
    done = place / "installed"
    if not done.exists():
        npm = subprocess.run(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retry-mintimeout=1000"],
            cwd=place, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        if npm.returncode:
            lack(config, "Node.js", f"npm ci, which needs the network once, failed: {npm.stderr}")
        done.touch()
    return place


class JavaScript(Process):
    """A program that prints a JSON object for each of its events."""

    def __init__(self, program: Path, *arguments: str) -> None:
        super().__init__("node", str(program), *arguments)

    def until(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for so many of these events; all of them up to now."""
        while len(found := [said for said in map(json.loads, tuple(self.lines)) if said["event"] == event]) < count:
            self.next_line()
        return found
