"""The command line: ``fivewire COMMAND`` or ``python -m brokersite COMMAND``; in a checkout ``manage.py COMMAND``."""

from __future__ import annotations

import os
import sys
from pathlib import Path


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
        from django.db import OperationalError

        from brokersite.packages import foreign_package
    except ImportError as error:
        sys.exit(f"{program}: {error}. In a checkout `make run` creates .venv: .venv/bin/python manage.py.")
    if foreign := foreign_package():
        sys.exit(f"{program}: {foreign}")
    from brokersite.embedded_home import EmbeddedPostgresError
    from queues import extras
    from queues.errors import WrongEncoding

    try:
        _ = settings.INSTALLED_APPS  # loads them, which may start PostgreSQL
    except (ImproperlyConfigured, EmbeddedPostgresError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        execute_from_command_line([program, *sys.argv[1:]])
    except (OperationalError, WrongEncoding) as error:
        if isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", ""):
            raise  # of a statement
        from queues.engine import absence

        sys.exit(f"{program}: {error if isinstance(error, WrongEncoding) else absence(error)}")
    except ModuleNotFoundError as error:
        if (extra := extras.bringing(error.name or "")) is None:
            raise
        sys.exit(f"{program}: {extras.problem(extra)}")


if __name__ == "__main__":
    main()
