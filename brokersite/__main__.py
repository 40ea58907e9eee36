"""The command line: ``fivewire COMMAND`` or ``python -m brokersite COMMAND``; in a checkout ``manage.py COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def main() -> None:
    """Run a management command of Django. Exits with one line where settings are wrong or packages are missing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    program = Path(sys.argv[0]).name
    if program == "__main__.py":
        program = "python -m brokersite"
    try:
        from django.conf import settings
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
        from django.db import DatabaseError, OperationalError

        from brokersite import commandline
        from brokersite.packages import foreign_package
    except ImportError as error:
        sys.exit(f"{program}: {error}. In a checkout `make run` creates .venv: .venv/bin/python manage.py.")
    if foreign := foreign_package():
        sys.exit(f"{program}: {foreign}")
    from brokersite.databases import NoDatabase
    from brokersite.embedded_home import EmbeddedPostgresError
    from queues.config import extras
    from queues.errors import WrongEncoding

    if sys.argv[1:] in (["version"], ["--version"]):
        print(_versions())
        return
    commandline.purpose = commandline.purpose_of(sys.argv[1:])
    has_database = os.environ.get("DATABASE_URL") or extras.installed("embedded")
    if sys.argv[1:2] == ["up"] and commandline.purpose is commandline.Purpose.COMMAND and has_database:
        _refuse_taken_addresses(program)
    try:
        _ = settings.INSTALLED_APPS  # loads them, which may start PostgreSQL
    except (ImproperlyConfigured, EmbeddedPostgresError) as error:
        _refuse(program, error)
    try:
        execute_from_command_line([program, *sys.argv[1:]])
    except NoDatabase as error:
        _refuse(program, error)
    except (DatabaseError, WrongEncoding) as error:
        from queues.engine.api import absence, lacked_right

        if (refusal := lacked_right(error)) is not None:
            sys.exit(f"{program}: {refusal}")
        if not isinstance(error, OperationalError | WrongEncoding):
            raise
        if isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None):
            raise  # of a statement
        sys.exit(f"{program}: {error if isinstance(error, WrongEncoding) else absence(error)}")
    except ModuleNotFoundError as error:
        if (extra := extras.bringing(error.name or "")) is None:
            raise
        sys.exit(f"{program}: {extras.problem(extra)}")


def _versions() -> str:
    """The version of Fivewire, as the package or the checkout says it, and of what it runs on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        own = version("fivewire")
    except PackageNotFoundError:
        own = "from a checkout"
    return f"Fivewire {own}, Django {version('django')}, Python {platform.python_version()}"


def _refuse_taken_addresses(program: str) -> None:
    """Say at once which of the addresses of `up` are taken: loading the settings may make a database."""
    from brokersite.addresses import refuse_early
    from brokersite.supervisor import SupervisorError

    try:
        refuse_early(sys.argv[2:])
    except SupervisorError as error:
        sys.exit("\n".join(f"{program}: {line}" for line in str(error).splitlines()))


def _refuse(program: str, error: Exception) -> NoReturn:
    print(f"{program}: {error}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
