"""The tests that depend on a version, on each release that is supported::

    python -m tests.matrix [CELL ...] [--pytest='-k words']

Each cell has an environment in `.data/matrix`. What it does not say itself is as in requirements-dev.txt. Ends with
the table of what ran.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

from brokersite.environment import CHECKOUT
from tests.matrix.cells import CELLS, Cell
from tests.matrix.pythons import interpreter
from tests.matrix.servers import postgres

KEPT = CHECKOUT / ".data" / "matrix"
LOCK = CHECKOUT / "requirements-dev.txt"
UV = str(Path(sys.executable).with_name("uv"))
NAME = re.compile(r"[A-Za-z0-9_.-]+")
#: What goes with a package, whose version it decides.
FOLLOWERS = {"celery": ("kombu", "billiard", "vine", "amqp"), "mcp": ("mcp-types",), "psycopg": ("psycopg-binary",)}
VERSIONS = "; import platform; print(platform.python_version(), *(v(n) for n in ('django', 'celery', 'psycopg')))"


class Ran(NamedTuple):
    """A cell's line of the table."""

    cell: Cell
    versions: list[str]
    said: str
    seconds: float
    passed: bool


def names(requirements: list[str]) -> set[str]:
    """The packages that requirements name."""
    found = {match[0].lower().replace("_", "-") for line in requirements if (match := NAME.match(line))}
    return found | {follower for name in found for follower in FOLLOWERS.get(name, ())}


def environment(cell: Cell, python: Path) -> Path:
    """Make the cell's environment, or bring it up to date; returns its Python."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    direct = project["dependencies"] + [line for name in extras if name not in ("all", "dev") for line in extras[name]]
    locked = re.findall(r"^([\w.-]+==[^\\\n]+?) *\\?$", LOCK.read_text(), re.MULTILINE)
    freed = names([*cell.packages, *(direct if cell.lowest else ())])
    kept = [line for line in locked if not names([line]) & freed]
    constraints = KEPT / f"{cell.name}.txt"
    constraints.write_text("\n".join(kept) + "\n")
    # Tools that only read the code have bounds of their own.
    tools = [NAME.match(line)[0] for line in extras["dev"] if not line.startswith("fivewire")]  # type: ignore[index]
    home = KEPT / cell.name
    subprocess.run([UV, "--no-config", "venv", "--quiet", "--clear", "--python", str(python), str(home)], check=True)
    resolution = ["--resolution", "lowest-direct"] if cell.lowest else []
    subprocess.run(
        [
            UV, "--no-config", "pip", "install", "--quiet", "--python", str(home / "bin" / "python"), *resolution,
            "--constraint", str(constraints), "--editable", ".[all]", *tools, *cell.packages,
        ],
        cwd=CHECKOUT, check=True,
    )  # fmt: skip
    return home / "bin" / "python"


def run(cell: Cell, options: list[str]) -> Ran | None:
    """Run a cell's tests; None where no such Python is to be had."""
    began = time.monotonic()
    print(f"== {cell.name}", flush=True)
    found = interpreter(cell.python, KEPT)
    if found is None:
        print(f"not run: there is no Python {cell.python} here, and none to be had")
        return None
    python = str(environment(cell, found))
    asked = [python, "-c", f"from importlib.metadata import version as v{VERSIONS}"]
    versions = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    with contextlib.ExitStack() as stack:
        environ = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        if cell.postgres is not None:
            environ["DATABASE_URL"] = stack.enter_context(postgres(cell.postgres))
        command = [python, "-m", "pytest", "-m", "version", "-n", "4", "--dist", "loadfile", "-q", *options]
        pytest = subprocess.Popen(command, cwd=CHECKOUT, env=environ, stdout=subprocess.PIPE, text=True)
        last = ""
        for line in pytest.stdout or ():
            print(line, end="", flush=True)
            last = line.strip() or last
        status = pytest.wait()
    return Ran(cell, versions, last, time.monotonic() - began, status == 0)


def main() -> None:
    """Run the cells that are named, or all; the exit status is 1 if any failed."""
    parser = argparse.ArgumentParser(prog="make matrix")
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"of {', '.join(cell.name for cell in CELLS)}")
    parser.add_argument("--pytest", default="", help="options of pytest")
    options = parser.parse_args()
    if unknown := set(options.cells) - {cell.name for cell in CELLS}:
        parser.error(f"no cell {', '.join(sorted(unknown))}")
    KEPT.mkdir(parents=True, exist_ok=True)
    ran = [
        done
        for cell in CELLS
        if cell.name in (options.cells or [cell.name])
        and (done := run(cell, shlex.split(options.pytest))) is not None
    ]
    print("\n| cell | Python | Django | Celery | psycopg | PostgreSQL | tests | s |\n|---|---|---|---|---|---|---|---|")
    for cell, versions, said, seconds, _ in ran:
        said = re.sub(r" in [\d.]+s.*", "", said.strip("= "))
        print(f"| {cell.name} | {' | '.join(versions)} | {cell.postgres or 18} | {said} | {seconds:.0f} |")
    sys.exit(not all(done.passed for done in ran))


if __name__ == "__main__":
    main()
