"""The file that docs/celery.md shows runs as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from brokersite.environment import CHECKOUT


def in_one_file(directory: Path) -> Path:
    """Write the page's file into a directory."""
    page = (CHECKOUT / "docs" / "celery.md").read_text()
    [demo] = re.findall(r"^```python\n(\"\"\".*?)^```", page, re.MULTILINE | re.DOTALL)
    (directory / "demo.py").write_text(demo)
    return directory / "demo.py"


def test_the_demo_in_one_file_prints_the_result_of_its_task(database_url: str, tmp_path: Path) -> None:
    in_one_file(tmp_path)
    environment = os.environ | {"DATABASE_URL": database_url, "PYTHONPATH": str(CHECKOUT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "demo.py"], cwd=tmp_path, env=environment, text=True, timeout=100,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "2 + 3 = 5\n" in done.stdout
