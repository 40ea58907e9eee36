"""Secrets kept in files that only their owner can read (mode 600)."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path


def kept_secret(path: Path, *, length: int = 32) -> str:
    """The secret kept at ``path``; on the first call a random one of ``length`` characters.

    Processes that come at the same moment get the same one. Raises OSError when the file can be neither
    read nor made.
    """
    try:
        return read_secret(path)
    except FileNotFoundError:
        write_secret(path, secrets.token_urlsafe(length)[:length], replace=False)
        return read_secret(path)


def read_secret(path: Path) -> str:
    """The secret kept at ``path``. Raises FileNotFoundError when there is none."""
    return path.read_text().strip()


def find_secret(path: Path) -> str:
    """The secret kept at ``path``; empty when there is none."""
    try:
        return read_secret(path)
    except FileNotFoundError:
        return ""


def write_secret(path: Path, secret: str, *, replace: bool = True) -> None:
    """Keep ``secret`` at ``path``, whole or not at all; without ``replace`` an existing one stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mkstemp makes it mode 600
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(secret + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        if replace:
            os.replace(name, path)
        else:
            try:
                os.link(name, path)
            except FileExistsError:
                return  # another process was first: its secret counts
    finally:
        if os.path.exists(name):
            os.unlink(name)
