#!/usr/bin/env python
"""The command line of the project: ``python manage.py help``."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "brokersite.settings")
    try:
        from django.conf import settings
        from django.core.exceptions import ImproperlyConfigured
        from django.core.management import execute_from_command_line
    except ImportError as error:
        sys.exit(f"manage.py: {error}. Try .venv/bin/python manage.py; `make run` creates .venv.")
    from brokersite.embedded import EmbeddedPostgresError

    try:
        _ = settings.INSTALLED_APPS  # loads them, which may start PostgreSQL
    except (ImproperlyConfigured, EmbeddedPostgresError) as error:
        print(f"manage.py: {error}", file=sys.stderr)
        sys.exit(2)
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
